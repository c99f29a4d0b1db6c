package offsets

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
	"syscall"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap"
)

// linger is how long the writer waits for company when the transaction before
// had some: it trades that much of an answer's time for fewer syncs when many
// acknowledge at once. One that acknowledges alone never waits. The wait for a
// transaction plus this stays near 5 ms on ordinary disks.
const linger = 2 * time.Millisecond

var (
	// ErrClosed: the store or checkpointer was closed.
	ErrClosed = errors.New("offsets: closed")
	// ErrFailed: a write did not reach the disk, so nothing later can be
	// trusted to; the store takes no more until it is opened again.
	ErrFailed = errors.New("offsets: the local store failed and takes no more writes until a restart")
)

// Local is the sidecar's own store of positions: one bbolt file, one writer
// that puts all that waits into one synced transaction. It keeps positions
// whole, so an acknowledgement that was answered after Merge survives the
// sidecar's death. Safe for concurrent use.
type Local struct {
	db      *bolt.DB
	file    *os.File // the database's; its to close
	log     *zap.Logger
	aside   string
	metrics localMetrics

	wake    chan struct{} // holds one: the queue is not empty
	quit    chan struct{} // closed by Close
	stopped chan struct{} // closed when the writer has ended

	mu     sync.Mutex // guards queue, closed and failed
	queue  []*job
	closed bool
	failed error
}

// job is one change that waits for the writer.
type job struct {
	key    Key
	merge  Position
	delete bool // the key's group, instead of merging
	done   chan error
}

type localMetrics struct {
	commits *prometheus.HistogramVec
	merges  prometheus.Counter
}

func newLocalMetrics() localMetrics {
	return localMetrics{
		commits: prometheus.NewHistogramVec(prometheus.HistogramOpts{
			Name:    "sidestream_offsets_local_commit_seconds",
			Help:    "Time of one synced transaction of the local store of positions, by result.",
			Buckets: prometheus.ExponentialBuckets(0.0005, 2, 12),
		}, []string{"result"}),
		merges: prometheus.NewCounter(prometheus.CounterOpts{
			Name: "sidestream_offsets_local_merges_total",
			Help: "Positions merged into the local store.",
		}),
	}
}

// OpenLocal opens or makes the store in the file at path. A file that cannot be
// read is renamed to <path>.bad-<time> and a fresh one is begun: SetAside tells.
// A file that another process has open is an error.
func OpenLocal(path string, log *zap.Logger) (*Local, error) {
	if log == nil {
		log = zap.NewNop()
	}
	db, file, aside, err := openFile(path)
	if err != nil {
		return nil, err
	}
	if aside != "" {
		log.Error("the local store of positions could not be read: it was set aside and positions come from the last checkpoints",
			zap.String("file", path), zap.String("moved_to", aside))
	}
	l := &Local{
		db: db, file: file, log: log, aside: aside, metrics: newLocalMetrics(),
		wake: make(chan struct{}, 1), quit: make(chan struct{}), stopped: make(chan struct{}),
	}
	go l.write()
	return l, nil
}

// Register puts the store's metrics into a registry; nil registers nothing.
func (l *Local) Register(r prometheus.Registerer) error {
	if r == nil {
		return nil
	}
	return errors.Join(r.Register(l.metrics.commits), r.Register(l.metrics.merges))
}

// Err is why the store takes no more writes until a restart; nil when it does.
func (l *Local) Err() error { return l.failure() }

// SetAside is where an unreadable file was moved at the opening, or "".
func (l *Local) SetAside() string { return l.aside }

// Merge adds a position to what the store holds of the key; it is on disk when
// Merge returns nil. A stored position of another topic UUID is replaced, one
// of a later seek epoch stays. When ctx ends first its error is returned, and
// the merge may happen all the same. Other errors: ErrClosed, ErrFailed, and a
// full disk, which passes.
func (l *Local) Merge(ctx context.Context, key Key, p Position) error {
	return l.do(ctx, &job{key: key, merge: p.Clone(), done: make(chan error, 1)})
}

// DeleteGroup forgets all positions of a group; it is on disk when it returns.
func (l *Local) DeleteGroup(ctx context.Context, group string) error {
	return l.do(ctx, &job{key: Key{Group: group}, delete: true, done: make(chan error, 1)})
}

func (l *Local) do(ctx context.Context, j *job) error {
	if j.key.Group == "" {
		return errors.New("offsets: the group's name is empty")
	}
	if err := l.enqueue(j); err != nil {
		return err
	}
	select {
	case l.wake <- struct{}{}:
	default:
	}
	select {
	case err := <-j.done:
		return err
	case <-ctx.Done():
		return fmt.Errorf("offsets: waiting for the local store: %w", ctx.Err())
	}
}

func (l *Local) enqueue(j *job) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return ErrClosed
	}
	if l.failed != nil {
		return l.failed
	}
	l.queue = append(l.queue, j)
	return nil
}

func (l *Local) take() []*job {
	l.mu.Lock()
	defer l.mu.Unlock()
	q := l.queue
	l.queue = nil
	return q
}

// write is the one writer: it ends when Close was called and the queue is empty.
func (l *Local) write() {
	defer close(l.stopped)
	company := false
	for {
		select {
		case <-l.wake:
		case <-l.quit:
		}
		if company {
			l.linger()
		}
		batch := l.take()
		if len(batch) == 0 {
			select {
			case <-l.quit:
				return
			default:
				company = false
				continue
			}
		}
		company = len(batch) > 1
		err := l.commit(batch)
		for _, j := range batch {
			j.done <- err
		}
	}
}

func (l *Local) linger() {
	t := time.NewTimer(linger)
	defer t.Stop()
	select {
	case <-t.C:
	case <-l.quit:
	}
}

// commit applies a batch in one synced transaction. A failure of the disk is
// final: after it the file's pages in memory may say what the disk does not. A
// full disk is met before anything refers to what was written, so it passes.
func (l *Local) commit(batch []*job) error {
	if err := l.failure(); err != nil {
		return err
	}
	begin := time.Now()
	err := l.update(func(tx *bolt.Tx) error { return l.apply(tx, batch) })
	if err == nil { // what is told to be on disk can be found there
		err = inPlace(l.file, l.db.Path())
	}
	result := "ok"
	if err != nil {
		result = "error"
		l.log.Error("writing positions to the local store", zap.String("file", l.db.Path()), zap.Error(err))
		if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
			err = fmt.Errorf("offsets: writing the local store: %w", err)
		} else {
			err = l.fail(err)
		}
	} else {
		l.metrics.merges.Add(float64(len(batch)))
	}
	l.metrics.commits.WithLabelValues(result).Observe(time.Since(begin).Seconds())
	return err
}

// update runs one transaction; bbolt panics where it finds its file damaged.
func (l *Local) update(change func(*bolt.Tx) error) (err error) {
	defer func() {
		if r := recover(); r != nil {
			err = fmt.Errorf("the file is damaged: %v", r)
		}
	}()
	return l.db.Update(change)
}

func (l *Local) failure() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.failed
}

// apply merges a batch in order, reading and writing each key once between two
// deletions.
func (l *Local) apply(tx *bolt.Tx, batch []*job) error {
	changed := map[Key]Position{}
	for _, j := range batch {
		if j.delete {
			for k := range changed {
				if k.Group == j.key.Group {
					delete(changed, k)
				}
			}
			if err := deleteGroup(tx, j.key.Group); err != nil {
				return err
			}
			continue
		}
		have, ok := changed[j.key]
		if !ok {
			var err error
			if have, ok, err = get(tx, j.key); err != nil {
				l.log.Error("a stored position could not be read and is replaced", zap.Stringer("key", j.key), zap.Error(err))
				ok = false
			}
		}
		if ok {
			have, _ = j.merge.Merge(have)
		} else {
			have = j.merge
		}
		changed[j.key] = have
	}
	for k, p := range changed {
		if err := put(tx, k, p); err != nil {
			return err
		}
	}
	return nil
}

// Get reads the position of a key.
func (l *Local) Get(key Key) (p Position, ok bool, err error) {
	err = l.db.View(func(tx *bolt.Tx) (err error) {
		p, ok, err = get(tx, key)
		return err
	})
	return p, ok, err
}

// All reads the positions of a group's topic by partition.
func (l *Local) All(group, topic string) (map[int32]Position, error) {
	out := map[int32]Position{}
	err := l.db.View(func(tx *bolt.Tx) error { return all(tx, group, topic, out) })
	return out, err
}

// Groups lists the groups that the store has positions of, sorted.
func (l *Local) Groups() (groups []string, err error) {
	err = l.db.View(func(tx *bolt.Tx) error {
		return tx.Bucket(bucketPositions).ForEachBucket(func(name []byte) error {
			groups = append(groups, string(name))
			return nil
		})
	})
	return groups, err
}

// Close writes what was asked for before it, and closes the file. Safe to call
// twice.
func (l *Local) Close() error {
	l.mu.Lock()
	if !l.closed {
		l.closed = true
		close(l.quit)
	}
	l.mu.Unlock()
	<-l.stopped
	return l.db.Close()
}
