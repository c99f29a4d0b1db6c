package broker

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
	"sidestream/broker/kafka"
	"sidestream/broker/record"
)

// partition serves one log: a queue of appends that a writer empties group by group, and a flusher that makes what was
// written durable, one fdatasync for everything that came while the last one ran. Both run only while there is work.
type partition struct {
	topic     string
	id        UUID
	index     int32
	log       *commitlog.Log
	unpacking unpacking
	dir       *logDir
	zlog      *zap.Logger
	now       func() time.Time // dates appends; see Options.Now

	complained atomic.Int64 // when it last did, Unix nanoseconds
	m          *metrics

	epoch    atomic.Int32
	keyed    atomic.Bool  // compacted: only records with keys
	hw       atomic.Int64 // high watermark: consumers read below it
	maxBatch atomic.Int64

	workers sync.WaitGroup // writer and flusher

	mu        sync.Mutex // guards everything below
	led       bool
	policy    commitlog.FlushPolicy
	queue     []kafka.Append
	writing   bool
	flushing  bool
	wantFlush bool
	unflushed int64       // records written since the last flush began
	timer     *time.Timer // runs a flush when policy.Interval is over
	waiting   []durable   // in the order of their offsets
	watchers  map[chan<- struct{}]int
}

// durable is an append that is answered when everything below end is on the disk.
type durable struct {
	end  int64
	base int64
	done func(kafka.Appended)
}

// complainEvery is how often a partition says that it cannot do what clients ask for, who may ask at any rate.
const complainEvery = 10 * time.Second

func (p *partition) complain(now time.Time, what string, err error) {
	if last := p.complained.Load(); now.UnixNano()-last >= int64(complainEvery) && p.complained.CompareAndSwap(last, now.UnixNano()) {
		p.zlog.Warn(what, zap.Error(err))
	}
}

func newPartition(topic string, id UUID, index int32, log *commitlog.Log, dir *logDir, u unpacking, zlog *zap.Logger, now func() time.Time, m *metrics) *partition {
	p := &partition{topic: topic, id: id, index: index, log: log, dir: dir, unpacking: u, now: now, m: m,
		zlog:     zlog.With(zap.String("topic", topic), zap.Int32("partition", index)),
		policy:   commitlog.FlushPolicy{Messages: 1},
		watchers: map[chan<- struct{}]int{}}
	p.hw.Store(log.FlushedOffset())
	p.maxBatch.Store(int64(commitlog.DefaultConfig().MaxBatchBytes))
	return p
}

// lead begins to serve, or goes on with another epoch or configs.
func (p *partition) lead(epoch int32, cfg commitlog.Config, policy commitlog.FlushPolicy) {
	p.maxBatch.Store(int64(cfg.MaxBatchBytes))
	p.epoch.Store(epoch)
	p.keyed.Store(cfg.Compacted())
	p.mu.Lock()
	p.policy = policy
	p.led = true
	if policy.EveryAppend() && p.log.EndOffset() > p.log.FlushedOffset() {
		p.startFlush() // left over from a laxer policy
	}
	p.mu.Unlock()
	p.raise(p.visible(policy))
}

// visible is how far consumers may read under a flush policy: what this replica "has". With the default that is what
// is on the disk, so that no consumer sees a record which a power cut takes back.
func (p *partition) visible(policy commitlog.FlushPolicy) int64 {
	if policy.EveryAppend() {
		return p.log.FlushedOffset()
	}
	return p.log.EndOffset()
}

// resign stops serving and waits until what was queued is answered.
func (p *partition) resign() {
	p.mu.Lock()
	p.led = false
	if p.timer != nil {
		p.timer.Stop()
		p.timer = nil
	}
	p.wake()
	p.mu.Unlock()
	p.workers.Wait()
}

// scheduleFlush has the flusher run as the policy asks. Every append counts, of whatever acks: with the default policy
// consumers see nothing that is not on the disk. mu is held.
func (p *partition) scheduleFlush(policy commitlog.FlushPolicy) {
	switch {
	case policy.EveryAppend() || p.unflushed >= policy.Messages:
		p.startFlush()
	case policy.Interval > 0 && p.timer == nil && p.led:
		p.timer = time.AfterFunc(policy.Interval, func() {
			p.mu.Lock()
			defer p.mu.Unlock()
			if p.timer != nil { // else resigned meanwhile
				p.timer = nil
				p.startFlush()
			}
		})
	}
}

// startFlush is called with mu held.
func (p *partition) startFlush() {
	p.wantFlush = true
	if !p.flushing {
		p.flushing = true
		p.workers.Add(1)
		go p.flush()
	}
}

// flush makes durable what was written, again and again until nothing more was asked for.
func (p *partition) flush() {
	defer p.workers.Done()
	for {
		p.mu.Lock()
		if !p.wantFlush {
			p.flushing = false
			p.mu.Unlock()
			return
		}
		p.wantFlush = false
		p.unflushed = 0
		p.mu.Unlock()

		begun := time.Now()
		upTo, err := p.log.Flush()
		p.m.flush.Observe(time.Since(begun).Seconds())
		if err != nil {
			// A failed fsync is never repeated as if it could still work: the log is offline for writes now.
			p.zlog.Error("flush failed, the log takes no more writes until it is opened again", zap.Error(err))
			p.notice(err)
			err = fmt.Errorf("%w: %w", kafka.ErrStorage, err)
		} else {
			p.raise(upTo)
		}
		p.answerDurable(upTo, err)
	}
}

// notice takes the log directory offline when an error says that its disk failed. Of a log that is gone from its place
// alone, the others in the directory are none the worse.
func (p *partition) notice(err error) {
	if errors.Is(err, disk.ErrGone) {
		if gone := p.dir.inPlace(); gone != nil && p.dir.fail(gone) {
			p.zlog.Error(goneText, zap.String("directory", p.dir.path), zap.Error(gone))
		}
		return
	}
	if errors.Is(err, commitlog.ErrOffline) && p.dir.fail(err) {
		p.zlog.Error("the log directory takes no more writes until a restart, because a sync failed there", zap.String("directory", p.dir.path), zap.Error(err))
	}
}

// answerDurable answers what waited for the disk: all of it when the flush failed.
func (p *partition) answerDurable(upTo int64, err error) {
	start := p.log.StartOffset()
	p.mu.Lock()
	var ready []durable
	if err != nil {
		ready, p.waiting = p.waiting, nil
	} else {
		var rest []durable
		for _, w := range p.waiting {
			if w.end <= upTo {
				ready = append(ready, w)
			} else {
				rest = append(rest, w)
			}
		}
		p.waiting = rest
	}
	p.mu.Unlock()
	for _, w := range ready {
		a := kafka.Appended{Base: w.base, Start: start, Err: err}
		if err != nil {
			a.Base = -1
		}
		w.done(a)
	}
}

// raise moves the high watermark up, never down, and wakes who waits for it.
func (p *partition) raise(to int64) {
	for {
		now := p.hw.Load()
		if to <= now {
			return
		}
		if p.hw.CompareAndSwap(now, to) {
			break
		}
	}
	p.mu.Lock()
	p.wake()
	p.mu.Unlock()
}

// wake is called with mu held.
func (p *partition) wake() {
	for w := range p.watchers {
		select {
		case w <- struct{}{}:
		default: // it has been woken and did not look yet
		}
	}
}

// Watch has wake filled whenever the high watermark moves or the partition is resigned.
func (p *partition) Watch(wake chan<- struct{}) {
	p.mu.Lock()
	p.watchers[wake]++
	p.mu.Unlock()
}

// Unwatch ends one Watch.
func (p *partition) Unwatch(wake chan<- struct{}) {
	p.mu.Lock()
	if p.watchers[wake]--; p.watchers[wake] <= 0 {
		delete(p.watchers, wake)
	}
	p.mu.Unlock()
}

// Epoch is the leader epoch.
func (p *partition) Epoch() int32 { return p.epoch.Load() }

// MaxBatchBytes is the topic's max.message.bytes.
func (p *partition) MaxBatchBytes() int { return int(p.maxBatch.Load()) }

// Offsets are read one after another; each is true at its moment and none moves down.
func (p *partition) Offsets() kafka.Offsets {
	return kafka.Offsets{Start: p.log.StartOffset(), HighWatermark: p.hw.Load(), End: p.log.EndOffset()}
}

func (p *partition) isLed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.led
}

// Err is kafka.ErrNotLeader once the partition is no longer led.
func (p *partition) Err() error {
	if !p.isLed() {
		return kafka.ErrNotLeader
	}
	return nil
}

// Read reads below the high watermark.
func (p *partition) Read(offset int64, maxBytes int) (commitlog.Slice, error) {
	if err := p.Err(); err != nil {
		return commitlog.Slice{}, err
	}
	return p.log.Read(offset, maxBytes, p.hw.Load())
}

// OffsetByTime finds the first record of that time or later.
func (p *partition) OffsetByTime(ts int64) (offset, timestamp int64, epoch int32, err error) {
	return p.log.OffsetByTime(ts)
}

// MaxTimestamp finds the record with the highest timestamp.
func (p *partition) MaxTimestamp() (offset, timestamp int64, epoch int32, err error) {
	return p.log.MaxTimestamp()
}

// EpochEnd is where an epoch ended; the present one ends at the log's end, also before its first record.
func (p *partition) EpochEnd(epoch int32) (found int32, end int64) {
	now := p.epoch.Load()
	switch {
	case epoch == now:
		return now, p.log.EndOffset()
	case epoch > now:
		return -1, -1
	}
	if found, end = p.log.EpochEnd(epoch); found >= 0 {
		return found, end
	}
	end = p.log.EndOffset() // before the last epoch: what is appended between the two must not count
	if last := p.log.LastEpoch(); last >= 0 && last <= epoch {
		return last, end // epochs up to the present one left no records
	}
	return -1, -1
}

// DeleteBefore moves the log's start up.
func (p *partition) DeleteBefore(offset int64) error {
	if err := p.Err(); err != nil {
		return err
	}
	return p.log.DeleteBefore(offset)
}

// EpochAt reads the leader epoch from the batch that the offset lies in; at the end it is the partition's own.
func (p *partition) EpochAt(offset int64) int32 {
	if offset >= p.log.EndOffset() {
		return p.epoch.Load()
	}
	s, err := p.log.Read(offset, 1, p.log.EndOffset())
	if err != nil {
		return -1
	}
	defer s.Release()
	if s.Size < record.HeaderSize {
		return -1
	}
	b := make([]byte, record.HeaderSize)
	if _, err := s.File.ReadAt(b, s.Pos); err != nil {
		return -1
	}
	h, err := record.ParseHeader(b)
	if err != nil {
		return -1
	}
	return h.LeaderEpoch
}
