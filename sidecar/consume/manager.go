// Package consume serves consumer groups to the applications of one host.
//
// Applications pull messages under a lease and acknowledge them; the [Manager]
// does the rest: it joins a group when an application pulls and leaves it when
// none does, plans the group where this sidecar holds the planner's lock,
// follows its own assignment, owns partitions one at a time through owner locks
// and generations, reads them ahead from the brokers, and remembers what was
// acknowledged: on local disk before it answers, in the coordination store soon
// after.
package consume

import (
	"context"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
	"sidestream/sidecar/upstream"
)

// Upstream is what consuming needs of the brokers: *upstream.Upstream.
type Upstream interface {
	Client(opts ...kgo.Opt) (*kgo.Client, error)
	Topic(ctx context.Context, name string) (upstream.Topic, error)
	Refresh(ctx context.Context, name string) (upstream.Topic, error)
	StartOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	EndOffsets(ctx context.Context, topic string) (map[int32]int64, error)
	OffsetsAt(ctx context.Context, topic string, t time.Time) (map[int32]int64, error)
	CreateTopic(ctx context.Context, name string, spec api.TopicSpec) (upstream.Topic, error)
}

// Deps is what a Manager works with. It closes none of them.
type Deps struct {
	ID      string // of this sidecar
	Nonce   string // of its data folder
	Service string // ID of its registration; "": others cannot suspect it
	Store   discovery.Store
	// Session is the sidecar's one session: a new one after one was lost, nil
	// while there is none.
	Session func() discovery.Session
	// Registration is the sidecar's own. It may be nil or return nil: then this
	// sidecar suspects no other, and goes by its session for exclusive=strict.
	Registration func() discovery.Registration
	Upstream     Upstream
	Local        *offsets.Local
	Checkpointer *offsets.Checkpointer // the caller runs and closes it
	Logger       *zap.Logger
	Registerer   prometheus.Registerer
	AutoCreate   bool // a pull of an unknown topic creates it
}

// PullRequest asks for messages.
type PullRequest struct {
	Group, Topic string
	Max          int           // 0: the default
	Wait         time.Duration // how long to wait for the first message
	Lease        time.Duration // 0: the group's
	From         string        // "" or where the group begins: earliest, latest, RFC 3339; must not contradict the group
	AutoAck      bool          // count as acknowledged when handed out; no receipts
	Ack, Nack    []string      // receipts to settle first
	Alive        func() bool   // whether the application is still there; nil: yes
}

// Delivery is the answer to a pull.
type Delivery struct {
	api.Pulled
	// Return takes the messages back with no attempt spent. Call it when the
	// answer could not be written; it does nothing for messages that were
	// settled meanwhile, and may be called on an empty delivery.
	Return func()
}
