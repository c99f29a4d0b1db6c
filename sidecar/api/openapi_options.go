package api

import (
	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// option is an element of a path, an option of the query, or a header.
type option struct {
	text    string
	schema  object // nil: any string
	example any
}

func (o option) orText() object {
	if o.schema == nil {
		return object{"type": "string"}
	}
	return o.schema
}

func whole(least, most int64) object {
	return object{"type": "integer", "format": "int64", "minimum": least, "maximum": most}
}

func choice(values ...string) object { return object{"type": "string", "enum": values} }

// flagSchema is true for ?name, ?name=1 and ?name=true.
var flagSchema = object{"type": "string", "enum": []string{"", "1", "true", "0", "false"}}

// topicsSchema is names and patterns with commas between them.
var topicsSchema = object{"type": "string", "minLength": 1, "pattern": `^[a-zA-Z0-9._*-]+(,[a-zA-Z0-9._*-]+)*$`}

var severalTopics = option{"The topic, or several: names and patterns (`orders.*`) with commas between them, 100 at most.", topicsSchema, "orders"}

// pathElements are what stands for the {…} of paths; "id.name" is an operation's
// own.
var pathElements = map[string]option{
	"topic":     {"The topic.", nameSchema, "orders"},
	"group":     {"The consumer group.", nameSchema, "billing"},
	"partition": {"The partition, from 0.", whole(0, 1<<31-1), 0},
	"id":        {"The spool_id of an answer.", nil, "5f3a9c1b22d04e77-1a2b"},

	"pull.topic":         severalTopics,
	"stream.topic":       severalTopics,
	"streamPosted.topic": severalTopics,
	"ack.topic":          severalTopics,
	"nack.topic":         severalTopics,
	"extend.topic":       severalTopics,
	"getOffsets.topic":   severalTopics,
	"seek.topic":         severalTopics,
}

// queryOptions are the options of the query; "id.name" is an operation's own.
var queryOptions = map[string]option{
	"ack":       {"When the message counts as taken: `all`, it is on the disks of all in-sync replicas; `leader`, it is in the leader's log, not flushed yet; `spool`, it is on this host's disk, and is sent on by itself.", choice("all", "leader", "spool"), nil},
	"timeout":   {"How long to try from the arrival of the request on; 10 s, or as configured.", durationSchema, "2s"},
	"key":       {"The key: messages of one key stay in order, in one partition.", nil, "42"},
	"key64":     {"The key as base64, in the standard or the URL alphabet, padded or not.", object{"type": "string", "contentEncoding": "base64"}, nil},
	"key_field": {"The key is this field of each value's JSON object, or what a JSON pointer such as `/user/id` names.", object{"type": "string", "minLength": 1}, "visitor"},
	"partition": {"An explicit partition.", whole(0, 1<<31-1), nil},
	"ts":        {"The timestamp, in milliseconds since 1970; now by default.", whole(0, maxTimestamp), nil},
	"lines":     {"Each line is a value as it stands.", flagSchema, nil},

	"peek.offset": {"Where to begin; the log's start by default, and where it begins above.", whole(0, 1<<62), nil},
	"peek.ts":     {"Begin at the first message of this time or later: milliseconds since 1970, or RFC 3339. Not with offset.", object{"anyOf": []object{{"type": "integer", "minimum": 0}, {"type": "string", "format": "date-time"}}}, nil},
	"peek.max":    {"Messages at most.", withDefault(whole(1, maxPeek), defaultPeek), nil},

	"max":           {"Messages at most; 1 with raw. 100, or as configured.", whole(1, consume.MaxPull), nil},
	"wait":          {"How long to wait for the first message, 1 h at most.", durationSchema, "20s"},
	"lease":         {"The time to acknowledge, 100 ms to 12 h; the group's by default.", durationSchema, "30s"},
	"from":          {"Where a new group starts: `earliest` (default), `latest` or a time.", beginSchema, "earliest"},
	"pull.ack":      {"The messages count as acknowledged when they are handed out.", choice("auto"), nil},
	"raw":           {"The body of the answer is one message as it is; what belongs to it is in headers.", flagSchema, nil},
	"attempt_token": {"A name of your own for this pull: when its answer does not arrive, the same token brings the same messages again.", object{"type": "string", "minLength": 1, "maxLength": consume.MaxAttemptToken}, nil},

	"window":           {"Messages that may be unsettled on this stream at once; 100, or as configured.", whole(1, consume.MaxPull), nil},
	"heartbeat":        {"The longest silence, 100 ms to 5 m.", withDefault(durationSchema, "15s"), nil},
	"stream.ack":       {"A message counts as acknowledged when it has left.", choice("auto"), nil},
	"streamPosted.ack": {"A message counts as acknowledged when it has left.", choice("auto"), nil},

	"getDead.max": {"Letters at most.", withDefault(whole(1, consume.MaxDead), 10), nil},
	"after":       {"`next` of the answer before.", nonEmpty, nil},
	"reason":      {"Letters of this reason only.", reasonSchema, nil},
	"all":         {"Those too that were brought back or discarded.", flagSchema, nil},
	"dead":        {"The topic of the letters, where the group's settings have changed since.", nameSchema, nil},

	"name[]": {"Only metrics of this name.", nil, nil},
}

func withDefault(schema object, value any) object { return plus(schema, "default", value) }

// requestHeaders are the headers that have an effect.
var requestHeaders = map[string]option{
	api.HeaderRecord:         {"A header of the message, name=value. May be repeated.", object{"type": "string", "pattern": "^[^=]+=.*$"}, "trace=abc"},
	headerRecord64:           {"A header of the message that a line of HTTP cannot carry: base64 of its name, =, base64 of its value. May be repeated.", object{"type": "string", "pattern": "^[A-Za-z0-9+/_-]+=+[A-Za-z0-9+/_-]*=*$"}, "dHJhY2U=YWJj"},
	api.HeaderCaller:         {"The name of the application, for limits and metrics.", object{"type": "string", "minLength": 1, "maxLength": maxCaller, "pattern": "^[a-zA-Z0-9._-]+$"}, "shop"},
	api.HeaderIdempotencyKey: {"Makes a repeated request safe: the same key and request are answered as the first was. 1 to 255 bytes.", object{"type": "string", "minLength": 1, "maxLength": 255}, nil},
	traceParent:              {"W3C Trace Context: becomes a header of the messages. One that is not valid is ignored.", nil, nil},
	traceState:               {"W3C Trace Context, beside traceparent.", nil, nil},
	api.HeaderPrefer:         {"`respond-async`: a place in the spool will do while brokers are away, where the configuration allows it.", nil, "respond-async"},
}

// responseHeaders are the headers of answers that mean something.
var responseHeaders = map[string]option{
	api.HeaderRetryAfter:          {"Seconds after which the request may succeed, where that is known.", whole(1, 1<<31), nil},
	api.HeaderIdempotencyReplayed: {"true: it is the answer to an earlier request with this Idempotency-Key.", choice("true"), nil},
	headerID:                      {"With raw: the message's id.", nil, nil},
	headerReceipt:                 {"What to acknowledge it with; none with ack=auto.", nil, nil},
	headerKey:                     {"The key, when it is printable ASCII.", nil, nil},
	headerKey + "64":              {"The key as base64, when it is not.", nil, nil},
	headerTimestamp:               {"The message's timestamp, in milliseconds since 1970.", object{"type": "integer", "format": "int64"}, nil},
	headerAttempt:                 {"How often it was handed out.", whole(1, 1<<31-1), nil},
	headerTombstone:               {"1: the message has no value.", choice("1"), nil},
	headerLeftOut:                 {"What belongs to the message and is not in the head, which has 4 KiB and 80 lines at most: some of key, trace, event, headers. With it the message is not acknowledged, with ack=auto neither.", nil, nil},
	headerPeek:                    {"Beside Sidestream-Left-Out: the path that shows the whole message.", nil, nil},
	headerReason:                  {"With raw, and of CloudEvents: why there is no message.", nil, nil},
	headerOwnership:               {"unproven: Consul has been away for so long that another sidecar may own the partition too.", choice("unproven"), nil},
	headerAway:                    {"How many partitions of this sidecar's part of the topics cannot be read for now, since their leader is away: their messages come later.", whole(1, 1<<31-1), nil},
	headerAcksBad:                 {"How many receipts in the request's body were not settled.", whole(1, 1<<31-1), nil},
	api.HeaderRecord:              {"A header of the message, name=value; may be repeated.", nil, nil},
	traceParent:                   {"With raw: the trace of the message.", nil, nil},
	traceState:                    {"With raw: what goes with traceparent.", nil, nil},
	headerRecord64:                {"A header of the message, base64 of the name, =, base64 of the value; may be repeated.", nil, nil},
}

// everywhere are the codes that any request can be answered.
var everywhere = []api.Code{api.CodeBadRequest, api.CodeForbidden, api.CodeLengthRequired, api.CodeRequestTooLarge, api.CodeRateLimited, api.CodeInternal, api.CodeNotImplemented}

// unreadable are answers to requests that did not arrive as they should.
var unreadable = map[string]struct {
	status int
	text   string
}{
	"timeout":        {fasthttp.StatusRequestTimeout, "`bad_request`: the request did not arrive in time."},
	"head_too_large": {fasthttp.StatusRequestHeaderFieldsTooLarge, "`bad_request`: the request's line and headers are too large."},
}

// codeWords are when an answer has a code.
var codeWords = map[api.Code]string{
	api.CodeBadRequest:          "an option, a header or the body is wrong; the message says what is right",
	api.CodeForbidden:           "a web page's request (with Origin), a foreign Host, or something that the brokers do not allow this sidecar",
	api.CodeTopicNotFound:       "there is no such topic",
	api.CodePartitionNotFound:   "the topic has no such partition",
	api.CodeGroupNotFound:       "there is no such group",
	api.CodeNotFound:            "there is nothing of that name",
	api.CodeMethodNotAllowed:    "the path has other methods; Allow names them",
	api.CodeLengthRequired:      "the request has neither Content-Length nor Transfer-Encoding: chunked, and is about its body or has a Content-Type",
	api.CodeNotImplemented:      "the request has a Transfer-Encoding other than chunked",
	api.CodeTopicExists:         "the topic is there with other settings than were asked for",
	api.CodeLeaseLost:           "the receipt's lease is over or its partition went elsewhere, and the message comes again",
	api.CodeIdempotencyConflict: "another request came before with this Idempotency-Key",
	api.CodeGroupConfig:         "it contradicts the group's settings, or the group is in use",
	api.CodeConflict:            "somebody else does it just now",
	api.CodeGroupLimit:          "the groups of the cluster consume as many partitions as they may",
	api.CodeMessageTooLarge:     "the message is larger than is allowed",
	api.CodeRequestTooLarge:     "the request's body is larger than is allowed, packed or unpacked, or has more messages",
	api.CodeBadRecord:           "a message is not as it must be; nothing of the request was written",
	api.CodeRateLimited:         "a limit is reached, there are max_connections already, or the bodies of other requests, or answers that are not read, fill max_request_memory; nothing was taken",
	api.CodeInternal:            "a fault of the sidecar; its log has more",
	api.CodeCorruptRecord:       "the log holds records there that nobody can read, or that take too much memory",
	api.CodeBrokersUnavailable:  "the brokers are away; nothing was written",
	api.CodeStoreUnavailable:    "the coordination store cannot be reached and the call needs it",
	api.CodeSpoolFull:           "the spool has no room; nothing was taken",
	api.CodeDiskUnavailable:     "this host's disk does not take what must be on it before the answer",
	api.CodeDraining:            "this sidecar is about to stop",
	api.CodeUnknownOutcome:      "the time is over and it may or may not have been done",
}
