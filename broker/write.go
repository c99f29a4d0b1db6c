package broker

import (
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/commitlog"
	"sidestream/broker/kafka"
	"sidestream/broker/record"
)

// writeAtOnce bounds the batch that is written by whoever brings it: handing a small one to another goroutine and
// getting the answer back costs more than writing it.
const writeAtOnce = 128 << 10

// Append writes a small batch when nobody else is writing and the disk has been quick, and queues it otherwise; see
// kafka.Partition.
func (p *partition) Append(a kafka.Append) {
	p.mu.Lock()
	if !p.led {
		p.mu.Unlock()
		a.Done(kafka.Appended{Base: -1, Start: -1, Err: kafka.ErrNotLeader})
		return
	}
	if p.writing {
		p.queue = append(p.queue, a)
		p.mu.Unlock()
		return
	}
	p.writing = true // until this call or the writer that it starts has found the queue empty
	p.workers.Add(1)
	policy := p.policy
	p.mu.Unlock()
	written := len(a.Batch) <= writeAtOnce && p.writeNow(a, policy)

	p.mu.Lock()
	if !written {
		p.queue = append([]kafka.Append{a}, p.queue...)
	}
	if len(p.queue) == 0 {
		p.writing = false
		p.mu.Unlock()
		p.workers.Done()
		return
	}
	p.mu.Unlock()
	go p.write()
}

// writeNow writes one batch unless that might take long: the log is busy with other work, or the disk was slow lately.
// It tells whether it did; the caller may not wait, since it may be an event loop with other connections.
func (p *partition) writeNow(a kafka.Append, policy commitlog.FlushPolicy) bool {
	if p.keyed.Load() || p.dir.offline() != nil || !p.dir.quick() || !p.log.TryHold() {
		return false
	}
	defer p.log.Unhold()
	p.writeGroup([]kafka.Append{a}, policy, p.epoch.Load(), p.log.AppendHeld)
	return true
}

// write takes all queued appends, again and again until there are none.
func (p *partition) write() {
	defer p.workers.Done()
	for {
		p.mu.Lock()
		group, led, policy, epoch := p.queue, p.led, p.policy, p.epoch.Load()
		p.queue = nil
		if len(group) == 0 {
			p.writing = false
			p.mu.Unlock()
			return
		}
		p.mu.Unlock()
		var refused error
		if !led {
			refused = kafka.ErrNotLeader
		} else if err := p.dir.offline(); err != nil {
			refused = commitlog.NotAppended(fmt.Errorf("%w: log directory %s takes no writes: %w", kafka.ErrStorage, p.dir.path, err))
		}
		if refused != nil {
			for _, a := range group {
				a.Done(kafka.Appended{Base: -1, Start: -1, Err: refused})
			}
			continue
		}
		if p.keyed.Load() {
			group = p.refuseKeyless(group)
		}
		for len(group) > 0 {
			group = group[p.writeGroup(group, policy, epoch, p.log.Append):]
		}
	}
}

// refuseKeyless answers the appends that a compacted topic cannot take, and returns the others.
func (p *partition) refuseKeyless(group []kafka.Append) []kafka.Append {
	var rest []kafka.Append
	for _, a := range group {
		if err := p.unpacking.checkKeys(a.Batch, a.Header); err != nil {
			a.Done(kafka.Appended{Base: -1, Start: -1, Err: err})
			continue
		}
		rest = append(rest, a)
	}
	return rest
}

// appender is commitlog.Log.Append, for a caller that waits for the log or one that has it.
type appender func(batches [][]byte, epoch int32, now time.Time) (first, last int64, err error)

// writeGroup writes the longest run of appends that can go in one write, and returns how many those were.
func (p *partition) writeGroup(group []kafka.Append, policy commitlog.FlushPolicy, epoch int32, write appender) int {
	logEnd := p.log.EndOffset() // nobody else appends
	var producers checker = p.log.Producers()
	if len(group) > 1 { // one may follow another that is not in the log yet
		producers = p.log.Producers().Stage()
	}
	g := stage(group, producers)
	if len(g.fresh) > 0 {
		begun := time.Now()
		base, _, err := write(g.batches, epoch, p.now())
		took := time.Since(begun)
		p.m.write.Observe(took.Seconds())
		p.dir.wrote(begun, took)
		if errors.Is(err, commitlog.ErrTooLarge) && len(g.fresh) > 1 {
			g = stage(group[:1], p.log.Producers()) // no segment holds them together: one by one
			if len(g.fresh) > 0 {
				base, _, err = write(g.batches, epoch, p.now())
			}
		}
		if p.dir.took(err) || err != nil && !errors.Is(err, commitlog.ErrNoSpace) {
			if err != nil {
				p.complain(begun, "append failed", err)
			} else {
				p.zlog.Info("the log directory has room again", zap.String("directory", p.dir.path))
			}
			p.notice(err)
		}
		g.settle(base, logEnd, storage(err))
	}
	p.answer(g, policy)
	return g.taken
}

// storage makes an error of an append that says nothing else one of the storage, which clients repeat: the system's of
// a segment that could not be begun, for example.
func storage(err error) error {
	if err == nil {
		return nil
	}
	for _, known := range []error{commitlog.ErrNoSpace, commitlog.ErrOffline, commitlog.ErrClosed, commitlog.ErrTooLarge, commitlog.ErrStaleEpoch, record.ErrInvalid} {
		if errors.Is(err, known) {
			return err
		}
	}
	return fmt.Errorf("%w: %w", kafka.ErrStorage, err)
}

// answer answers a group, or lets it wait for the disk.
func (p *partition) answer(g staged, policy commitlog.FlushPolicy) {
	start := p.log.StartOffset()
	var records int64
	for _, i := range g.fresh {
		if g.outcomes[i].err == nil {
			records += int64(g.group[i].Header.Count)
		}
	}
	if !policy.EveryAppend() {
		p.raise(p.log.EndOffset())
	}
	var now []int
	p.mu.Lock()
	flushed := p.log.FlushedOffset()
	for i, o := range g.outcomes {
		a := g.group[i]
		// The answer to a duplicate waits as long as the original's.
		if o.err == nil && a.Acks == -1 && policy.EveryAppend() && o.end > flushed {
			p.waiting = append(p.waiting, durable{end: o.end, base: o.base, done: a.Done})
			continue
		}
		now = append(now, i)
	}
	p.unflushed += records
	if records > 0 || len(p.waiting) > 0 {
		p.scheduleFlush(policy)
	}
	p.mu.Unlock()
	for _, i := range now {
		o := g.outcomes[i]
		g.group[i].Done(kafka.Appended{Base: o.base, Start: start, Err: o.err})
	}
}
