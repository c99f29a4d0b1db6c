package api

import (
	"maps"
	"reflect"
	"slices"

	"sidestream/sdk/api"
)

// operation is what of a route its handler and types cannot tell.
type operation struct {
	id, tag, summary, text string

	headers []string // of the request that have an effect
	body    *requestBody
	answers map[int]answerOf // when all goes well, and what is no plain error
	codes   []api.Code       // of its errors, beside those of all routes
	refused reflect.Type     // of the body of an error, where it has more than the error
	marks   []string         // headers that any of its answers may have
}

// requestBody is what a request carries: Go types or schemas by media type, nil
// for anything.
type requestBody struct {
	text     string
	required bool
	content  map[string]any
}

// answerOf is what a status comes with.
type answerOf struct {
	text    string
	content map[string]any
	headers []string
}

func asJSON[T any]() map[string]any {
	return map[string]any{api.ContentTypeJSON: reflect.TypeFor[T]()}
}

func withJSON[T any](text string) answerOf { return answerOf{text: text, content: asJSON[T]()} }

func takes[T any](text string, required bool) *requestBody {
	return &requestBody{text: text, required: required, content: asJSON[T]()}
}

func fine[T any](text string) map[int]answerOf { return map[int]answerOf{200: withJSON[T](text)} }

// Codes that come together.
var (
	ofBrokers = []api.Code{api.CodeTopicNotFound, api.CodeBrokersUnavailable}
	ofStore   = []api.Code{api.CodeStoreUnavailable}
	ofChange  = []api.Code{api.CodeStoreUnavailable, api.CodeUnknownOutcome}

	// A topic may be made for a message, so that can fail too.
	ofPublish = codesIn(ofBrokers, ofChange, []api.Code{
		api.CodePartitionNotFound, api.CodeIdempotencyConflict, api.CodeMessageTooLarge, api.CodeBadRecord,
		api.CodeRateLimited, api.CodeSpoolFull, api.CodeDiskUnavailable, api.CodeDraining, api.CodeUnknownOutcome,
	})
	ofPull   = codesIn(ofBrokers, ofChange, []api.Code{api.CodeGroupConfig, api.CodeGroupLimit, api.CodeDiskUnavailable, api.CodeDraining})
	ofSettle = codesIn(ofChange, []api.Code{api.CodeTopicNotFound, api.CodeLeaseLost})
)

func codesIn(lists ...[]api.Code) []api.Code {
	set := map[api.Code]bool{}
	for _, c := range slices.Concat(lists...) {
		set[c] = true
	}
	return slices.Sorted(maps.Keys(set))
}

var apiTags = [][2]string{
	{"publish", "Messages into topics, and the spool of this host."},
	{"consume", "Messages out of topics, under leases."},
	{"groups", "What groups are and where they stand."},
	{"topics", "Topics, and looks at what is in them."},
	{"sidecar", "The sidecar itself."},
}

// headersOfPublish are those that both forms of publishing take.
var headersOfPublish = []string{api.HeaderCaller, api.HeaderIdempotencyKey, api.HeaderPrefer, traceParent, traceState}

var replayedHeader = []string{api.HeaderIdempotencyReplayed}

const batchPattern = "/topics/{topic}/batch"

var streamAnswer = map[int]answerOf{200: {
	text: "Without an end: each line, or the data of each event, is a Message, or a StreamStatus where it has a status. The last is a StreamStatus with status ended, when the sidecar ends it.",
	content: map[string]any{
		api.ContentTypeNDJSON: object{"description": "One Message or StreamStatus a line.", "x-line": lineOfStream},
		api.ContentTypeEvents: object{"description": "Events `message` (with its id) and `status`, with Accept: text/event-stream.", "x-data": lineOfStream},
	},
}}

var lineOfStream = object{"anyOf": []object{{"$ref": "#/components/schemas/Message"}, {"$ref": "#/components/schemas/StreamStatus"}}}

// linesOnly are the types that nothing but lines refers to.
var linesOnly = []reflect.Type{reflect.TypeFor[api.StreamStatus](), reflect.TypeFor[api.BatchLine](), reflect.TypeFor[api.BatchEnd]()}

var lineOfBatch = object{"anyOf": []object{{"$ref": "#/components/schemas/BatchLine"}, {"$ref": "#/components/schemas/BatchEnd"}}}

// CloudEvents in the JSON event format.
var (
	eventSchema = object{
		"type": "object", "required": eventAttributes, "additionalProperties": true,
		"properties": object{
			"specversion":     explained(object{"enum": []string{eventVersion}}, "The version of CloudEvents."),
			"id":              explained(nonEmpty, "The event's id: no other of its source has it."),
			"source":          explained(nonEmpty, "Where it happened, a URI reference."),
			"type":            explained(nonEmpty, "What kind of event it is."),
			"time":            explained(object{"type": []string{"string", "null"}, "format": "date-time"}, "When it happened; carried as it is. The message's timestamp is ts, or now."),
			"datacontenttype": explained(object{"type": "string"}, "The media type of the data; application/json where there is data and this is left out."),
			"data":            explained(object{}, "The data as JSON, which becomes the message's value to the letter; null is none."),
			"data_base64":     explained(object{"type": "string", "contentEncoding": "base64"}, "The data as base64, in place of data."),
		},
	}
	eventsSchema = object{"type": "array", "items": eventSchema}
	nonEmpty     = object{"type": "string", "minLength": 1}

	oneOrBatch = map[string]any{api.ContentTypeJSON: oneOf{reflect.TypeFor[api.Published](), reflect.TypeFor[api.BatchPublished]()}}
)

// oneOf is an answer of several types.
type oneOf []reflect.Type

// operations are the routes by method and pattern.
var operations = map[string]operation{
	"POST /topics/{topic}": {
		id: "publish", tag: "publish", summary: "Publish one message",
		text:    "The body is the message, whatever its Content-Type, but for CloudEvents 1.0: with headers ce-… (ce-specversion, ce-id, ce-source, ce-type) it is the data of one, and it is one or several with their own types. Several are answered as a batch. At most one of key and key64.",
		headers: append([]string{api.HeaderRecord, headerRecord64}, headersOfPublish...),
		body: &requestBody{text: "The message: any bytes.", content: map[string]any{
			"application/octet-stream": nil, "text/plain": nil, typeJSON: nil, "*/*": nil, typeEvent: eventSchema, typeEvents: eventsSchema,
		}},
		answers: map[int]answerOf{
			200: {text: "The brokers have the message.", content: oneOrBatch},
			202: {text: "The message is on this host's disk; GET /spool/{id} tells what becomes of it.", content: oneOrBatch},
			207: withJSON[api.BatchPublished]("Of several CloudEvents some are not written."),
		},
		codes: ofPublish, refused: reflect.TypeFor[batchRefused](), marks: replayedHeader,
	},
	"POST " + batchPattern: {
		id: "publishBatch", tag: "publish", summary: "Publish several messages",
		text:    "The whole batch is read before anything of it is sent: with one bad line nothing is written. With Accept: application/x-ndjson the lines are sent and answered while they arrive, however many they are, and a bad one is told of alone.",
		headers: headersOfPublish,
		body: &requestBody{
			text: "One Record a line, or an array of them, whatever the Content-Type. With lines each line is a value as it stands.", required: true,
			content: map[string]any{
				api.ContentTypeJSON:   reflect.TypeFor[[]api.Record](),
				api.ContentTypeNDJSON: object{"type": "string", "x-line": object{"$ref": "#/components/schemas/Record"}},
				"text/plain":          object{"type": "string"},
				typeEvents:            eventsSchema,
			},
		},
		answers: map[int]answerOf{
			200: {text: "All are written. As lines: each has its own fate, and the last one tells how many were written.", content: map[string]any{
				api.ContentTypeJSON:   reflect.TypeFor[api.BatchPublished](),
				api.ContentTypeNDJSON: object{"description": "With Accept: application/x-ndjson: the result of each line of the request, and a last line with status ended.", "x-line": lineOfBatch},
			}},
			202: withJSON[api.BatchPublished]("All are taken, and some are in the spool of this host."),
			207: withJSON[api.BatchPublished]("Some are not written; results tells of each, in the order of the request."),
		},
		codes: ofPublish, refused: reflect.TypeFor[batchRefused](), marks: replayedHeader,
	},
	"GET /spool": {
		id: "getSpool", tag: "publish", summary: "How much waits on this host to be written",
		answers: fine[api.SpoolStatus]("What the spool holds."),
	},
	"GET /spool/{id}": {
		id: "getSpooled", tag: "publish", summary: "What became of a message that was answered 202",
		answers: fine[api.SpoolEvent]("How far it is."),
		codes:   []api.Code{api.CodeNotFound},
	},

	"GET /topics": {
		id: "listTopics", tag: "topics", summary: "All topics",
		answers: fine[api.TopicList]("The topics, without offsets (start and end are -1)."),
		codes:   []api.Code{api.CodeBrokersUnavailable},
	},
	"GET /topics/{topic}": {
		id: "getTopic", tag: "topics", summary: "A topic with its partitions",
		answers: fine[api.Topic]("The topic."),
		codes:   ofBrokers,
	},
	"PUT /topics/{topic}": {
		id: "putTopic", tag: "topics", summary: "Make a topic",
		body: takes[api.TopicSpec]("What the topic is to have.", false),
		answers: map[int]answerOf{
			200: withJSON[api.Topic]("It is there already, as asked."),
			201: withJSON[api.Topic]("It was made."),
		},
		codes: codesIn(ofBrokers, ofChange, []api.Code{api.CodeTopicExists}),
	},
	"GET /topics/{topic}/partitions/{partition}/messages": {
		id: "peek", tag: "topics", summary: "Look at messages, without a group",
		answers: fine[api.Peeked]("Messages; ask for next with offset=next."),
		codes:   codesIn(ofBrokers, []api.Code{api.CodePartitionNotFound, api.CodeCorruptRecord}),
	},

	"GET /groups": {
		id: "listGroups", tag: "groups", summary: "All groups",
		answers: fine[api.GroupList]("Their names."),
		codes:   ofStore,
	},
	"GET /groups/{group}": {
		id: "getGroup", tag: "groups", summary: "A group: settings, members, owners and moves",
		answers: fine[api.Group]("The group."),
		codes:   codesIn(ofStore, []api.Code{api.CodeGroupNotFound}),
	},
	"PUT /groups/{group}": {
		id: "putGroup", tag: "groups", summary: "Make a group or change its settings",
		body:    takes[api.GroupConfig]("What is left out stays as it is.", false),
		answers: fine[api.Group]("The group as it is now."),
		codes:   ofChange,
	},
	"DELETE /groups/{group}": {
		id: "deleteGroup", tag: "groups", summary: "Forget a group with its positions",
		answers: map[int]answerOf{204: {text: "It is forgotten."}},
		codes:   codesIn(ofChange, []api.Code{api.CodeGroupNotFound, api.CodeGroupConfig}),
	},
	"POST /groups/{group}/topics/{topic}/pull": {
		id: "pull", tag: "consume", summary: "Take messages under a lease",
		text: "The body settles earlier messages on the way; acks in the answer tells their fate.",
		body: takes[api.PullBody]("Receipts of earlier messages.", false),
		answers: map[int]answerOf{
			200: {
				text:    "Messages, or the reason why there are none. With raw (Sidestream-Id tells) one message as it is, whatever its type: application/octet-stream, or that of a CloudEvent, whose attributes are then headers ce-….",
				content: map[string]any{api.ContentTypeJSON: reflect.TypeFor[api.Pulled](), api.ContentTypeBehind: nil, typeEvents: eventsSchema, "*/*": nil},
				headers: []string{headerReason, traceParent, traceState, headerID, headerReceipt, headerKey, headerKey + "64", headerTimestamp, headerAttempt, headerTombstone, headerLeftOut, headerPeek, headerOwnership, headerAway, headerAcksBad, api.HeaderRecord, headerRecord64},
			},
			204: {text: "With raw: no message.", headers: []string{headerReason, headerOwnership, headerAway, headerAcksBad}},
		},
		codes:   ofPull,
		refused: reflect.TypeFor[refusedPull](),
	},
	"GET /groups/{group}/topics/{topic}/stream": {
		id: "stream", tag: "consume", summary: "Messages as they come, on one answer that does not end",
		answers: streamAnswer, codes: ofPull,
	},
	"POST /groups/{group}/topics/{topic}/stream": {
		id: "streamPosted", tag: "consume", summary: "The same, for clients that cannot GET; it takes no body",
		answers: streamAnswer, codes: ofPull,
	},
	"POST /groups/{group}/topics/{topic}/ack":    settles("ack", "Acknowledge messages"),
	"POST /groups/{group}/topics/{topic}/nack":   settles("nack", "Give messages back, to be delivered again"),
	"POST /groups/{group}/topics/{topic}/extend": settles("extend", "Take more time for messages"),
	"GET /groups/{group}/topics/{topic}/dead": {
		id: "getDead", tag: "consume", summary: "Show dead letters",
		answers: fine[api.DeadLetters]("Letters; ask with after=next while there is a next."),
		codes:   codesIn(ofBrokers, ofStore, []api.Code{api.CodeGroupNotFound}),
	},
	"POST /groups/{group}/topics/{topic}/dead/redrive": {
		id: "redrive", tag: "consume", summary: "Write the messages of dead letters back to their topic",
		body: takes[api.RedriveRequest]("Which letters, and where to.", false),
		answers: map[int]answerOf{
			200: withJSON[api.Redriven]("What was done."),
			207: withJSON[api.Redriven]("It stopped at error after some."),
		},
		codes: codesIn(ofBrokers, ofChange, []api.Code{api.CodeGroupNotFound, api.CodeConflict}),
	},
	"GET /groups/{group}/topics/{topic}/offsets": {
		id: "getOffsets", tag: "groups", summary: "Where a group stands in a topic",
		answers: fine[api.Offsets]("Position, end and lag of each partition."),
		codes:   codesIn(ofBrokers, ofStore, []api.Code{api.CodeGroupNotFound}),
	},
	"PUT /groups/{group}/topics/{topic}/offsets": {
		id: "seek", tag: "groups", summary: "Move a group in a topic, while it consumes or not",
		body:    takes[api.SeekRequest]("Where to: to, or the exact offsets of some partitions.", true),
		answers: fine[api.Sought]("Where it stands now."),
		codes:   codesIn(ofBrokers, ofChange, []api.Code{api.CodeGroupNotFound, api.CodePartitionNotFound}),
	},
	"POST /groups/{group}/pause":                 pauses("pauseGroup", "Stop handing out a group's messages"),
	"POST /groups/{group}/resume":                pauses("resumeGroup", "Hand out a group's messages again"),
	"POST /groups/{group}/topics/{topic}/pause":  pauses("pauseTopic", "Stop handing out a group's messages of one topic"),
	"POST /groups/{group}/topics/{topic}/resume": pauses("resumeTopic", "Hand out a group's messages of one topic again"),

	"GET /": {
		id: "about", tag: "sidecar", summary: "What this is and where to look, for people",
		answers: map[int]answerOf{200: {text: "A few lines.", content: map[string]any{"text/plain": object{"type": "string"}}}},
	},
	"GET /healthz": {
		id: "healthz", tag: "sidecar", summary: "Whether the process answers",
		answers: fine[api.Health]("It does."),
	},
	"GET /readyz": {
		id: "readyz", tag: "sidecar", summary: "Whether publishing and pulling work",
		answers: map[int]answerOf{
			200: withJSON[api.Health]("They do; causes may tell of something amiss all the same."),
			503: withJSON[api.Health]("They do not; causes tells why."),
		},
	},
	"GET /status": {
		id: "status", tag: "sidecar", summary: "Session, brokers, spool, groups and partitions, for people",
		answers: map[int]answerOf{200: {text: "The status.", content: map[string]any{api.ContentTypeJSON: object{"type": "object"}}}},
	},
	"GET /metrics": {
		id: "metrics", tag: "sidecar", summary: "Metrics for Prometheus",
		answers: map[int]answerOf{
			200: {text: "The metrics, in the form that Accept asks for.", content: map[string]any{"text/plain": nil, "application/openmetrics-text": nil, "application/vnd.google.protobuf": nil}},
			500: {text: "They could not be collected.", content: map[string]any{"text/plain": nil}},
		},
		codes: []api.Code{api.CodeNotFound},
	},
	"GET /openapi.json": {
		id: "openapi", tag: "sidecar", summary: "This description",
		answers: map[int]answerOf{200: {text: "OpenAPI 3.1.", content: map[string]any{api.ContentTypeJSON: object{"type": "object"}}}},
	},
	"POST /drain": {
		id: "drain", tag: "sidecar", summary: "Refuse new work and give partitions to others",
		text:    "Acknowledgements are taken still. The process goes on until it is stopped.",
		answers: fine[api.Health]("The drain has begun."),
	},
}

func settles(id, summary string) operation {
	return operation{
		id: id, tag: "consume", summary: summary,
		body: takes[api.Receipts]("Receipts of the pull, and what goes with them: delay, error and unhandled with nack, lease with extend.", true),
		answers: map[int]answerOf{
			200: withJSON[api.ReceiptResponse]("All are settled."),
			207: withJSON[api.ReceiptResponse]("Some are not; results tells of each."),
		},
		codes:   ofSettle,
		refused: reflect.TypeFor[receiptsRefused](),
	}
}

func pauses(id, summary string) operation {
	return operation{
		id: id, tag: "groups", summary: summary,
		answers: fine[api.Group]("The group as it is now."),
		codes:   codesIn(ofChange, []api.Code{api.CodeGroupNotFound, api.CodeGroupConfig}),
	}
}
