package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptrace"
	"slices"
	"strings"
	"sync/atomic"

	capi "github.com/hashicorp/consul/api"
)

// notAppliedTexts are in those errors of Consul (status 500) which prove that
// a write did not reach the log: no server had taken it for the leader's.
var notAppliedTexts = []string{
	"No cluster leader",         // agent/structs.ErrNoLeader: "always safe to retry"
	"node is not the leader",    // raft.ErrNotLeader: refused before the append
	"No known Consul servers",   // a client agent without servers
	"rpc error getting client:", // no connection to the server
}

// readError maps the error of a call that changes nothing, or may be repeated.
func readError(ctx context.Context, err error) error {
	if err == nil {
		return nil
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrUnavailable, ctx.Err())
	}
	var status *statusError
	if errors.As(err, &status) {
		switch {
		case status.Code == http.StatusRequestEntityTooLarge:
			return fmt.Errorf("%w: %w", ErrTooLarge, status)
		case status.Code == http.StatusForbidden, status.Code == http.StatusUnauthorized:
			return fmt.Errorf("discovery: Consul refuses the ACL token: %w", status)
		case status.Code == http.StatusTooManyRequests, status.Code >= 500:
			return fmt.Errorf("%w: %w", ErrUnavailable, status)
		}
		return fmt.Errorf("discovery: %w", status)
	}
	var other capi.StatusError
	if errors.As(err, &other) {
		return fmt.Errorf("discovery: %w", other)
	}
	return fmt.Errorf("%w: %w", ErrUnavailable, err)
}

// commitError maps the error of a commit: only what is certainly not applied
// may be called unavailable.
func commitError(ctx context.Context, sent bool, err error) error {
	if err == nil {
		return nil
	}
	var status *statusError
	if errors.As(err, &status) && (status.Code < 500 || certainlyNotApplied(status.Body)) {
		return readError(context.WithoutCancel(ctx), err)
	}
	var op *net.OpError
	if !sent || errors.As(err, &op) && op.Op == "dial" {
		return readError(ctx, err)
	}
	if ctx.Err() != nil {
		return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
	}
	return fmt.Errorf("%w: %w", ErrUnknownOutcome, err)
}

func certainlyNotApplied(body string) bool {
	for _, text := range notAppliedTexts {
		if strings.Contains(body, text) {
			return true
		}
	}
	return false
}

// traceSent tells whether a request under the context ever had a connection:
// before that nothing of it can have been sent.
func traceSent(ctx context.Context) (context.Context, *atomic.Bool) {
	sent := new(atomic.Bool)
	return httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{
		GotConn: func(httptrace.GotConnInfo) { sent.Store(true) },
	}), sent
}

// verdict is what the errors of a transaction that was rolled back mean.
type verdict struct {
	err     error
	delayed bool // only a lock delay stood in the way
}

// judge reads Consul's words about a transaction that it rolled back; opOf maps
// its operations to ours. The first operation that did not hold decides.
func judge(errs capi.TxnErrors, opOf []int) verdict {
	if len(errs) == 0 {
		return verdict{err: &ConflictError{Op: -1, What: "Consul rolled the transaction back without a reason"}}
	}
	first := errs[0]
	switch {
	case strings.HasPrefix(first.What, "invalid session "):
		return verdict{err: fmt.Errorf("%w: %s", ErrSessionLost, first.What)}
	case strings.HasPrefix(first.What, "Permission denied"), strings.HasPrefix(first.What, "ACL not found"):
		return verdict{err: fmt.Errorf("discovery: Consul refuses the ACL token: %s", first.What)}
	}
	op := -1
	if first.OpIndex >= 0 && first.OpIndex < len(opOf) {
		op = opOf[first.OpIndex]
	}
	return verdict{
		err: &ConflictError{Op: op, What: first.What},
		delayed: !slices.ContainsFunc(errs, func(e *capi.TxnError) bool {
			return !strings.HasSuffix(e.What, "due to lock delay")
		}),
	}
}
