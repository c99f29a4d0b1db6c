package offsets

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sidestream/discovery"
)

// ErrNotOwner: the session does not hold the owner key of the partition.
var ErrNotOwner = errors.New("offsets: the partition's owner key is not held by this session")

// CheckpointInterval is how often a host writes its positions when so many
// sidecars live: 1 s, and from a hundred sidecars on a hundredth of a second for
// each, which keeps the store at about a hundred commits a second.
func CheckpointInterval(liveSidecars int) time.Duration {
	return max(time.Second, time.Duration(liveSidecars)*time.Second/100)
}

// flushTimeout bounds one round of writing by Run, so that a store that hangs
// does not hang it.
const flushTimeout = 10 * time.Second

// CheckpointOptions are who checkpoints, and how often.
type CheckpointOptions struct {
	Owner      string               // the sidecar's id
	Nonce      string               // its instance nonce; "": a fresh one
	Interval   func() time.Duration // between two writes; nil: 1 s
	Logger     *zap.Logger
	Registerer prometheus.Registerer
}

// Checkpointer writes positions to the coordination store: claims with a fence,
// and marks coalesced by host. Safe for concurrent use.
type Checkpointer struct {
	store   discovery.Store
	opt     CheckpointOptions
	log     *zap.Logger
	metrics checkpointMetrics
	writes  atomic.Uint64 // numbers the values written, see nextWriter

	turn chan struct{} // holds one: the right to flush
	quit chan struct{} // closed by Close

	mu      sync.Mutex // guards all below
	entries map[Key]*entry
	closed  bool
	running chan struct{} // closed when the present Run has ended; nil: none
	trouble string        // why Run could not write the marks the last time; "": it could
}

// Trouble is why positions could not be checkpointed when Run last tried; "" when
// they were.
func (c *Checkpointer) Trouble() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.trouble
}

func (c *Checkpointer) setTrouble(err error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.trouble = ""; err != nil {
		c.trouble = err.Error()
	}
}

// entry is what is known of one key.
type entry struct {
	author author
	mark   Position
	dirty  bool   // mark is not in the store
	marked uint64 // counts the marks
	seen   seen
}

// NewCheckpointer makes a checkpointer; Run makes it write.
func NewCheckpointer(store discovery.Store, opt CheckpointOptions) *Checkpointer {
	if opt.Logger == nil {
		opt.Logger = zap.NewNop()
	}
	if opt.Interval == nil {
		opt.Interval = func() time.Duration { return time.Second }
	}
	if opt.Nonce == "" {
		opt.Nonce = discovery.NewNonce()
	}
	c := &Checkpointer{
		store: store, opt: opt, log: opt.Logger,
		turn: make(chan struct{}, 1), quit: make(chan struct{}), entries: map[Key]*entry{},
	}
	c.metrics = newCheckpointMetrics(opt.Registerer, c.Pending)
	return c
}

// nextWriter is a name for a value that no other value has.
func (c *Checkpointer) nextWriter() string {
	return fmt.Sprintf("%s/%d", c.opt.Nonce, c.writes.Add(1))
}

// Mark hands over a newer position of a generation that was claimed. It never
// blocks on the store; the position is written at the next interval, or as soon
// as the store is there again. Marks of a key that wait are merged.
func (c *Checkpointer) Mark(key Key, generation uint64, p Position) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(key)
	if generation > e.author.generation {
		e.author = author{owner: c.opt.Owner, generation: generation}
	}
	if e.dirty {
		e.mark, _ = p.Merge(e.mark)
	} else {
		e.mark = p.Clone()
	}
	e.dirty = true
	e.marked++
}

// entry is that of a key, made if need be. Call with mu held.
func (c *Checkpointer) entry(key Key) *entry {
	e := c.entries[key]
	if e == nil {
		e = &entry{author: author{owner: c.opt.Owner}}
		c.entries[key] = e
	}
	return e
}

// Pending counts the keys with marks that are not written yet.
func (c *Checkpointer) Pending() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	n := 0
	for _, e := range c.entries {
		if e.dirty {
			n++
		}
	}
	return n
}

// Seen is what the store was last seen to hold of a key: a former owner's late
// acknowledgements show in it after a conflict.
func (c *Checkpointer) Seen(key Key) (Stored, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entries[key]
	if e == nil || !e.seen.known || !e.seen.exists {
		return Stored{}, false
	}
	s := e.seen.stored
	s.Position = s.Position.Clone()
	return s, true
}

// Forget drops what is remembered and marked of a key: after its release, or
// when its group is deleted.
func (c *Checkpointer) Forget(key Key) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.entries, key)
}

// FlushKey writes what was marked of the key at once: nil when the store has it
// or nothing was marked. On an error the mark is kept and tried again.
func (c *Checkpointer) FlushKey(ctx context.Context, key Key) error {
	return c.flushTurn(ctx, func() []Key { return []Key{key} })
}

// flushTurn flushes when no other flush is under way.
func (c *Checkpointer) flushTurn(ctx context.Context, keys func() []Key) error {
	select {
	case c.turn <- struct{}{}:
		defer func() { <-c.turn }()
		return c.flush(ctx, keys())
	case <-ctx.Done():
		return ctx.Err()
	}
}

// dirtyKeys are the keys with marks to write, in order.
func (c *Checkpointer) dirtyKeys() []Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	var keys []Key
	for k, e := range c.entries {
		if e.dirty {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compareKeys)
	return keys
}

// Run writes marks every interval until ctx ends or Close is called. One Run at
// a time.
func (c *Checkpointer) Run(ctx context.Context) error {
	done := make(chan struct{})
	c.mu.Lock()
	if c.running != nil {
		c.mu.Unlock()
		return errors.New("offsets: the checkpointer runs already")
	}
	c.running = done
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.running = nil
		c.mu.Unlock()
		close(done)
	}()
	timer := time.NewTimer(c.opt.Interval())
	defer timer.Stop()
	failing := false
	for {
		select {
		case <-timer.C:
		case <-c.quit:
			return nil
		case <-ctx.Done():
			return nil
		}
		fctx, cancel := context.WithTimeout(ctx, flushTimeout)
		err := c.flushTurn(fctx, c.dirtyKeys)
		cancel()
		if ctx.Err() == nil {
			c.setTrouble(err)
		}
		switch {
		case err != nil && ctx.Err() == nil && !failing:
			c.log.Warn("positions cannot be checkpointed: they are kept and tried again", zap.Error(err), zap.Int("pending", c.Pending()))
			failing = true
		case err == nil && failing:
			c.log.Info("positions are checkpointed again")
			failing = false
		}
		timer.Reset(c.opt.Interval())
	}
}

// Close stops Run, waits for it, and writes what is still marked, until ctx
// ends: then the error says how many positions were not written.
func (c *Checkpointer) Close(ctx context.Context) error {
	c.mu.Lock()
	if !c.closed {
		c.closed = true
		close(c.quit)
	}
	running := c.running
	c.mu.Unlock()
	if running != nil {
		select {
		case <-running:
		case <-ctx.Done():
		}
	}
	err := c.flushTurn(ctx, c.dirtyKeys)
	if n := c.Pending(); n > 0 {
		return fmt.Errorf("offsets: %d positions were not checkpointed: %w", n, errors.Join(err, ctx.Err()))
	}
	return nil
}
