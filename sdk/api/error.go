package api

import "net/http"

// Code names a kind of failure; the same code always has the same status.
type Code string

const (
	CodeBadRequest          Code = "bad_request"
	CodeForbidden           Code = "forbidden"
	CodeTopicNotFound       Code = "topic_not_found"
	CodePartitionNotFound   Code = "partition_not_found"
	CodeGroupNotFound       Code = "group_not_found"
	CodeNotFound            Code = "not_found"
	CodeMethodNotAllowed    Code = "method_not_allowed"
	CodeLengthRequired      Code = "length_required" // the request does not say how long its body is
	CodeNotImplemented      Code = "not_implemented" // a Transfer-Encoding that is not known
	CodeTopicExists         Code = "topic_exists"
	CodeLeaseLost           Code = "lease_lost"
	CodeIdempotencyConflict Code = "idempotency_conflict"
	CodeGroupConfig         Code = "group_config"
	CodeConflict            Code = "conflict"    // somebody else does it just now
	CodeGroupLimit          Code = "group_limit" // the groups of the cluster consume as many partitions as they may
	CodeMessageTooLarge     Code = "message_too_large"
	CodeRequestTooLarge     Code = "request_too_large"
	CodeBadRecord           Code = "bad_record"
	CodeRateLimited         Code = "rate_limited"
	CodeInternal            Code = "internal"
	CodeCorruptRecord       Code = "corrupt_record" // the log holds records there that nobody can read
	CodeBrokersUnavailable  Code = "brokers_unavailable"
	CodeStoreUnavailable    Code = "store_unavailable" // Consul cannot be reached and the call needs it
	CodeSpoolFull           Code = "spool_full"
	CodeDiskUnavailable     Code = "disk_unavailable" // this host's disk does not take what must be on it before the answer
	CodeDraining            Code = "draining"
	CodeUnknownOutcome      Code = "unknown_outcome"
)

// codes is the one table from code to HTTP status and whether a repeat may help.
var codes = map[Code]struct {
	status    int
	retryable bool
}{
	CodeBadRequest:          {http.StatusBadRequest, false},
	CodeForbidden:           {http.StatusForbidden, false},
	CodeTopicNotFound:       {http.StatusNotFound, false},
	CodePartitionNotFound:   {http.StatusNotFound, false},
	CodeGroupNotFound:       {http.StatusNotFound, false},
	CodeNotFound:            {http.StatusNotFound, false},
	CodeMethodNotAllowed:    {http.StatusMethodNotAllowed, false},
	CodeLengthRequired:      {http.StatusLengthRequired, false},
	CodeNotImplemented:      {http.StatusNotImplemented, false},
	CodeTopicExists:         {http.StatusConflict, false},
	CodeLeaseLost:           {http.StatusConflict, false},
	CodeIdempotencyConflict: {http.StatusConflict, false},
	CodeGroupConfig:         {http.StatusConflict, false},
	CodeConflict:            {http.StatusConflict, true},
	CodeMessageTooLarge:     {http.StatusRequestEntityTooLarge, false},
	CodeRequestTooLarge:     {http.StatusRequestEntityTooLarge, false},
	CodeBadRecord:           {http.StatusUnprocessableEntity, false},
	CodeRateLimited:         {http.StatusTooManyRequests, true},
	CodeGroupLimit:          {http.StatusTooManyRequests, true},
	CodeInternal:            {http.StatusInternalServerError, false},
	CodeCorruptRecord:       {http.StatusInternalServerError, false},
	CodeBrokersUnavailable:  {http.StatusServiceUnavailable, true},
	CodeStoreUnavailable:    {http.StatusServiceUnavailable, true},
	CodeSpoolFull:           {http.StatusServiceUnavailable, true},
	CodeDiskUnavailable:     {http.StatusServiceUnavailable, true},
	CodeDraining:            {http.StatusServiceUnavailable, true},
	CodeUnknownOutcome:      {http.StatusGatewayTimeout, true},
}

// Error is what went wrong, as {"error":{…}} or inside a result. It is a Go
// error; errors.Is compares codes.
type Error struct {
	Code      Code   `json:"code"`
	Message   string `json:"message"`
	Retryable bool   `json:"retryable"`
	Line      int    `json:"line,omitempty"` // of the batch, from 1, with bad_record
	// RetryAfterMillis is how long to wait, when that is known; it also sets
	// the Retry-After header, rounded up to seconds.
	RetryAfterMillis int64 `json:"retry_after_ms,omitempty"`
}

// ErrorBody is the body of every answer that is an error.
type ErrorBody struct {
	Error *Error `json:"error"`
}

// NewError makes an error of a known code.
func NewError(code Code, message string) *Error {
	return &Error{Code: code, Message: message, Retryable: codes[code].retryable}
}

func (e *Error) Error() string { return string(e.Code) + ": " + e.Message }

// Is compares codes, so errors.Is(err, &api.Error{Code: api.CodeLeaseLost}) works,
// and says of a publish whether it is [ErrNotWritten] or [ErrUnknown].
func (e *Error) Is(target error) bool {
	if e.Code.Outcome().is(target) {
		return true
	}
	t, ok := target.(*Error)
	return ok && t.Code == e.Code
}

// Status is the HTTP status of a code; 500 for one that is not known.
func (c Code) Status() int {
	if k, ok := codes[c]; ok {
		return k.status
	}
	return http.StatusInternalServerError
}
