package consume

import (
	"context"
	"errors"
	"fmt"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

func apiError(code api.Code, format string, args ...any) *api.Error {
	return api.NewError(code, fmt.Sprintf(format, args...))
}

func badRequest(format string, args ...any) *api.Error {
	return apiError(api.CodeBadRequest, format, args...)
}

// isCode says whether an error is of a code.
func isCode(err error, code api.Code) bool {
	return errors.Is(err, &api.Error{Code: code})
}

// storeError tells a caller that the coordination store could not do its part.
func storeError(what string, err error) *api.Error {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		return e
	case errors.Is(err, discovery.ErrUnavailable), errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apiError(api.CodeStoreUnavailable, "%s: the coordination store cannot be reached; try again", what)
	case errors.Is(err, discovery.ErrUnknownOutcome):
		return apiError(api.CodeUnknownOutcome, "%s: the coordination store did not answer, so it may or may not have been done; repeating it is safe", what)
	}
	return apiError(api.CodeInternal, "%s: %v", what, err)
}

// brokerError is the error of a call of Upstream as an application sees it.
func brokerError(what string, err error) *api.Error {
	var e *api.Error
	var partial *upstream.PartialError
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &partial):
		return apiError(api.CodeBrokersUnavailable, "%s: %v", what, partial)
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return apiError(api.CodeBrokersUnavailable, "%s: the brokers did not answer in time", what)
	}
	return apiError(api.CodeInternal, "%s: %v", what, err)
}

// missingPartition turns the answer of one of Upstream's offset calls into an
// error for one partition: that of others does not matter.
func missingPartition(offsets map[int32]int64, partition int32, err error) error {
	if _, ok := offsets[partition]; ok {
		return nil
	}
	if err != nil {
		return err
	}
	return fmt.Errorf("partition %d: no offset was told", partition)
}

// brokerOrStore is the error of a step that asks both.
func brokerOrStore(what string, err error) error {
	var e *api.Error
	var partial *upstream.PartialError
	if errors.As(err, &e) || errors.As(err, &partial) {
		return brokerError(what, err)
	}
	return fmt.Errorf("%s: %w", what, err)
}

func isNotFound(err error) bool { return errors.Is(err, discovery.ErrNotFound) }

func errNoGroup(group string) *api.Error {
	return apiError(api.CodeGroupNotFound, "group %s does not exist: its first pull, or PUT /groups/%s, makes it", group, group)
}

func errDraining() *api.Error {
	return apiError(api.CodeDraining, "this sidecar is shutting down: pull again from the one that follows it")
}

func errLeaseLost(why string) *api.Error {
	return apiError(api.CodeLeaseLost, "%s: the message is (or will be) delivered again", why)
}
