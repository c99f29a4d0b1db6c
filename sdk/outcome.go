package sdk

import (
	"errors"
	"net"

	"sidestream/sdk/api"
)

// What errors.Is finds in every error of a publish, and in that of each result of
// a batch: of an error that is not nil it is always exactly one of the two.
//
//	_, err := c.Publish(ctx, "orders", m)
//	switch {
//	case err == nil: // written
//	case errors.Is(err, sdk.ErrNotWritten): // certainly not: publish it again, or tell somebody
//	case errors.Is(err, sdk.ErrUnknown): // a repeat may write it twice, unless it had an IdempotencyKey
//	}
var (
	ErrNotWritten = api.ErrNotWritten
	ErrUnknown    = api.ErrUnknown
)

// PublishError is the error of a publish that was not answered by a sidecar, or
// whose answer says less than is known: an attempt before it may have written.
// Err is what happened last; errors.Is and errors.As look into it too, so that an
// [*api.Error] is found.
type PublishError struct {
	Outcome api.Outcome // NotWritten or Unknown
	Err     error
}

func (e *PublishError) Error() string { return e.Err.Error() }

// Is says what the outcome is. There is no Unwrap, since what happened last may
// say of its own attempt that nothing was written.
func (e *PublishError) Is(target error) bool {
	switch target {
	case ErrNotWritten:
		return e.Outcome == api.NotWritten
	case ErrUnknown:
		return e.Outcome == api.Unknown
	}
	return errors.Is(e.Err, target)
}

// As looks into what happened.
func (e *PublishError) As(target any) bool { return errors.As(e.Err, target) }

// OutcomeOf is what the error of a publish says of its message; of a batch, what
// holds for those of its messages that have no result of their own.
func OutcomeOf(err error) api.Outcome {
	switch {
	case err == nil:
		return api.Written
	case errors.Is(err, ErrNotWritten):
		return api.NotWritten
	}
	return api.Unknown
}

// outcomeOf is what one attempt at a publish says of itself.
func outcomeOf(err error) api.Outcome {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Code.Outcome()
	}
	if op, ok := errors.AsType[*net.OpError](err); ok && op.Op == "dial" {
		return api.NotWritten // nothing was sent
	}
	// Also what is not the sidecar's: a proxy may have passed the request on.
	return api.Unknown
}

// publishError types the error of a publish, of which an attempt before the last
// may have been written.
func publishError(err error, doubt bool) error {
	if err == nil {
		return nil
	}
	if _, answered := errors.AsType[*api.Error](err); answered && !doubt {
		return err // it says all itself
	}
	o := outcomeOf(err)
	if doubt {
		o = api.Unknown
	}
	return &PublishError{Outcome: o, Err: err}
}
