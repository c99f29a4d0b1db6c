package api

import "strconv"

// AppendJSON appends the answer as JSON.
func (p Published) AppendJSON(b []byte) []byte {
	b = appendString(append(b, `{"topic":`...), p.Topic)
	b = strconv.AppendInt(append(b, `,"partition":`...), int64(p.Partition), 10)
	b = strconv.AppendInt(append(b, `,"offset":`...), p.Offset, 10)
	b = strconv.AppendInt(append(b, `,"timestamp":`...), p.Timestamp, 10)
	if p.SpoolID != "" {
		b = appendString(append(b, `,"spool_id":`...), p.SpoolID)
	}
	return append(b, '}')
}

// AppendJSON appends the answer as JSON. The answer to a batch has a result for
// each of its messages, so it is written by hand.
func (p BatchPublished) AppendJSON(b []byte) []byte { return p.append(append(b, '{')) }

// AppendFailed appends the answer to a batch of which everything failed alike:
// the answer with the error before it.
func (p BatchPublished) AppendFailed(b []byte, e *Error) []byte {
	return p.append(append(e.AppendJSON(append(b, `{"error":`...)), ','))
}

func (p BatchPublished) append(b []byte) []byte {
	b = appendString(append(b, `"topic":`...), p.Topic)
	b = strconv.AppendInt(append(b, `,"written":`...), int64(p.Written), 10)
	if p.Spooled != 0 {
		b = strconv.AppendInt(append(b, `,"spooled":`...), int64(p.Spooled), 10)
	}
	b = strconv.AppendInt(append(b, `,"failed":`...), int64(p.Failed), 10)
	if p.Results == nil {
		return append(b, `,"results":null}`...)
	}
	b = append(b, `,"results":[`...)
	for i := range p.Results {
		if i > 0 {
			b = append(b, ',')
		}
		b = p.Results[i].AppendJSON(b)
	}
	return append(b, ']', '}')
}

// AppendJSON appends the result as JSON.
func (r *BatchResult) AppendJSON(b []byte) []byte {
	return append(r.appendFields(append(b, '{')), '}')
}

func (r *BatchResult) appendFields(b []byte) []byte {
	b = strconv.AppendInt(append(b, `"partition":`...), int64(r.Partition), 10)
	b = strconv.AppendInt(append(b, `,"offset":`...), r.Offset, 10)
	if r.SpoolID != "" {
		b = appendString(append(b, `,"spool_id":`...), r.SpoolID)
	}
	if r.Error != nil {
		b = r.Error.AppendJSON(append(b, `,"error":`...))
	}
	return b
}

// AppendJSON appends the error as JSON.
func (e *Error) AppendJSON(b []byte) []byte {
	b = appendString(append(b, `{"code":`...), string(e.Code))
	b = appendString(append(b, `,"message":`...), e.Message)
	b = strconv.AppendBool(append(b, `,"retryable":`...), e.Retryable)
	if e.Line != 0 {
		b = strconv.AppendInt(append(b, `,"line":`...), int64(e.Line), 10)
	}
	if e.RetryAfterMillis != 0 {
		b = strconv.AppendInt(append(b, `,"retry_after_ms":`...), e.RetryAfterMillis, 10)
	}
	return append(b, '}')
}

// BatchLine is the fate of one record of a batch that is answered as it goes
// (with Accept: application/x-ndjson): one JSON object a line.
type BatchLine struct {
	Line int `json:"line"` // of the body, from 1
	BatchResult
}

// AppendJSON appends the line as JSON.
func (l *BatchLine) AppendJSON(b []byte) []byte {
	b = strconv.AppendInt(append(b, `{"line":`...), int64(l.Line), 10)
	return append(l.appendFields(append(b, ',')), '}')
}

// BatchEnd is the last line of such an answer. An answer that has none was cut
// off.
type BatchEnd struct {
	Status  string `json:"status"` // StreamEnded
	Written int64  `json:"written"`
	Spooled int64  `json:"spooled,omitempty"`
	Failed  int64  `json:"failed"`
	// Error is why the body was not read to its end. What follows the last line
	// that was answered was not sent.
	Error *Error `json:"error,omitempty"`
}
