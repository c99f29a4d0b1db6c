package upstream

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// DefaultPartitions is how many partitions a topic gets that asks for none.
const DefaultPartitions = 4

// MayAutoCreate tells whether a topic may be made because it was named: not
// one whose name is of those that Kafka's brokers give to their own topics
// (__consumer_offsets), which would find an empty one in place of theirs.
// CreateTopic makes those too.
func MayAutoCreate(name string) bool { return !strings.HasPrefix(name, "__") }

// CreateTopic creates a topic (4 partitions unless spec says otherwise; as
// many replicas as the brokers' default, else 1) and waits until all its
// partitions have leaders or ctx ends. Errors are *api.Error: topic_exists,
// bad_request, forbidden, brokers_unavailable, unknown_outcome.
func (u *Upstream) CreateTopic(ctx context.Context, name string, spec api.TopicSpec) (Topic, error) {
	if err := discovery.CheckName("topic", name); err != nil {
		return Topic{}, api.NewError(api.CodeBadRequest, err.Error())
	}
	if spec.Partitions < 0 || spec.Replication < 0 {
		return Topic{}, api.NewError(api.CodeBadRequest, "partitions and replication must be positive, or left out for the default")
	}
	if spec.Partitions == 0 {
		spec.Partitions = DefaultPartitions
	}
	replication := spec.Replication
	if replication == 0 {
		replication = -1 // the brokers' default (KIP-464, Kafka 2.4)
	}
	rctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	err := u.create(rctx, name, spec, replication)
	if spec.Replication == 0 && (errors.Is(err, kerr.InvalidReplicationFactor) || errors.Is(err, kerr.UnsupportedVersion)) {
		err = u.create(rctx, name, spec, 1)
	}
	if err != nil {
		told := u.createError(name, err)
		if told.Retryable { // not all that a broker says of its own connections is in what is told
			u.log.Warn("a topic could not be made", zap.String("topic", name), zap.String("code", string(told.Code)), zap.Error(u.Cause(err)))
		}
		return Topic{}, told
	}
	return u.awaitLeaders(ctx, name)
}

// brokerError is an error code in an answer, with the broker's own words.
type brokerError struct {
	code  error
	words string
}

func (e *brokerError) Error() string {
	if e.words != "" {
		return e.words
	}
	return e.code.Error()
}
func (e *brokerError) Unwrap() error { return e.code }

func (u *Upstream) create(ctx context.Context, name string, spec api.TopicSpec, replication int16) error {
	req := kmsg.NewPtrCreateTopicsRequest()
	req.TimeoutMillis = int32(u.cfg.RequestTimeout.Milliseconds())
	rt := kmsg.NewCreateTopicsRequestTopic()
	rt.Topic, rt.NumPartitions, rt.ReplicationFactor = name, spec.Partitions, replication
	for k, v := range spec.Configs {
		rc := kmsg.NewCreateTopicsRequestTopicConfig()
		rc.Name, rc.Value = k, &v
		rt.Configs = append(rt.Configs, rc)
	}
	req.Topics = append(req.Topics, rt)
	resp, err := req.RequestWith(ctx, u.cl)
	if err != nil {
		return err
	}
	for _, t := range resp.Topics {
		if err := kerr.ErrorForCode(t.ErrorCode); err != nil {
			e := &brokerError{code: err}
			if t.ErrorMessage != nil {
				e.words = *t.ErrorMessage
			}
			return e
		}
	}
	return nil
}

func (u *Upstream) createError(name string, err error) *api.Error {
	var be *brokerError
	switch {
	case errors.Is(err, kerr.TopicAlreadyExists):
		return api.NewError(api.CodeTopicExists, fmt.Sprintf("topic %s exists already", name))
	case errors.Is(err, kerr.InvalidTopicException), errors.Is(err, kerr.InvalidPartitions),
		errors.Is(err, kerr.InvalidReplicationFactor), errors.Is(err, kerr.InvalidConfig),
		errors.Is(err, kerr.InvalidRequest), errors.Is(err, kerr.PolicyViolation),
		errors.Is(err, kerr.UnsupportedVersion):
		return api.NewError(api.CodeBadRequest, fmt.Sprintf("the brokers refuse topic %s: %v", name, err))
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return api.NewError(api.CodeForbidden, fmt.Sprintf("the brokers do not allow this sidecar to create topic %s", name))
	case errors.Is(err, kerr.RequestTimedOut):
		// What a broker says beside it is of its own connections, and misleads
		// who reads it here.
		return unsure(name, "the brokers gave up on it")
	case errors.Is(err, kerr.CoordinatorNotAvailable):
		e := api.NewError(api.CodeStoreUnavailable, fmt.Sprintf("topic %s was not created: the brokers cannot reach the coordination store", name))
		e.RetryAfterMillis = retryAfterMillis
		return e
	case errors.As(err, &be):
		return unavailable(fmt.Sprintf("topic %s was not created: %v", name, err))
	case IsDial(err):
		return u.unreachable(err) // it never left
	}
	return unsure(name, err.Error())
}

func unsure(name, why string) *api.Error {
	return api.NewError(api.CodeUnknownOutcome, fmt.Sprintf("topic %s may or may not have been created (%s): ask again, which is safe", name, why))
}

// awaitLeaders returns the topic once all its partitions have leaders; when
// ctx ends first, the topic as it is then: it exists all the same.
func (u *Upstream) awaitLeaders(ctx context.Context, name string) (Topic, error) {
	for {
		t, err := u.Refresh(ctx, name)
		if err == nil && led(t) {
			return t, nil
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			if err == nil {
				return t, nil
			}
			return Topic{}, unavailable(fmt.Sprintf("topic %s was created; its leaders are not known yet: %v", name, err))
		case <-u.ctx.Done():
			return Topic{}, unavailable("the sidecar stops")
		}
	}
}

func led(t Topic) bool {
	for _, p := range t.Partitions {
		if p.Leader < 0 {
			return false
		}
	}
	return len(t.Partitions) > 0
}
