// Package discovery is the coordination store behind the cluster: small facts
// under slash-separated keys, sessions that make some of them ephemeral, and a
// registry of live services. Two implementations pass one conformance suite:
// Consul (consul.go) and an embedded one in memory (memory.go).
//
// Sessions detect failure, they do not prove safety: whatever must be safe is
// written with a compare-and-swap or a holder check through [Store.Commit].
package discovery

import (
	"context"
	"errors"
	"time"
)

// Errors that every implementation returns, to be tested with errors.Is.
var (
	// ErrNotFound: the key has no value.
	ErrNotFound = errors.New("discovery: key not found")
	// ErrConflict: a condition of a commit did not hold; nothing was written.
	// The concrete error is a [*ConflictError].
	ErrConflict = errors.New("discovery: conflict")
	// ErrUnavailable: the store could not be reached or has no leader. For a
	// read: try again. A commit that returns it was certainly not applied.
	ErrUnavailable = errors.New("discovery: store unavailable")
	// ErrUnknownOutcome: the reply to a commit was lost, so it may or may not
	// have been applied: read again before deciding.
	ErrUnknownOutcome = errors.New("discovery: outcome of the commit is unknown")
	// ErrSessionLost: the session named in the call no longer exists.
	ErrSessionLost = errors.New("discovery: session lost")
	// ErrTooLarge: more operations or bytes than one commit takes.
	ErrTooLarge = errors.New("discovery: commit too large")
	// ErrNoClock: the store has no clock but this machine's own.
	ErrNoClock = errors.New("discovery: the store has no clock of its own")
)

// ConflictError says which operation of a commit did not hold.
type ConflictError struct {
	Op   int    // index into the ops of the commit; -1 when the store did not say
	What string // the store's own words
}

func (e *ConflictError) Error() string        { return "discovery: conflict: " + e.What }
func (e *ConflictError) Is(target error) bool { return target == ErrConflict }

// Entry is one key with its value.
type Entry struct {
	Key     string
	Value   []byte
	Version uint64 // changes with every write of another value; the argument of CAS
	Created uint64 // version at which the key was created: a fencing number for a lock key
	Session string // the session that holds the key, or ""
}

// Limits of one commit, from Consul's (128 operations since 1.14, 64 before;
// 512 KiB a request with base64): stay under the older of them.
const (
	MaxCommitOps   = 64
	MaxCommitBytes = 360 << 10 // sum of keys and values
	MaxValueBytes  = 360 << 10
)

// MaxWait is the longest that one Watch or WatchServices call blocks.
const MaxWait = 60 * time.Second

// Store is the coordination store. All methods are safe for concurrent use and
// honour their context. Keys are relative to the store's root
// ("sidestream/<cluster>/" in Consul), with no leading slash.
type Store interface {
	// Get reads one key, linearizably. ErrNotFound when absent.
	Get(ctx context.Context, key string) (Entry, error)
	// List reads all keys under prefix, sorted by key, linearizably.
	List(ctx context.Context, prefix string) ([]Entry, error)

	// Commit applies all ops atomically or none. It returns the entries as
	// written, in the order of the ops that set a value (deletes and checks
	// yield none). Errors: ErrConflict, ErrSessionLost (an Acquire by a dead
	// session), ErrUnavailable, ErrUnknownOutcome, ErrTooLarge.
	//
	// Writing a value identical to the present one is a no-op that moves no
	// version and wakes nobody, and two CAS of the same version with the same
	// value both succeed: a value written by CAS must carry its writer's nonce
	// or a counter.
	Commit(ctx context.Context, ops ...Op) ([]Entry, error)

	// Watch blocks until something under prefix (a single key is its own
	// prefix) may have changed since index, MaxWait has passed, or ctx ends;
	// then it returns what is there now and the index to pass next. Index 0
	// returns at once. Spurious returns are allowed. Callers normally use
	// [Follow], which also handles errors, indexes that go backwards and
	// the periodic re-list.
	Watch(ctx context.Context, prefix string, index uint64) ([]Entry, uint64, error)

	// NewSession creates a session with the store's TTL and no health checks,
	// and keeps it renewed until Destroy, or until the store says it is lost.
	NewSession(ctx context.Context, name string) (Session, error)
	// DestroySession ends another's session (suspicion): its keys are deleted.
	// Destroying one that is gone is no error.
	DestroySession(ctx context.Context, id string) error

	// Register makes a service visible with a TTL check beaten each second,
	// and registers again when the registry forgot it, until Deregister.
	Register(ctx context.Context, s Service) (Registration, error)
	// WatchServices is Watch for the instances of a service, passing or not,
	// without those that another cluster registered. Ids are the registrant's
	// own, whatever the registry calls them.
	WatchServices(ctx context.Context, name string, index uint64) ([]Instance, uint64, error)

	// Clock asks what time it is by the clock of another machine, to the second
	// and up to the call's own duration late. ErrNoClock where the store runs on
	// this machine, whose clock it then has.
	Clock(ctx context.Context) (time.Time, error)

	// Cluster is the name of the cluster whose store this is. The keys and the
	// services of others that share the registry are not to be seen, except by
	// Neighbours.
	Cluster() string
	// Neighbours tells which other clusters share the registry, and which
	// instances of a service they registered.
	Neighbours(ctx context.Context, service string) (Neighbours, error)

	// Close stops everything that the store runs (renewals and beats
	// included, without destroying sessions) and waits for it.
	Close() error
}

// Ownership is how sure the holder of a session may be that it still lives.
type Ownership int

const (
	// Proven: the last successful renewal was sent less than the fence
	// deadline (one TTL) ago by the monotonic clock; the store expires a
	// session at the earliest one TTL, and in Consul two, after it.
	Proven Ownership = iota
	// Unproven: no renewal succeeded since the fence deadline, and the store
	// has not said that the session is gone.
	Unproven
	// Lost: the store said that the session is gone. Final.
	Lost
)

func (o Ownership) String() string {
	return [...]string{"proven", "unproven", "lost"}[o]
}

// Session is a lease on life: keys acquired with it are deleted when it ends.
type Session interface {
	ID() string
	// Ownership is computed now from the monotonic clock; it never blocks.
	Ownership() Ownership
	// Age is the time since the last successful renewal was sent.
	Age() time.Duration
	// Lost is closed once the store said that the session is gone.
	Lost() <-chan struct{}
	// Destroy stops the renewals and ends the session. Release or delete its
	// keys first. Safe to call twice.
	Destroy(ctx context.Context) error
}

// Service is what is registered.
type Service struct {
	ID      string // unique in the cluster, e.g. "sidestream-broker-main-1"
	Name    string // ServiceBroker or ServiceSidecar, or a foreign name
	Address string
	Port    int
	Meta    map[string]string
}

// Instance is a registered service with its health.
type Instance struct {
	Service
	Node    string
	Cluster string // name of the cluster that registered it; "": it does not say, as nobody's but Sidestream's does, nor that of an older version
	Passing bool   // its own check and its node's are both passing (or warning)
	Beating bool   // its own check is, whatever its node's says
}

// Registration keeps one service alive in the registry.
type Registration interface {
	// LongestGap is the longest time between two accepted beats (or since the
	// last one) that touches the last window. One whose own beats had gaps
	// must not suspect others: it may have been paused itself.
	LongestGap(window time.Duration) time.Duration
	Deregister(ctx context.Context) error
}
