package api

import (
	"bytes"
	"slices"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sidecar/publish"
)

// W3C Trace Context: a request's headers are carried on as headers of its
// messages, under the same names.
const (
	traceParent = "traceparent"
	traceState  = "tracestate"
)

// trace is the headers of the request's trace; none without a valid traceparent,
// which has to be ignored then, with its tracestate.
func (c *call) trace() []kgo.RecordHeader {
	parent := bytes.TrimSpace(c.Request.Header.Peek(traceParent))
	if !isTraceParent(parent) {
		return nil
	}
	headers := []kgo.RecordHeader{{Key: traceParent, Value: bytes.Clone(parent)}}
	if states := c.Request.Header.PeekAll(traceState); len(states) > 0 {
		// Of several the list is their values with commas between them.
		headers = append(headers, kgo.RecordHeader{Key: traceState, Value: bytes.Join(states, []byte{','})})
	}
	return headers
}

// withTrace adds the trace to a message's headers, unless it has one of its own.
func withTrace(headers, trace []kgo.RecordHeader) []kgo.RecordHeader {
	switch {
	case len(headers) == 0:
		return trace
	case len(trace) == 0, slices.ContainsFunc(headers, func(h kgo.RecordHeader) bool { return h.Key == traceParent }):
		return headers
	}
	return append(headers[:len(headers):len(headers)], trace...)
}

func traceAll(ms []publish.Message, trace []kgo.RecordHeader) {
	if len(trace) == 0 {
		return
	}
	for i := range ms {
		ms[i].Headers = withTrace(ms[i].Headers, trace)
	}
}

// isTraceParent says whether b is 00-<32 hex>-<16 hex>-<2 hex>, in small letters
// and with ids that are not all zeros, or of a later version that begins so.
func isTraceParent(b []byte) bool {
	const length = 2 + 1 + 32 + 1 + 16 + 1 + 2
	if len(b) < length || len(b) > length && (string(b[:2]) == "00" || b[length] != '-') {
		return false
	}
	for i, c := range b[:length] {
		if dash := i == 2 || i == 35 || i == 52; dash != (c == '-') || !dash && (c < '0' || c > '9') && (c < 'a' || c > 'f') {
			return false
		}
	}
	zeros := bytes.Repeat([]byte{'0'}, 32)
	return string(b[:2]) != "ff" && !bytes.Equal(b[3:35], zeros) && !bytes.Equal(b[36:52], zeros[:16])
}
