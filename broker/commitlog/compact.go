package commitlog

import (
	"context"
	"errors"
	"time"
)

// CompactOptions bound what one compaction takes of the machine.
type CompactOptions struct {
	// MemoryBytes is for the map of keys, some 40 bytes a key; a log with more
	// keys than fit takes several passes. 0: 32 MiB, some 800,000 keys a pass.
	MemoryBytes int64
	// BytesPerSecond is the pace of reading; 0: as fast as it goes.
	BytesPerSecond int64
}

const defaultCompactMemory = 32 << 20

// Compacted is what a compaction did.
type Compacted struct {
	Passes     int   // over the log, each with a map of keys of its own; 0: nothing was due
	Segments   int   // that were replaced
	Records    int64 // that were removed, tombstones included
	Tombstones int64 // that were removed
	Reclaimed  int64 // bytes
}

// errCodecs: compaction needs both.
var errCodecs = errors.New("commitlog: compaction needs Options.Compress and Options.Decompress")

// Compact removes, from a log whose Config.Cleanup says so, the records whose key
// a later record has, when enough of the log is new or a tombstone is due; it
// does nothing otherwise, cheaply. Offsets stay what they were: what is gone is
// stepped over. It looks at closed segments below the recovery point only, reads
// them beside appends and reads, and takes the log's turns just to swap files.
// Call it now and then, for one log at a time; of two calls for the same log the
// second waits.
//
// It ends early with the context's error, and when the log is closed. What was
// done until then counts. On a disk that is too full it returns ErrNoSpace and
// has changed nothing of that segment.
//
// Records without a key, control batches and batches of transactions stay, and so
// does what cannot be decoded or is damaged. now is the time of the broker; the
// zero time says that it does not know it: then no tombstone goes or is dated.
func (l *Log) Compact(ctx context.Context, now time.Time, opt CompactOptions) (Compacted, error) {
	var done Compacted
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	if err := l.beginCompaction(ctx, cancel); err != nil {
		return done, err
	}
	defer l.cleaner.leave()
	l.mu.Lock()
	cfg := l.cfg
	l.mu.Unlock()
	if !cfg.Compacted() {
		return done, nil
	}
	if l.pack == nil || l.unpack == nil {
		return done, errCodecs
	}
	if opt.MemoryBytes <= 0 {
		opt.MemoryBytes = defaultCompactMemory
	}
	if !now.IsZero() {
		l.mu.Lock()
		l.date(now.UnixMilli())
		l.mu.Unlock()
	}
	if err := l.closeOverdue(now, cfg); err != nil {
		return done, err
	}
	c := &compaction{
		l: l, ctx: ctx, cfg: cfg, now: timeOf(now), memory: opt.MemoryBytes,
		pace: &pace{rate: opt.BytesPerSecond}, done: &done,
	}
	err := c.run()
	l.metrics.compactions.Add(float64(done.Passes))
	l.metrics.compactRemoved.Add(float64(done.Records))
	l.metrics.compactSaved.Add(float64(max(done.Reclaimed, 0)))
	if errors.Is(err, errOvertaken) { // by a removal or a truncation: the next call sees it as it is now
		err = nil
	}
	return done, err
}

// beginCompaction takes the cleaner's turn, which closing the log can end.
func (l *Log) beginCompaction(ctx context.Context, cancel context.CancelFunc) error {
	select {
	case l.cleaner <- struct{}{}:
	case <-ctx.Done():
		return ctx.Err()
	}
	l.mu.Lock()
	err := l.writable()
	if l.closing {
		err = ErrClosed
	}
	l.stopCleaner = cancel
	l.mu.Unlock()
	if err == nil {
		err = ctx.Err()
	}
	if err != nil {
		l.cleaner.leave()
	}
	return err
}

// endCompaction stops a running compaction and keeps the next from beginning.
// The caller leaves the cleaner's turn.
func (l *Log) endCompaction() {
	l.mu.Lock()
	l.closing = true
	stop := l.stopCleaner
	l.mu.Unlock()
	if stop != nil {
		stop()
	}
	l.cleaner.take()
}

// closeOverdue begins a new segment when the active one has records that may not
// wait longer for compaction.
func (l *Log) closeOverdue(now time.Time, cfg Config) error {
	l.mu.Lock()
	a := l.active()
	overdue := cfg.MaxCompactionLag > 0 && !now.IsZero() && a.size > 0 && a.created != noTime && now.UnixMilli()-a.created >= cfg.MaxCompactionLag.Milliseconds()
	l.mu.Unlock()
	if !overdue {
		return nil
	}
	l.takeBoth()
	defer l.leaveBoth()
	l.mu.Lock()
	err := l.writable()
	stale := l.active() != a
	l.mu.Unlock()
	if err != nil || stale {
		return err
	}
	if err := l.roll(); err != nil {
		return err
	}
	return l.syncAndSave()
}

// closedSegment is a segment that may be compacted.
type closedSegment struct {
	*segment
	size     int64
	next     int64 // offset after it
	appended int64
	undated  bool
	damaged  bool
}

// cleanable are the segments that may be compacted now, and how far they are.
func (l *Log) cleanable(cfg Config, now int64) (list []closedSegment, clean cleanPoint, cuts int) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for i, s := range l.segments[:len(l.segments)-1] {
		next := l.segments[i+1].base
		if s.base >= l.saved.base ||
			next > l.clean.Offset && cfg.MinCompactionLag > 0 &&
				(now == noTime || s.undated || now-s.appended < cfg.MinCompactionLag.Milliseconds()) {
			break
		}
		list = append(list, closedSegment{s, s.size, next, s.appended, s.undated, len(s.damage) > 0})
	}
	return list, l.clean, l.cuts
}

// due tells whether the segments are worth a compaction, and up to where.
func due(list []closedSegment, clean cleanPoint, cfg Config, now int64) (limit int64, ok bool) {
	var dirty, total int64
	overdue := false
	for _, s := range list {
		total += s.size
		limit = s.next
		if s.next > clean.Offset {
			dirty += s.size
			overdue = overdue || cfg.MaxCompactionLag > 0 && now != noTime && now-s.appended >= cfg.MaxCompactionLag.Milliseconds()
		}
	}
	switch {
	case total == 0:
		return 0, false
	case clean.Horizon >= 0 && now >= clean.Horizon, dirty > 0 && overdue:
		return limit, true
	}
	return limit, dirty > 0 && float64(dirty) >= cfg.MinCleanableRatio*float64(total)
}

// compaction is one call of Compact at work.
type compaction struct {
	l      *Log
	ctx    context.Context
	cfg    Config
	now    int64 // ms, or noTime
	memory int64
	pace   *pace
	done   *Compacted
	batch  []byte // a batch that is larger than the window
}

// run makes passes until all that is closed is compacted. Each begins at the
// log's start and ends where its map of keys was full.
func (c *compaction) run() error {
	l := c.l
	list, clean, cuts := l.cleanable(c.cfg, c.now)
	limit, ok := due(list, clean, c.cfg, c.now)
	for ok {
		keys := newKeyMap(c.memory)
		end, err := c.collect(list, clean.Offset, limit, keys)
		if err != nil {
			return err
		}
		t := &thinner{
			keys: keys, end: end, now: c.now, retention: c.cfg.DeleteRetention.Milliseconds(),
			pack: l.pack, unpack: l.unpack, horizon: -1,
		}
		c.done.Passes++
		if err := c.rewrite(list, t, cuts); err != nil {
			return err
		}
		if err := l.setCleanPoint(cleanPoint{end, t.horizon}, cuts); err != nil {
			return err
		}
		if end >= limit {
			break
		}
		var now int
		list, clean, now = l.cleanable(c.cfg, c.now)
		if now != cuts || clean.Offset != end {
			return errOvertaken
		}
	}
	return nil
}
