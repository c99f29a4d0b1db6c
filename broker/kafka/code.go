package kafka

import (
	"errors"
	"strings"
	"syscall"

	"sidestream/broker/cluster"
	"sidestream/broker/commitlog"
	"sidestream/broker/record"
)

// Error codes of the Kafka protocol that this server answers with (Kafka protocol guide, "Error Codes").
const (
	codeUnknownServerError      = -1
	codeNone                    = 0
	codeOffsetOutOfRange        = 1
	codeCorruptMessage          = 2
	codeUnknownTopicOrPartition = 3
	codeLeaderNotAvailable      = 5
	codeNotLeaderOrFollower     = 6
	codeRequestTimedOut         = 7
	codeMessageTooLarge         = 10
	codeOffsetMetadataTooLarge  = 12
	codeCoordinatorNotAvailable = 15
	codeInvalidTopic            = 17
	codeInvalidRequiredAcks     = 21
	codeIllegalGeneration       = 22
	codeInvalidGroupID          = 24
	codeClusterAuthorization    = 31
	codeInvalidTimestamp        = 32
	codeUnsupportedVersion      = 35
	codeTopicAlreadyExists      = 36
	codeInvalidPartitions       = 37
	codeInvalidReplication      = 38
	codeInvalidAssignment       = 39
	codeInvalidConfig           = 40
	codeInvalidRequest          = 42
	codeOutOfOrderSequence      = 45
	codeDuplicateSequence       = 46
	codeInvalidProducerEpoch    = 47
	codeSecurityDisabled        = 54
	codeKafkaStorageError       = 56
	codeGroupIDNotFound         = 69
	codeFencedLeaderEpoch       = 74
	codeUnknownLeaderEpoch      = 75
	codeUnsupportedCompression  = 76
	codeInvalidRecord           = 87
	codeUnknownTopicID          = 100
	codeUnsupportedEndpointType = 115
)

// Errors of the serving side that have a code of their own on the wire. A Backend and its partitions return them,
// wrapped or bare.
var (
	// ErrNotLeader: the partition exists, but this broker does not lead it.
	ErrNotLeader = errors.New("this broker does not lead the partition")
	// ErrUnknownPartition: no such topic or partition.
	ErrUnknownPartition = errors.New("unknown topic or partition")
	// ErrUnknownTopicID: no topic with that UUID.
	ErrUnknownTopicID = errors.New("unknown topic id")
	// ErrOutOfOrder: an idempotent producer's batch left a gap in its sequence.
	ErrOutOfOrder = errors.New("sequence number out of order: a batch before this one is missing")
	// ErrDuplicateSequence: an old batch of an idempotent producer came again, older than the five that are remembered.
	ErrDuplicateSequence = errors.New("duplicate sequence number: the batch was appended long ago")
	// ErrStaleProducer: a producer with this id and a higher epoch has written.
	ErrStaleProducer = errors.New("producer epoch is older than one seen before")
	// ErrFencedEpoch: the client's leader epoch is older than the partition's.
	ErrFencedEpoch = errors.New("leader epoch of the client is older than the broker's")
	// ErrUnknownEpoch: the client's leader epoch is newer than the partition's.
	ErrUnknownEpoch = errors.New("leader epoch of the client is newer than the broker's")
	// ErrStorage: the log cannot be written or read now.
	ErrStorage = errors.New("storage error")
)

// codes maps errors to the wire; the first match wins. This is the only such table.
var codes = []struct {
	err  error
	code int16
}{
	{ErrNotLeader, codeNotLeaderOrFollower},
	{ErrUnknownPartition, codeUnknownTopicOrPartition},
	{ErrUnknownTopicID, codeUnknownTopicID},
	{ErrOutOfOrder, codeOutOfOrderSequence},
	{ErrDuplicateSequence, codeDuplicateSequence},
	{ErrStaleProducer, codeInvalidProducerEpoch},
	{ErrFencedEpoch, codeFencedLeaderEpoch},
	{ErrUnknownEpoch, codeUnknownLeaderEpoch},
	{commitlog.ErrCorrupt, codeCorruptMessage}, // before its causes, which are those below
	{record.ErrTooLarge, codeMessageTooLarge},
	{record.ErrTruncated, codeCorruptMessage},
	{record.ErrMagic, codeCorruptMessage},
	{record.ErrCRC, codeCorruptMessage},
	{record.ErrInvalid, codeInvalidRecord},
	{commitlog.ErrOutOfRange, codeOffsetOutOfRange},
	{commitlog.ErrOffline, codeKafkaStorageError},
	{commitlog.ErrNoSpace, codeKafkaStorageError},
	{commitlog.ErrTooLarge, codeMessageTooLarge},
	{commitlog.ErrStaleEpoch, codeNotLeaderOrFollower},
	{commitlog.ErrClosed, codeNotLeaderOrFollower},
	{cluster.ErrTopicExists, codeTopicAlreadyExists},
	{cluster.ErrUnknownTopic, codeUnknownTopicOrPartition},
	{cluster.ErrInvalidReplication, codeInvalidReplication},
	{cluster.ErrInvalidPartitions, codeInvalidPartitions},
	{cluster.ErrInvalidConfig, codeInvalidConfig},
	{cluster.ErrInvalidName, codeInvalidTopic},
	{cluster.ErrUnknownGroup, codeGroupIDNotFound},
	// Of the codes that clients retry, this one says that nothing was done, and "timed out" that nobody knows.
	{cluster.ErrUnavailable, codeCoordinatorNotAvailable},
	{cluster.ErrUnknownOutcome, codeRequestTimedOut},
	{errAcks, codeInvalidRequiredAcks},
	{errAssignment, codeInvalidAssignment},
	{errNoLeaderYet, codeLeaderNotAvailable},
	{errInvalidRequest, codeInvalidRequest},
	{errTransactions, codeClusterAuthorization},
	{errNoSecurity, codeSecurityDisabled},
	{errUnsupported, codeUnsupportedVersion},
	{errCompression, codeUnsupportedCompression},
	{errTimestamp, codeInvalidTimestamp},
	{errGroupID, codeInvalidGroupID},
	{errGeneration, codeIllegalGeneration},
	{errMetadataSize, codeOffsetMetadataTooLarge},
	{ErrStorage, codeKafkaStorageError},
	{syscall.ENOSPC, codeKafkaStorageError},
	{syscall.EDQUOT, codeKafkaStorageError},
}

// codeOf returns the wire code of err; an error that the table does not know is a server error.
func codeOf(err error) int16 {
	if err == nil {
		return codeNone
	}
	for _, c := range codes {
		if errors.Is(err, c.err) {
			return c.code
		}
	}
	return codeUnknownServerError
}

// NotAppended begins the text of a produce error beside which nothing of the batch is in the log, nor ever will be of
// this attempt. KAFKA_STORAGE_ERROR leaves that open, and no code says it that every client repeats. Sidecars look for it
// (sidecar/publish, outcome.go), and so may any client: it never changes.
const NotAppended = "not appended: "

// maxText bounds the bytes of an error's text. Names of any length are quoted in them, and before the flexible versions
// the length of a string is a number of two bytes, which a longer one would make a lie.
const maxText = 4 << 10

// text returns err's text for a nullable string of an answer, nil when there is no error.
func text(err error) *string {
	if err == nil {
		return nil
	}
	s := err.Error()
	if len(s) > maxText {
		s = s[:maxText/2] + " […] " + s[len(s)-maxText/2:]
	}
	s = strings.ToValidUTF8(s, "\uFFFD") // cut in the middle of a character, or a client's bytes
	return &s
}

// BatchError refuses a batch and says which of its records are to blame. On the wire it is INVALID_RECORD.
type BatchError struct {
	Text    string
	Records []RecordError
}

// RecordError is what is wrong with one record of a batch.
type RecordError struct {
	Index int32 // in the batch, from 0
	Text  string
}

func (e *BatchError) Error() string { return e.Text }

// Unwrap says what kind of error it is.
func (e *BatchError) Unwrap() error { return record.ErrInvalid }
