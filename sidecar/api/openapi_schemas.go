package api

import (
	"encoding/json"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"
	"unicode"

	"sidestream/sdk/api"
)

// schemas makes JSON schemas of Go types. Those of structs and of named strings
// with known values are kept by name and referred to.
type schemas struct{ defs object }

func newSchemas() *schemas { return &schemas{defs: object{}} }

// of is the schema of the JSON that encoding/json makes of a type.
func (s *schemas) of(t reflect.Type) object {
	switch t {
	case reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case reflect.TypeFor[json.RawMessage]():
		return object{}
	}
	switch t.Kind() {
	case reflect.Pointer:
		return s.of(t.Elem())
	case reflect.String:
		if values, ok := namedValues[t]; ok {
			return s.named(t, object{"type": "string", "enum": values})
		}
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Int16, reflect.Int32:
		return object{"type": "integer", "format": "int32"}
	case reflect.Int, reflect.Int64:
		return object{"type": "integer", "format": "int64"}
	case reflect.Uint64:
		return object{"type": "integer", "minimum": 0}
	case reflect.Slice:
		return object{"type": "array", "items": s.of(t.Elem())}
	case reflect.Map: // keys are strings in JSON
		return object{"type": "object", "additionalProperties": s.of(t.Elem())}
	case reflect.Struct:
		return s.structure(t)
	}
	panic("no schema for " + t.String())
}

// structure keeps a struct's schema before it looks at its fields: types refer
// to themselves.
func (s *schemas) structure(t reflect.Type) object {
	if _, known := s.defs[schemaName(t)]; known {
		return s.ref(t)
	}
	def := object{"type": "object"}
	out := s.named(t, def)
	properties, required := object{}, []string{}
	s.fields(t, properties, &required)
	if len(properties) > 0 {
		def["properties"] = properties
	}
	if len(required) > 0 {
		def["required"] = required
	}
	if text := typeWords[t]; text != "" {
		def["description"] = text
	}
	for k, v := range typeRules[t] {
		def[k] = v
	}
	return out
}

// fields adds a struct's fields, those of embedded ones as its own.
func (s *schemas) fields(t reflect.Type, properties object, required *[]string) {
	for f := range t.Fields() {
		if f.Anonymous {
			s.fields(f.Type, properties, required)
			continue
		}
		name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
		if !f.IsExported() || name == "-" {
			continue
		}
		if name == "" {
			name = f.Name
		}
		optional := strings.Contains(rest, "omitempty")
		schema := s.of(f.Type)
		if own, ok := fieldSchemas[t.Name()+"."+f.Name]; ok {
			properties[name] = explained(own, wordsOf(t.Name(), f.Name))
			continue
		}
		for k, v := range fieldRules[t.Name()+"."+f.Name] {
			schema[k] = v
		}
		switch {
		case optional && typeRules[t] != nil:
			schema = orNothing(schema)
		case !optional && f.Type.Kind() == reflect.Pointer:
			schema = orNull(schema)
		}
		properties[name] = explained(schema, wordsOf(t.Name(), f.Name))
		if !optional {
			*required = append(*required, name)
		}
	}
}

func orNull(schema object) object {
	if t, ok := schema["type"].(string); ok {
		schema["type"] = []string{t, "null"}
		return schema
	}
	return object{"anyOf": []object{schema, {"type": "null"}}}
}

// orNothing is for fields of requests: null is as if the field were not there,
// and so is "" where only some texts are taken.
func orNothing(schema object) object {
	for _, rule := range []string{"enum", "anyOf", "pattern", "minLength"} {
		if schema[rule] != nil {
			return object{"anyOf": []object{schema, {"enum": []any{"", nil}}}}
		}
	}
	return orNull(schema)
}

func (s *schemas) named(t reflect.Type, def object) object {
	s.defs[schemaName(t)] = def
	return s.ref(t)
}

func (s *schemas) ref(t reflect.Type) object {
	return object{"$ref": "#/components/schemas/" + schemaName(t)}
}

func schemaName(t reflect.Type) string {
	name := []rune(t.Name())
	name[0] = unicode.ToUpper(name[0])
	return string(name)
}

// namedValues are the values of the named string types.
var namedValues = map[reflect.Type]any{
	reflect.TypeFor[api.Code]():       slices.Sorted(maps.Keys(codeWords)),
	reflect.TypeFor[api.SpoolState](): []api.SpoolState{api.SpoolPending, api.SpoolWritten, api.SpoolRejected},
	reflect.TypeFor[api.Reason](): []api.Reason{
		api.ReasonAtEnd, api.ReasonNoPartition, api.ReasonRebalancing, api.ReasonInFlightFull, api.ReasonNoTopic, api.ReasonRateLimited,
		api.ReasonPaused, api.ReasonBrokersDown, api.ReasonCorruptRecord, api.ReasonDeadLetterBlocked, api.ReasonUnproven,
	},
}

// Schemas that several fields and options share.
var (
	closedRule     = object{"additionalProperties": false}
	durationSchema = object{"type": "string", "pattern": `^([0-9]+|([0-9]+(\.[0-9]*)?(ns|us|µs|ms|s|m|h))+)$`}
	nameSchema     = object{"type": "string", "minLength": 1, "maxLength": 249, "pattern": `^[a-zA-Z0-9._-]+$`, "not": object{"enum": []string{".", ".."}}}
	beginSchema    = object{"anyOf": []object{{"enum": []string{"earliest", "latest"}}, {"type": "string", "format": "date-time"}}}
	reasonSchema   = object{"enum": []string{"max_attempts", "window_full", "undecodable", "oversized"}}
)

// typeRules are what the fields of requests' bodies cannot tell: there may be no
// others.
var typeRules = map[reflect.Type]object{
	reflect.TypeFor[api.Record]():         closedRule,
	reflect.TypeFor[api.PullBody]():       closedRule,
	reflect.TypeFor[api.Receipts]():       closedRule,
	reflect.TypeFor[api.GroupConfig]():    closedRule,
	reflect.TypeFor[api.TopicSpec]():      closedRule,
	reflect.TypeFor[api.RedriveRequest](): closedRule,
	reflect.TypeFor[api.SeekRequest](): {
		"additionalProperties": false,
		"oneOf":                []object{{"required": []string{"to"}}, {"required": []string{"offsets"}}},
	},
}

var typeWords = map[reflect.Type]string{
	reflect.TypeFor[api.Record]():       "One message of a batch.",
	reflect.TypeFor[api.BatchResult]():  "The fate of one message. Beside an error, partition and offset mean nothing.",
	reflect.TypeFor[api.Message]():      "A message, pulled or shown.",
	reflect.TypeFor[api.StreamStatus](): "A line of a stream that is no message.",
	reflect.TypeFor[api.ErrorBody]():    "What every answer has that is an error.",
}

// fieldSchemas are those of optional fields whose types tell less than they take.
var fieldSchemas = map[string]object{
	"Record.Headers": {"anyOf": []object{
		{"type": "object", "not": object{"required": []string{""}}, "additionalProperties": object{"type": "string"}},
		{"type": "array", "items": object{
			"description":          "As pulled messages have it.",
			"type":                 "object",
			"anyOf":                []object{{"required": []string{"name"}, "properties": object{"name": nonEmpty}}, {"required": []string{"name64"}, "properties": object{"name": object{"maxLength": 0}, "name64": nonEmpty}}},
			"not":                  object{"required": []string{"value", "value64"}, "properties": object{"value": object{"type": "string"}, "value64": object{"type": "string"}}},
			"additionalProperties": false,
			"properties": object{
				"name":    explained(object{"type": "string"}, wordsOf("HeaderPair", "Name")),
				"name64":  explained(object{"type": []string{"string", "null"}, "contentEncoding": "base64"}, wordsOf("HeaderPair", "Name64")),
				"value":   explained(object{"type": []string{"string", "null"}}, wordsOf("HeaderPair", "Value")),
				"value64": explained(object{"type": []string{"string", "null"}, "contentEncoding": "base64"}, wordsOf("HeaderPair", "Value64")),
			},
		}},
		{"type": "null"},
	}},
}

// fieldRules are what the types of fields cannot tell, by type and field.
var fieldRules = map[string]object{
	"GroupConfig.Order":          {"enum": []string{"partition", "key", "none"}},
	"GroupConfig.Lease":          durationSchema,
	"GroupConfig.MaxAttempts":    {"minimum": 0, "maximum": 1000},
	"GroupConfig.Exclusive":      {"enum": []string{"available", "strict"}},
	"GroupConfig.From":           beginSchema,
	"GroupConfig.Dead":           nameSchema,
	"GroupConfig.Unreadable":     {"enum": []string{"dead", "skip", "stop"}},
	"Receipts.Receipts":          {"minItems": 1},
	"Receipts.Delay":             durationSchema,
	"Receipts.Lease":             durationSchema,
	"SeekRequest.To":             beginSchema,
	"SeekRequest.Offsets":        {"minProperties": 1, "additionalProperties": object{"type": "integer", "format": "int64", "minimum": 0}},
	"TopicSpec.Partitions":       {"minimum": 0}, // 0: the default
	"TopicSpec.Replication":      {"minimum": 0, "maximum": 1<<15 - 1},
	"RedriveRequest.Max":         {"minimum": 0, "maximum": 10000},
	"RedriveRequest.IDs":         {"maxItems": 1000},
	"RedriveRequest.Reason":      reasonSchema,
	"RedriveRequest.To":          nameSchema,
	"RedriveRequest.Dead":        nameSchema,
	"Record.Value64":             {"contentEncoding": "base64"},
	"Record.Key64":               {"contentEncoding": "base64"},
	"Record.Partition":           {"minimum": 0},
	"Record.Timestamp":           {"minimum": 0, "maximum": maxTimestamp},
	"Message.Key64":              {"contentEncoding": "base64"},
	"Message.Value64":            {"contentEncoding": "base64"},
	"HeaderPair.Name64":          {"contentEncoding": "base64"},
	"HeaderPair.Value64":         {"contentEncoding": "base64"},
	"Pulled.Ownership":           {"enum": []string{"unproven"}},
	"StreamStatus.Ownership":     {"enum": []string{"unproven"}},
	"StreamStatus.Status":        {"enum": []string{api.StreamWaiting, api.StreamDelivering, api.StreamEnded}},
	"PartitionOffset.Source":     {"enum": []string{"live", "checkpoint"}},
	"DeadLetter.Reason":          reasonSchema,
	"Published.Offset":           {"minimum": -1},
	"BatchResult.Offset":         {"minimum": -1},
	"BatchLine.Line":             {"minimum": 1},
	"BatchEnd.Status":            {"enum": []string{api.StreamEnded}},
	"SpoolEvent.Offset":          {"minimum": -1},
	"Error.RetryAfterMillis":     {"minimum": 1},
	"Error.Line":                 {"minimum": 1},
	"TopicPartition.Leader":      {"minimum": -1},
	"TopicPartition.Start":       {"minimum": -1},
	"TopicPartition.End":         {"minimum": -1},
	"PartitionOffset.Start":      {"minimum": -1},
	"PartitionOffset.End":        {"minimum": -1},
	"PartitionOffset.Lag":        {"minimum": -1},
	"PartitionOffset.LagSeconds": {"minimum": -1},
}

// batchRefused is the answer to a batch of which everything failed alike.
type batchRefused struct {
	Error   *api.Error        `json:"error"`
	Topic   string            `json:"topic,omitempty"`
	Written int               `json:"written,omitempty"`
	Failed  int               `json:"failed,omitempty"`
	Results []api.BatchResult `json:"results,omitempty"`
}

// receiptsRefused is the answer to receipts which all failed alike.
type receiptsRefused struct {
	Error   *api.Error          `json:"error"`
	OK      int                 `json:"ok,omitempty"`
	Failed  int                 `json:"failed,omitempty"`
	Results []api.ReceiptResult `json:"results,omitempty"`
}
