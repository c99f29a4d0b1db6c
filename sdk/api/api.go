// Package api holds the types of the sidecar's HTTP API, the only definition
// of them: the sidecar serves these and the sdk speaks them.
package api

import (
	"encoding/json"
	"time"
)

// Names of headers.
const (
	HeaderRecord         = "Record-Header"     // n=v, may be repeated: a header of the record
	HeaderRecord64       = "Record-Header64"   // the same, base64 of n = base64 of v, for what a line of HTTP cannot have
	HeaderCaller         = "Sidestream-Caller" // the application's name, for limits
	HeaderIdempotencyKey = "Idempotency-Key"   // makes a repeated request safe
	HeaderRetryAfter     = "Retry-After"       // seconds
	// HeaderIdempotencyReplayed is true in an answer that is an earlier
	// request's, with the same Idempotency-Key; nothing was written for it.
	HeaderIdempotencyReplayed = "Idempotency-Replayed"
	HeaderPrefer              = "Prefer" // respond-async (RFC 7240): a place in the spool will do while brokers are away
	ContentTypeNDJSON         = "application/x-ndjson"
	ContentTypeJSON           = "application/json"
)

// Published is the answer to POST /topics/T: 200 when the brokers have the
// message, 202 when the spool of this host has it.
type Published struct {
	Topic     string `json:"topic"`
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`    // -1 in the spool, and with ack=leader where the broker did not tell
	Timestamp int64  `json:"timestamp"` // of the record, Unix milliseconds
	// SpoolID is set when the message is in the spool: GET /spool/{id} tells
	// what becomes of it.
	SpoolID string `json:"spool_id,omitempty"`
}

// Record is one element of POST /topics/T/batch. Value holds the JSON of the
// element's "value": a string stands for its bytes, any other JSON for its
// text to the letter; absent or null makes a tombstone. Value64 and Key64 are
// base64 for bytes that are not UTF-8. At most one of each pair is given.
// HeaderList is in place of Headers, in JSON too, where their order counts, names
// repeat or values are not UTF-8.
type Record struct {
	Value     json.RawMessage   `json:"value,omitempty"`
	Value64   *string           `json:"value64,omitempty"`
	Key       *string           `json:"key,omitempty"`
	Key64     *string           `json:"key64,omitempty"`
	Headers   map[string]string `json:"headers,omitempty"`
	Partition *int32            `json:"partition,omitempty"`
	Timestamp *int64            `json:"ts,omitempty"` // Unix milliseconds

	HeaderList []HeaderPair `json:"-"`
}

// BatchResult is the fate of one record of a batch, in input order: Error is
// set, or SpoolID is (it is in the spool, and Offset is -1), or it is at Offset.
type BatchResult struct {
	Partition int32  `json:"partition"`
	Offset    int64  `json:"offset"`
	SpoolID   string `json:"spool_id,omitempty"`
	Error     *Error `json:"error,omitempty"`
}

// BatchPublished is the answer to POST /topics/T/batch: 200 when all are
// written, 202 when all are taken and some are in the spool, 207 when some
// failed, the common status when all failed alike.
type BatchPublished struct {
	Topic   string        `json:"topic"`
	Written int           `json:"written"`
	Spooled int           `json:"spooled,omitempty"`
	Failed  int           `json:"failed"`
	Results []BatchResult `json:"results"`
}

// SpoolState is how far a spooled message is.
type SpoolState string

const (
	SpoolPending  SpoolState = "pending"  // on this host's disk, to be sent
	SpoolWritten  SpoolState = "written"  // the brokers have it
	SpoolRejected SpoolState = "rejected" // it can never be written; it is in the file of rejected messages
)

// SpoolEvent is the answer to GET /spool/{id}.
type SpoolEvent struct {
	ID        string     `json:"id"`
	State     SpoolState `json:"state"`
	Topic     string     `json:"topic,omitempty"`
	Partition int32      `json:"partition"`
	Offset    int64      `json:"offset"`          // -1 unless it is written
	Error     *Error     `json:"error,omitempty"` // why it was rejected
}

// SpoolStatus is how much waits on this host to be written.
type SpoolStatus struct {
	Pending        int64       `json:"pending"`         // messages that are not written yet
	Partitions     int         `json:"partitions"`      // that they are for
	OldestSeconds  float64     `json:"oldest_seconds"`  // for how long the oldest has waited
	Bytes          int64       `json:"bytes"`           // on the disk, with what is written and not removed yet
	MaxBytes       int64       `json:"max_bytes"`       // that it may have
	AwayPartitions int         `json:"away_partitions"` // whose messages make no way
	Away           []SpoolAway `json:"away"`            // the first 20 of them
	RejectBytes    int64       `json:"reject_bytes"`    // of the file of rejected messages
	RejectFile     string      `json:"reject_file"`
}

// SpoolAway is a partition whose spooled messages make no way.
type SpoolAway struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	Pending   int64     `json:"pending"`
	Since     time.Time `json:"since"`
	Cause     string    `json:"cause"`
}

// Message is one pulled or peeked message. [Message.KeyBytes] and
// [Message.ValueBytes] have the bytes whichever field they came in: Value is
// nil for a tombstone and for a value that is not UTF-8, so do not dereference
// it unchecked.
type Message struct {
	ID         string       `json:"id"`                // topic/partition/offset; stable: store it to be effectively once
	Receipt    string       `json:"receipt,omitempty"` // opaque; proves the lease. None when peeked or with ack=auto
	Topic      string       `json:"topic"`
	Partition  int32        `json:"partition"`
	Offset     int64        `json:"offset"`
	Key        *string      `json:"key,omitempty"`   // when UTF-8
	Key64      *string      `json:"key64,omitempty"` // base64 when not
	Value      *string      `json:"value"`           // when UTF-8; null for a tombstone and with value64
	Value64    *string      `json:"value64,omitempty"`
	Headers    []HeaderPair `json:"headers,omitempty"`
	Timestamp  int64        `json:"ts"`                    // Unix milliseconds
	Attempt    int          `json:"attempt,omitempty"`     // 1 at the first hand-out
	LeaseUntil *time.Time   `json:"lease_until,omitempty"` // absent when peeked or with ack=auto
}

// HeaderPair is one header of a record: names may repeat and order is kept.
// [HeaderPair.NameBytes] and [HeaderPair.ValueBytes] have the bytes in either form.
type HeaderPair struct {
	Name    string  `json:"name"`              // when UTF-8; "" beside name64
	Name64  *string `json:"name64,omitempty"`  // base64 when not
	Value   *string `json:"value,omitempty"`   // when UTF-8
	Value64 *string `json:"value64,omitempty"` // base64 when not
}

// Reason says why a pull returned no message.
type Reason string

const (
	ReasonAtEnd             Reason = "at_end"              // everything that is owned here has been handed out
	ReasonNoPartition       Reason = "no_partition"        // more members than partitions
	ReasonRebalancing       Reason = "rebalancing"         // partitions are on their way
	ReasonInFlightFull      Reason = "in_flight_full"      // leases are out; ack them
	ReasonNoTopic           Reason = "no_topic"            // no topic matches the pattern yet
	ReasonRateLimited       Reason = "rate_limited"        //
	ReasonPaused            Reason = "paused"              // the group or the topic is, by POST …/pause
	ReasonBrokersDown       Reason = "brokers_down"        // the leaders of what is owned here are away
	ReasonCorruptRecord     Reason = "corrupt_record"      // a partition stands still at records that nobody can read: seek past them
	ReasonDeadLetterBlocked Reason = "dead_letter_blocked" // a dead letter could not be written
	ReasonUnproven          Reason = "ownership_unproven"  // exclusive=strict and Consul is away
)

// PullBody is the optional body of a pull.
type PullBody struct {
	Ack  []string `json:"ack,omitempty"`  // receipts
	Nack []string `json:"nack,omitempty"` // receipts
}

// Pulled is the answer to a pull.
type Pulled struct {
	Messages  []Message         `json:"messages"`
	Reason    *Reason           `json:"reason"`              // null when there are messages
	Reasons   map[string]Reason `json:"reasons,omitempty"`   // by topic, of an empty pull of several that do not all have the same
	Ownership string            `json:"ownership,omitempty"` // "unproven" while Consul has been away past the fence deadline
	// Away is how many partitions of the sidecar's part of the topics cannot be
	// read for now, since their leader is away: their messages come later, though
	// others are delivered meanwhile. GET /status of the sidecar names them.
	Away int              `json:"away,omitempty"`
	Acks *ReceiptResponse `json:"acks,omitempty"` // fate of the acks and nacks in the body
}

// Receipts is the body of ack, nack and extend.
type Receipts struct {
	Receipts  []string `json:"receipts"`
	Delay     string   `json:"delay,omitempty"`     // nack: Go duration before redelivery
	Error     string   `json:"error,omitempty"`     // nack: why, for dead letters and people
	Unhandled bool     `json:"unhandled,omitempty"` // nack: the application did not begin with them, so no attempt is spent
	Lease     string   `json:"lease,omitempty"`     // extend: Go duration from now
}

// ReceiptResult is the fate of one receipt.
type ReceiptResult struct {
	Receipt     string     `json:"receipt"`
	ID          string     `json:"id,omitempty"`
	Provisional bool       `json:"provisional,omitempty"` // kept here; not proven to be the owner (Consul is away)
	LeaseUntil  *time.Time `json:"lease_until,omitempty"` // extend
	Error       *Error     `json:"error,omitempty"`
}

// ReceiptResponse is the answer to ack, nack and extend: 200 all well, 207
// mixed, the common status when all failed alike.
type ReceiptResponse struct {
	OK      int             `json:"ok"`
	Failed  int             `json:"failed"`
	Results []ReceiptResult `json:"results"`
}

// GroupConfig is the body of PUT /groups/G and part of GET. Zero fields mean
// the default (or, in PUT on an existing group, as it is).
type GroupConfig struct {
	Order       string `json:"order,omitempty"`        // partition (default), key, none
	Lease       string `json:"lease,omitempty"`        // Go duration, default 30s
	MaxAttempts *int   `json:"max_attempts,omitempty"` // hand-outs after which a message is a dead letter, default 10; 0: no limit
	Exclusive   string `json:"exclusive,omitempty"`    // available (default) or strict
	From        string `json:"from,omitempty"`         // earliest (default), latest or RFC 3339
	Dead        string `json:"dead,omitempty"`         // topic of dead letters (default dead.<group>), skip or off
	Unreadable  string `json:"unreadable,omitempty"`   // records that nobody can read: dead (default), skip or stop
	Ephemeral   *bool  `json:"ephemeral,omitempty"`    // removed 10 minutes after its last member left
}

// Group is the answer to GET /groups/G.
type Group struct {
	Group   string      `json:"group"`
	Config  GroupConfig `json:"config"`
	Planner string      `json:"planner,omitempty"`
	// Paused: nothing is handed out. PausedTopics: nothing of these.
	Paused       bool          `json:"paused,omitempty"`
	PausedTopics []string      `json:"paused_topics,omitempty"`
	Members      []GroupMember `json:"members"`
	Owners       []OwnedBy     `json:"partitions"`
	History      []Move        `json:"history"` // oldest first
}

// GroupMember is a sidecar in a group.
type GroupMember struct {
	Sidecar string    `json:"sidecar"`
	Address string    `json:"address,omitempty"`
	Topics  []string  `json:"topics"`
	Joined  time.Time `json:"joined"`
}

// OwnedBy says who owns a partition.
type OwnedBy struct {
	Topic      string `json:"topic"`
	Partition  int32  `json:"partition"`
	Owner      string `json:"owner,omitempty"`
	Generation uint64 `json:"generation"`
}

// Move is one change of ownership as it was planned, for people.
type Move struct {
	Plan      uint64    `json:"plan"`
	At        time.Time `json:"at"`
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"`
	From      string    `json:"from,omitempty"`
	To        string    `json:"to,omitempty"`
	Cause     string    `json:"cause"`
	// Omitted above 0 stands for so many moves of one plan that were too many to
	// be kept; topic and partition mean nothing then.
	Omitted int `json:"omitted,omitempty"`
}

// GroupList is the answer to GET /groups.
type GroupList struct {
	Groups []string `json:"groups"`
}

// Offsets is the answer to GET /groups/G/topics/T/offsets.
type Offsets struct {
	Group     string `json:"group"`
	Topic     string `json:"topic"`
	SeekEpoch uint64 `json:"seek_epoch"`
	Lag       int64  `json:"lag"`               // messages, sum over the partitions whose lag is known
	Partial   bool   `json:"partial,omitempty"` // that is not all of them: the leaders of some are away
	// LagSeconds and OldestUnackedSeconds are the highest of the partitions
	// that tell.
	LagSeconds           float64           `json:"lag_seconds"`
	OldestUnackedSeconds float64           `json:"oldest_unacked_seconds"`
	Paused               bool              `json:"paused,omitempty"` // nothing is handed out
	Partitions           []PartitionOffset `json:"partitions"`
	Topics               []Offsets         `json:"topics,omitempty"` // of each, where several were asked for: Partitions is empty then
}

// PartitionOffset is where a group stands in a partition. The live sidecar
// that owns the partition knows more than the last checkpoint: Source tells.
type PartitionOffset struct {
	Partition int32 `json:"partition"`
	Position  int64 `json:"position"` // low edge: everything below is acknowledged
	Acked     int64 `json:"acked"`    // acknowledged above the low edge
	Start     int64 `json:"start"`    // log start offset; -1: not known, the leader is away
	End       int64 `json:"end"`      // high watermark; -1: not known, the leader is away
	Lag       int64 `json:"lag"`      // messages between position and end that are not acknowledged; -1: not known, as End
	// LagSeconds is the age of the oldest message that is not acknowledged, by
	// its own timestamp: how far the group is behind. 0: there is none; -1: not
	// known.
	LagSeconds float64 `json:"lag_seconds"`
	// OldestUnackedSeconds is for how long the oldest message that was handed
	// out has not been acknowledged: whether an application is stuck. 0: none
	// is out or waits to be delivered again; -1: only the owner knows.
	OldestUnackedSeconds float64 `json:"oldest_unacked_seconds"`
	InFlight             int     `json:"in_flight"`
	Owner                string  `json:"owner,omitempty"`
	Generation           uint64  `json:"generation"`
	Source               string  `json:"source"` // live or checkpoint
}

// SeekRequest is the body of PUT /groups/G/topics/T/offsets: To or Offsets.
type SeekRequest struct {
	To      string           `json:"to,omitempty"`      // earliest, latest or RFC 3339
	Offsets map[string]int64 `json:"offsets,omitempty"` // partition number → offset
}

// Sought is its answer.
type Sought struct {
	SeekEpoch uint64            `json:"seek_epoch"`
	Offsets   map[int32]int64   `json:"offsets"`
	Topics    map[string]Sought `json:"topics,omitempty"` // of each, where several were asked for: Offsets is empty then
}

// TopicList is the answer to GET /topics.
type TopicList struct {
	Topics []Topic `json:"topics"`
}

// Topic is the answer to GET and PUT /topics/T. PUT takes Partitions,
// Replication and Configs.
type Topic struct {
	Topic       string            `json:"topic"`
	UUID        string            `json:"uuid,omitempty"`
	Replication int               `json:"replication,omitempty"`
	Configs     map[string]string `json:"configs,omitempty"`
	Partitions  []TopicPartition  `json:"partitions,omitempty"`
}

// TopicSpec is the body of PUT /topics/T.
type TopicSpec struct {
	Partitions  int32             `json:"partitions,omitempty"`  // default 4
	Replication int16             `json:"replication,omitempty"` // default 1
	Configs     map[string]string `json:"configs,omitempty"`
}

// TopicPartition is one partition of a topic. Leader -1: none.
type TopicPartition struct {
	Partition int32   `json:"partition"`
	Leader    int32   `json:"leader"`
	Replicas  []int32 `json:"replicas"`
	ISR       []int32 `json:"isr"`
	Start     int64   `json:"start"` // -1: not known, the leader is away
	End       int64   `json:"end"`
}

// Peeked is the answer to GET /topics/T/partitions/P/messages.
type Peeked struct {
	Messages []Message `json:"messages"`
	Next     int64     `json:"next"` // offset to ask for next
	End      int64     `json:"end"`
	// Stopped is why there are no more messages before End: the log holds
	// records at Next that nobody can read (corrupt_record).
	Stopped *Error `json:"stopped,omitempty"`
}

// Health is the answer to /healthz and /readyz.
type Health struct {
	Status string   `json:"status"` // ok, or what is wrong
	Causes []string `json:"causes,omitempty"`
}
