package api

// ContentTypeEvents is the type of server-sent events.
const ContentTypeEvents = "text/event-stream"

// Values of [StreamStatus.Status].
const (
	StreamWaiting = "waiting" // nothing to hand out for now: Reason says why
	// StreamDelivering: messages come, and how many partitions are away has
	// changed: Away says it.
	StreamDelivering = "delivering"
	StreamEnded      = "ended" // the last line: Error says why
)

// StreamStatus is a line of a stream that is no message; a message is a line
// with an id. It comes when the stream begins to wait, when the reason or the
// number of partitions that are away changes, and as heartbeat.
type StreamStatus struct {
	Status    string  `json:"status"`
	Reason    *Reason `json:"reason,omitempty"`
	InFlight  int     `json:"in_flight"`           // messages of this stream that are not settled
	Ownership string  `json:"ownership,omitempty"` // as in Pulled
	Away      int     `json:"away,omitempty"`      // as in Pulled
	Error     *Error  `json:"error,omitempty"`
}
