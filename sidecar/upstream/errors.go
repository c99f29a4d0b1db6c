package upstream

import (
	"context"
	"errors"
	"fmt"
	"net"

	"github.com/twmb/franz-go/pkg/kerr"

	"sidestream/sdk/api"
)

// retryAfterMillis is what callers are told to wait when brokers are away:
// about the time in which a broker's restart or a new leader is seen.
const retryAfterMillis = 1000

func unavailable(message string) *api.Error {
	e := api.NewError(api.CodeBrokersUnavailable, message)
	e.RetryAfterMillis = retryAfterMillis
	return e
}

func corruptRecord(message string) *api.Error { return api.NewError(api.CodeCorruptRecord, message) }

func notFound(topic string) *api.Error {
	return api.NewError(api.CodeTopicNotFound, fmt.Sprintf("topic %s does not exist: create it with PUT /topics/%s", topic, topic))
}

// Cause is the error of a request with what its client kept to itself: that the time
// was over says nothing of the connections that failed meanwhile.
func (u *Upstream) Cause(err error) error {
	if !errors.Is(err, context.DeadlineExceeded) && !errors.Is(err, context.Canceled) {
		return err
	}
	u.dials.mu.Lock()
	last := u.dials.last
	u.dials.mu.Unlock()
	if last == nil {
		return err
	}
	return fmt.Errorf("%w (the last connection failed: %w)", err, last)
}

// unreachable is the error of a request that no broker answered.
func (u *Upstream) unreachable(err error) *api.Error {
	err = u.Cause(err)
	if errors.Is(err, kerr.SaslAuthenticationFailed) || errors.Is(err, kerr.UnsupportedSaslMechanism) || errors.Is(err, kerr.IllegalSaslState) {
		return unavailable("the brokers refuse the login (kafka.sasl): " + err.Error())
	}
	switch {
	case errors.Is(err, errNoBroker) && u.cfg.Ours():
		return unavailable(u.noneRegistered())
	case errors.Is(err, errNoBroker):
		return unavailable(fmt.Sprintf("no broker is registered as service %q", u.cfg.Service))
	case len(u.cfg.Bootstrap) > 0:
		return unavailable(fmt.Sprintf("no broker answered (bootstrap %v): %v", u.cfg.Bootstrap, err))
	}
	return unavailable(fmt.Sprintf("no broker of service %q answered: %v", u.cfg.Service, err))
}

// noneRegistered says that no broker of our cluster is registered, and how many
// are that might be.
func (u *Upstream) noneRegistered() string {
	text := fmt.Sprintf("no broker of consul.cluster %q is registered as service %q", u.store.Cluster(), u.cfg.Service)
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.hidden > 0 {
		text += fmt.Sprintf("; %d of an older version are, which do not say the name of their cluster and are not known to be of this one", u.hidden)
	}
	return text
}

// topicError is what the error code of a topic in an answer means; nil for none.
func topicError(topic string, code int16) error { return topicErrorSaid(topic, code, nil) }

// topicErrorSaid is topicError with a broker's words.
func topicErrorSaid(topic string, code int16, words *string) error {
	err := Said(code, words)
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return notFound(topic)
	case errors.Is(err, kerr.InvalidTopicException):
		return api.NewError(api.CodeBadRequest, fmt.Sprintf("the brokers refuse the topic name %q", topic))
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return api.NewError(api.CodeForbidden, fmt.Sprintf("the brokers do not allow this sidecar to use topic %s", topic))
	case errors.Is(err, kerr.LeaderNotAvailable):
		return unavailable(fmt.Sprintf("topic %s has no leaders yet", topic))
	case kerr.IsRetriable(err):
		return unavailable(fmt.Sprintf("topic %s: %v", topic, err))
	}
	return api.NewError(api.CodeInternal, fmt.Sprintf("topic %s: %v", topic, err))
}

// IsDial tells that a request failed before a byte of it was sent.
func IsDial(err error) bool {
	var op *net.OpError
	return errors.As(err, &op) && op.Op == "dial"
}
