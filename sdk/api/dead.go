package api

import "time"

// DeadLetter is a message that a group gave up, with what is said of it. ID is
// the same in each copy of a letter: there may be two when a sidecar died
// between writing the letter and noting that it did.
type DeadLetter struct {
	ID         string    `json:"id"`
	Reason     string    `json:"reason"` // max_attempts, window_full, undecodable or oversized
	Group      string    `json:"group"`
	Topic      string    `json:"topic"` // where the message was
	Partition  int32     `json:"partition"`
	Offset     int64     `json:"offset"`
	Until      int64     `json:"until"`                 // one past its last offset: Offset+1, but of records that nobody can read and of a batch that takes too much memory
	Attempts   int       `json:"attempts"`              // how often it was handed out
	Error      string    `json:"error,omitempty"`       // what the last nack said, or why it cannot be read
	FirstError string    `json:"first_error,omitempty"` // what the first said, where that is known and another
	At         time.Time `json:"at"`                    // when it was given up
	Timestamp  int64     `json:"ts"`                    // of the message, Unix milliseconds
	LeftOut    int       `json:"left_out,omitempty"`    // bytes of the message that did not fit into the letter
	Redriven   bool      `json:"redriven,omitempty"`    // it was brought back, or discarded
	// Message is the letter's own place in the topic of dead letters, with the
	// key, value and headers of the message. Of records that nobody can read
	// the value is their bytes, as far as they could be had.
	Message Message `json:"message"`
}

// DeadLetters is the answer to GET /groups/G/topics/T/dead.
type DeadLetters struct {
	Topic   string       `json:"topic"` // of the dead letters
	Letters []DeadLetter `json:"letters"`
	// Next goes on where this answer ends, as ?after=; empty at the end. There
	// may be letters behind an answer without any: a topic that several groups
	// share is looked through piece by piece.
	Next string `json:"next,omitempty"`
	// Unread are partitions whose leader is away: their letters are missing.
	Unread []int32 `json:"unread,omitempty"`
}

// RedriveRequest is the optional body of POST /groups/G/topics/T/dead/redrive.
type RedriveRequest struct {
	Max     int      `json:"max,omitempty"`     // letters at most, default 100, up to 10000
	IDs     []string `json:"ids,omitempty"`     // these letters only, at most 1000
	Reason  string   `json:"reason,omitempty"`  // letters of this reason only
	To      string   `json:"to,omitempty"`      // topic, in place of the one where the messages were
	Discard bool     `json:"discard,omitempty"` // count them as done and write nothing
	Dead    string   `json:"dead,omitempty"`    // topic of the letters, in place of the group's
	After   string   `json:"after,omitempty"`   // Next of an earlier answer
}

// Redriven is the answer: 200, or 207 when it stopped at an Error after some.
type Redriven struct {
	Topic    string `json:"topic"`    // of the dead letters
	Redriven int    `json:"redriven"` // written to where they came from, or discarded
	Copies   int    `json:"copies"`   // further copies of those, which were left out
	// Kept are letters that cannot be brought back and stay, with the reason:
	// discard them when they are of no use.
	Kept []KeptLetter `json:"kept,omitempty"`
	// NotFound are those of the request's IDs of which this answer met no letter;
	// of a chain of answers, those that all of them name are of no letter.
	NotFound []string `json:"not_found,omitempty"`
	// Next goes on where this answer ends, as After; empty when all letters were
	// seen that were there when the first answer of the chain began. Those that
	// come later, of messages that fail once more, are not among them.
	Next   string  `json:"next,omitempty"`
	Unread []int32 `json:"unread,omitempty"` // partitions whose leader is away: their letters are missing
	Error  *Error  `json:"error,omitempty"`
}

// KeptLetter is a letter that could not be brought back, and why.
type KeptLetter struct {
	ID    string `json:"id"`
	Error *Error `json:"error"`
}
