package broker

import (
	"context"
	"errors"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/commitlog"
)

// keepHouse does the logs' regular work, one log at a time: retention, the recovery points of logs that grow slowly, and
// descriptions that a full disk has kept behind.
func (b *Broker) keepHouse(ctx context.Context) {
	b.eachLog(ctx, b.cfg.RetentionCheckInterval, b.cfg.RetentionCheckInterval, func(p *partition) {
		if h := b.find(holdingKey{p.id, p.index}); h != nil {
			b.catchUp(h)
		}
		removed, err := p.log.Retain(b.now())
		p.report("retention", err)
		if removed > 0 {
			p.zlog.Info("retention removed segments", zap.Int("segments", removed))
		}
		p.report("moving the recovery point", p.log.Checkpoint())
	})
}

// compactLogs compacts what is due, one log at a time and not faster than is allowed.
func (b *Broker) compactLogs(ctx context.Context) {
	opt := commitlog.CompactOptions{MemoryBytes: b.cfg.CompactMemory, BytesPerSecond: b.cfg.CompactBytesPerSecond}
	b.eachLog(ctx, b.cfg.RetentionCheckInterval, b.cfg.RetentionCheckInterval, func(p *partition) {
		if !p.keyed.Load() {
			return
		}
		done, err := p.log.Compact(ctx, b.now(), opt)
		p.report("compaction", err)
		if done.Segments > 0 {
			p.zlog.Info("compacted", zap.Int("segments", done.Segments), zap.Int64("records_removed", done.Records), zap.Int64("bytes_reclaimed", done.Reclaimed))
		}
	})
}

// firstScrub bounds how long after the start the first round of scrubbing begins.
const firstScrub = time.Hour

// scrubLogs reads all that is on the disks, one log at a time and slowly, so that damage is found while another copy of
// the data may still be somewhere. What it finds becomes an alarm; nothing is repaired.
func (b *Broker) scrubLogs(ctx context.Context) {
	if b.cfg.ScrubInterval == 0 {
		return
	}
	b.eachLog(ctx, min(firstScrub, b.cfg.ScrubInterval), b.cfg.ScrubInterval, func(p *partition) {
		damage, err := p.log.Scrub(ctx, b.cfg.ScrubBytesPerSecond)
		p.report("scrubbing", err)
		for _, d := range damage {
			p.zlog.Error("damage found on the disk", zap.Error(d))
		}
	})
}

// eachLog does work on every log, first after a while and then again and again. Logs in a directory that takes no
// writes are left out.
func (b *Broker) eachLog(ctx context.Context, first, every time.Duration, work func(*partition)) {
	timer := time.NewTimer(first)
	defer timer.Stop()
	for {
		select {
		case <-timer.C:
		case <-ctx.Done():
			return
		}
		for _, h := range b.holdings() {
			p := h.current()
			if ctx.Err() != nil {
				return
			}
			if p != nil && p.dir.offline() == nil {
				work(p)
			}
		}
		timer.Reset(every)
	}
}

// report logs what went wrong, unless the log was closed or the broker is.
func (p *partition) report(what string, err error) {
	if err == nil || errors.Is(err, commitlog.ErrClosed) || errors.Is(err, context.Canceled) {
		return
	}
	p.zlog.Warn(what+" failed", zap.Error(err))
	p.notice(err)
}
