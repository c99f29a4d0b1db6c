package api

import (
	"encoding/base64"
	"encoding/json"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// Attributes that pulled events have beside their own: what acknowledges them.
const (
	attributeID      = "sidestreamid"
	attributeReceipt = "sidestreamreceipt"
	attributeAttempt = "sidestreamattempt"
)

// eventHead is the attributes of a message that is a CloudEvent as the HTTP
// binding's binary mode has them, the type of its data, and where its trace goes
// on. Of several of a name the last counts.
func eventHead(m *api.Message) (contentType string, event, trace []headerLine) {
	contentType = "application/octet-stream"
	is := headerText(m, eventPrefix+"specversion") != ""
	for _, p := range m.Headers {
		if p.Value == nil {
			continue
		}
		name, isAttr := strings.CutPrefix(p.Name, eventPrefix)
		switch {
		case is && isAttr && isAttribute(name):
			event = withLine(event, headerLine{"ce-" + name, eventHeaderText(*p.Value)})
		case is && p.Name == contentTypeName:
			contentType = formatMediaType(*p.Value)
		case (p.Name == traceParent || p.Name == traceState) && fitsHeader(*p.Value):
			trace = withLine(trace, headerLine{p.Name, *p.Value})
		}
	}
	return contentType, event, trace
}

// withLine adds a header, or puts it in place of that of the same name.
func withLine(lines []headerLine, l headerLine) []headerLine {
	for i := range lines {
		if lines[i].name == l.name {
			lines[i] = l
			return lines
		}
	}
	return append(lines, l)
}

// headerText is the last header of that name, if it is text.
func headerText(m *api.Message, name string) string {
	for _, p := range slices.Backward(m.Headers) {
		if p.Name == name && p.Value != nil {
			return *p.Value
		}
	}
	return ""
}

func (c *call) acceptsEvents() bool {
	return preferred(&c.Request.Header) == typeEvents
}

// answerEvents answers a pull with a batch of CloudEvents. A message that is none
// is put into one.
func answerEvents(c *call, d *consume.Delivery) error {
	h := &c.Response.Header
	if d.Ownership != "" {
		h.Set(headerOwnership, d.Ownership)
	}
	if d.Away > 0 {
		h.Set(headerAway, strconv.Itoa(d.Away))
	}
	if d.Acks != nil && d.Acks.Failed > 0 {
		h.Set(headerAcksBad, strconv.Itoa(d.Acks.Failed))
	}
	if len(d.Messages) == 0 && d.Reason != nil {
		h.Set(headerReason, string(*d.Reason))
	}
	c.SetContentType(typeEvents)
	return appendBody(c.RequestCtx, func(b []byte) (_ []byte, err error) {
		b = append(b, '[')
		for i := range d.Messages {
			if i > 0 {
				b = append(b, ',')
			}
			if b, err = appendEvent(b, &d.Messages[i]); err != nil {
				return b, err
			}
		}
		return append(b, "]\n"...), nil
	})
}

// appendEvent writes a message in the JSON event format.
func appendEvent(b []byte, m *api.Message) ([]byte, error) {
	value, err := m.ValueBytes()
	if err != nil {
		return b, err
	}
	ours := map[string]any{attributeID: m.ID}
	if m.Receipt != "" {
		ours[attributeReceipt] = m.Receipt
	}
	if m.Attempt > 0 {
		ours[attributeAttempt] = m.Attempt
	}
	contentType := headerText(m, contentTypeName)
	if mediaType(contentType) == typeEvent && len(value) > 0 {
		var whole map[string]json.RawMessage // it was written by another, as the Kafka binding's structured mode has it
		if json.Unmarshal(value, &whole) == nil && whole != nil {
			for name, v := range ours {
				if whole[name], err = json.Marshal(v); err != nil {
					return b, err
				}
			}
			return appendJSON(b, whole)
		}
	}
	event := eventOf(m)
	for name, v := range ours {
		event[name] = v
	}
	if m.Value == nil && m.Value64 == nil {
		return appendJSON(b, event)
	}
	_, known := event["datacontenttype"]
	if len(value) == 0 && headerText(m, eventPrefix+"specversion") != "" && (!known || isJSON(contentType)) {
		return appendJSON(b, event) // it was sent without data
	}
	switch {
	case (!known || isJSON(contentType)) && json.Valid(value) && utf8.Valid(value):
		event["data"] = json.RawMessage(value)
	case known && !isJSON(contentType) && utf8.Valid(value):
		event["data"] = string(value)
	default:
		event["data_base64"] = base64.StdEncoding.EncodeToString(value)
	}
	return appendJSON(b, event)
}

// eventOf is the attributes of a message, of its own or made for it.
func eventOf(m *api.Message) map[string]any {
	event := map[string]any{}
	if headerText(m, eventPrefix+"specversion") != "" {
		for _, p := range m.Headers {
			if name, ok := strings.CutPrefix(p.Name, eventPrefix); ok && p.Value != nil && isAttribute(name) {
				event[name] = *p.Value
			}
		}
	} else {
		event["specversion"], event["id"], event["type"] = eventVersion, m.ID, "sidestream.message"
		event["source"] = "/topics/" + m.Topic
		event["time"] = time.UnixMilli(m.Timestamp).UTC().Format(time.RFC3339Nano)
	}
	if t := headerText(m, contentTypeName); t != "" {
		event["datacontenttype"] = t
	}
	setIfNone := func(name, value string) {
		if _, ok := event[name]; !ok && value != "" {
			event[name] = value
		}
	}
	if m.Key != nil {
		setIfNone("partitionkey", *m.Key)
	}
	setIfNone(traceParent, headerText(m, traceParent))
	setIfNone(traceState, headerText(m, traceState))
	return event
}

func appendJSON(b []byte, v any) ([]byte, error) {
	text, err := json.Marshal(v)
	return append(b, text...), err
}
