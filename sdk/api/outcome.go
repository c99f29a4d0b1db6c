package api

import "errors"

// Outcome is what became of a message that was to be published. There are these
// three and no others.
type Outcome string

const (
	Written    Outcome = "written"     // it is in the log, or in the spool that was asked for
	NotWritten Outcome = "not written" // certainly, and it will not be
	Unknown    Outcome = "unknown"     // it may be written, or may still come to be
)

// What errors.Is finds in the error of a publish, of a whole request or of one
// message of a batch.
var (
	ErrNotWritten = errors.New("not written")
	ErrUnknown    = errors.New("unknown whether it is written")
)

// Outcome is what the code says of a message whose publish was answered with it.
// Unknown are unknown_outcome, internal (a fault may come after the write) and
// codes that this version does not know.
func (c Code) Outcome() Outcome {
	if _, known := codes[c]; !known || c == CodeUnknownOutcome || c == CodeInternal {
		return Unknown
	}
	return NotWritten
}

// is tells whether an outcome is that of a sentinel of this package.
func (o Outcome) is(target error) bool {
	return o == NotWritten && target == ErrNotWritten || o == Unknown && target == ErrUnknown
}
