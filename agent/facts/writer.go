package facts

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"sidestream/discovery"
)

// MaxOps is how many operations a caller may give to Writer.Commit: one is
// kept for the versions key.
const MaxOps = discovery.MaxCommitOps - 1

// Writer commits changes of topics and state together with the writer's own
// versions key, by which every mirror learns what to read again. Commits go
// one at a time, since each carries the counter that follows the last.
type Writer struct {
	store   discovery.Store
	timeout time.Duration
	learn   func([]discovery.Entry)
	turn    chan struct{} // holds one token: whoever has it commits

	mu       sync.Mutex // guards name
	name     string
	versions discovery.Versions // owned by the holder of the token
	loaded   bool               // likewise
}

// NewWriter makes a writer. Each commit takes at most timeout. Learn, which may
// be nil, gets what was written.
func NewWriter(store discovery.Store, timeout time.Duration, learn func([]discovery.Entry)) *Writer {
	w := &Writer{store: store, timeout: timeout, learn: learn, turn: make(chan struct{}, 1)}
	w.turn <- struct{}{}
	return w
}

// SetName names the writer by its broker's id, which a new folder has only
// after it was registered. No commit is possible before.
func (w *Writer) SetName(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.name = name
}

func (w *Writer) key() (string, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.name == "" {
		return "", fmt.Errorf("%w: this agent is not registered yet", discovery.ErrUnavailable)
	}
	return discovery.KeyVersions(w.name), nil
}

// Commit applies the ops, at most MaxOps, and tells the other agents which
// topics and shards they changed. Errors are those of Store.Commit, and
// ctx's when it ended before the commit was sent.
func (w *Writer) Commit(ctx context.Context, ops ...discovery.Op) error {
	select {
	case <-w.turn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { w.turn <- struct{}{} }()
	key, err := w.key()
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, w.timeout)
	defer cancel()
	if err := w.load(ctx, key); err != nil {
		return err
	}
	next := appendChanges(w.versions, changedBy(ops))
	written, err := w.store.Commit(ctx, append(slices.Clone(ops), discovery.Set(key, discovery.Encode(next)))...)
	if err == nil || errors.Is(err, discovery.ErrUnknownOutcome) {
		w.versions = next // a counter that skips a change only makes the others read more
	}
	if err == nil && w.learn != nil {
		w.learn(written)
	}
	return err
}

// load reads the counter of this writer's earlier life, once.
func (w *Writer) load(ctx context.Context, key string) error {
	if w.loaded {
		return nil
	}
	e, err := w.store.Get(ctx, key)
	switch {
	case err == nil:
		v, err := discovery.Decode[discovery.Versions](e)
		if err != nil {
			return fmt.Errorf("%s holds no versions: %w", key, err)
		}
		w.versions = v
	case !errors.Is(err, discovery.ErrNotFound):
		return err
	}
	w.loaded = true
	return nil
}

// changedBy lists the keys of the ops that the other agents must read again.
func changedBy(ops []discovery.Op) []string {
	var keys []string
	for _, op := range ops {
		switch op.Verb {
		case discovery.VerbSet, discovery.VerbCAS, discovery.VerbDelete, discovery.VerbDeleteCAS, discovery.VerbDeletePrefix:
		default:
			continue
		}
		if op.Key == discovery.KeyClusterID || strings.HasPrefix(op.Key, discovery.PrefixTopics) || strings.HasPrefix(op.Key, discovery.PrefixState) {
			keys = append(keys, op.Key)
		}
	}
	return keys
}
