// Package upstream is the Kafka side that publishing and consuming share: where
// the brokers are, clients that follow them, and a short-lived cache of what
// the brokers say of their topics. It works with any Kafka-compatible cluster;
// nothing in it depends on the brokers being Sidestream's.
package upstream

import (
	"context"
	"errors"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// Upstream is safe for concurrent use.
type Upstream struct{}

// New prepares clients; it does not wait for any broker. With cfg.Bootstrap
// the store is not used and may be nil.
func New(cfg Config, store discovery.Store, log *zap.Logger) (*Upstream, error) {
	return nil, errors.ErrUnsupported
}

// Close stops following the brokers. Clients from Client are the callers'.
func (u *Upstream) Close() {}

// Client makes a kgo client whose seeds follow the brokers; the caller closes it.
func (u *Upstream) Client(opts ...kgo.Opt) (*kgo.Client, error) { return nil, errors.ErrUnsupported }

// Admin is a shared client for admin requests. Do not close it.
func (u *Upstream) Admin() *kadm.Client { return nil }

// Topic is what the brokers say of a topic, from memory when that is no older
// than a few seconds. Errors are *api.Error: topic_not_found at once for one
// that is not there; brokers_unavailable when no broker answered within ctx
// and the request timeout; bad_request for an impossible name; forbidden.
func (u *Upstream) Topic(ctx context.Context, name string) (Topic, error) {
	return Topic{}, errors.ErrUnsupported
}

// Refresh is Topic past the memory.
func (u *Upstream) Refresh(ctx context.Context, name string) (Topic, error) {
	return Topic{}, errors.ErrUnsupported
}

// Topics lists all topics, sorted by name.
func (u *Upstream) Topics(ctx context.Context) ([]Topic, error) {
	return nil, errors.ErrUnsupported
}

// StartOffsets are the log start offsets by partition. Partitions whose leader
// is away are left out and reported by a *PartialError beside the answer;
// errors otherwise as of Topic. The same holds for EndOffsets and OffsetsAt.
func (u *Upstream) StartOffsets(ctx context.Context, topic string) (map[int32]int64, error) {
	return nil, errors.ErrUnsupported
}

// EndOffsets are the ends for a read_committed reader: last stable offsets.
func (u *Upstream) EndOffsets(ctx context.Context, topic string) (map[int32]int64, error) {
	return nil, errors.ErrUnsupported
}

// OffsetsAt are the first offsets whose timestamp is at or after t; the end
// offset where there is none.
func (u *Upstream) OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error) {
	return nil, errors.ErrUnsupported
}

// CreateTopic creates a topic (default 4 partitions, the brokers' default
// replication, else 1) and waits until its partitions have leaders or ctx
// ends. Errors: topic_exists, bad_request, brokers_unavailable,
// unknown_outcome.
func (u *Upstream) CreateTopic(ctx context.Context, name string, spec api.TopicSpec) (Topic, error) {
	return Topic{}, errors.ErrUnsupported
}

// Seeds are the addresses from which brokers are looked for now, for people.
func (u *Upstream) Seeds() []string { return nil }
