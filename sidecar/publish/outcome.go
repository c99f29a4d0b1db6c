package publish

import (
	"errors"
	"fmt"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// verdict is what the error code of a produce answer says to the caller.
type verdict struct {
	err  *kerr.Error
	code api.Code
	// once: it holds for the attempt that it answers, and another may be taken.
	once bool
	// why it proves that this attempt did not bring the record into the log.
	// What is not in the table proves nothing: unknown_outcome. Nor does any of
	// it say a word of an attempt before, which may have been written: the
	// topic's limits, its policy and rights may have changed since.
	why string
}

// verdicts is the one table from Kafka's error codes to ours.
var verdicts = []verdict{
	{kerr.MessageTooLarge, api.CodeMessageTooLarge, false, "the size is checked before the append"},
	{kerr.RecordListTooLarge, api.CodeMessageTooLarge, false, "the same, for a batch larger than a segment"},
	{kerr.InvalidRecord, api.CodeBadRecord, false, "the topic refuses such records before the append (no key where compaction needs one)"},
	{kerr.InvalidTimestamp, api.CodeBadRecord, false, "the timestamp is outside of what the topic takes, checked before the append"},
	{kerr.PolicyViolation, api.CodeBadRecord, false, "the broker's policy refuses it, checked before the append"},
	{kerr.InvalidTopicException, api.CodeBadRequest, false, "a topic of that name cannot be there"},
	{kerr.TopicAuthorizationFailed, api.CodeForbidden, false, "refused before the append"},
	{kerr.ClusterAuthorizationFailed, api.CodeForbidden, false, "refused before the append"},
	{kerr.UnsupportedCompressionType, api.CodeInternal, false, "the broker cannot read the batch, so cannot have appended it"},
	{kerr.UnsupportedForMessageFormat, api.CodeInternal, false, "the same"},
	{kerr.CorruptMessage, api.CodeBrokersUnavailable, true, "the checksum failed on arrival; the append did not happen"},
	{kerr.NotLeaderForPartition, api.CodeBrokersUnavailable, true, "only a leader appends"},
	{kerr.FencedLeaderEpoch, api.CodeBrokersUnavailable, true, "only a leader appends"},
	{kerr.UnknownLeaderEpoch, api.CodeBrokersUnavailable, true, "only a leader appends"},
	{kerr.NotEnoughReplicas, api.CodeBrokersUnavailable, true, "checked before the append (the code for after it is another)"},
	{kerr.ThrottlingQuotaExceeded, api.CodeBrokersUnavailable, true, "refused before the append"},
}

// refusal says what is to be done about a batch that a broker certainly did not
// append at this attempt.
type refusal int

const (
	refusedNot      refusal = iota // it may have been appended, or is refused for good
	refusedNow                     // another broker, or the same one later, may take it
	refusedOne                     // for one of its records
	refusedSequence                // for its sequence number
)

func refusalOf(err error) refusal {
	is := func(errs ...*kerr.Error) bool {
		return slices.ContainsFunc(errs, func(e *kerr.Error) bool { return errors.Is(err, e) })
	}
	switch {
	case is(kerr.OutOfOrderSequenceNumber, kerr.UnknownProducerID, kerr.InvalidProducerEpoch, kerr.InvalidProducerIDMapping):
		return refusedSequence
	case is(kerr.MessageTooLarge, kerr.RecordListTooLarge, kerr.InvalidRecord, kerr.InvalidTimestamp, kerr.PolicyViolation):
		return refusedOne
	}
	for _, v := range verdicts {
		if errors.Is(err, v.err) {
			if v.once {
				return refusedNow
			}
			return refusedNot
		}
	}
	if notAppended(err) {
		return refusedNow
	}
	return refusedNot
}

// outcome is what the error of a produce answer means for the caller of a
// message, if there was no attempt before.
func outcome(err error, topic string) *api.Error {
	for _, v := range verdicts {
		if errors.Is(err, v.err) {
			if v.code == api.CodeBrokersUnavailable {
				return away(fmt.Sprintf("the broker did not take the message for topic %s: %v", topic, err))
			}
			return api.NewError(v.code, fmt.Sprintf("the broker refuses the message for topic %s: %v", topic, err))
		}
	}
	if notAppended(err) {
		return away(fmt.Sprintf("the broker did not take the message for topic %s: %v", topic, err))
	}
	return unknown(topic, err.Error())
}

// notAppended says whether the broker says of an attempt, in words beside the
// code, that nothing of it was appended.
func notAppended(err error) bool {
	said, ok := errors.AsType[*upstream.BrokerError](err)
	return ok && said.NotAppended
}

func unknown(topic, why string) *api.Error {
	return api.NewError(api.CodeUnknownOutcome,
		fmt.Sprintf("the message for topic %s may or may not be written: %s", topic, why))
}
