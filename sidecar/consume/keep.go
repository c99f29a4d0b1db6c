package consume

import (
	"context"
	"sync"

	"go.uber.org/zap"

	"sidestream/sidecar/offsets"
)

// mostKept bounds how many partitions' hand-outs are kept at a time.
const mostKept = 64

// keepHandOuts writes to this host's disk what was handed out and not settled
// since the last look: an application that takes its host down with it must find
// its attempts counted, or the message that did it comes for ever. It is behind
// by one tick, so that a hand-out costs no synced write of its own; an ack or a
// nack takes what was handed out along. Only tick calls it, which stop waits for.
func (m *Manager) keepHandOuts(ctx context.Context) {
	select {
	case m.keeping <- struct{}{}:
	default:
		return // the last are being written still
	}
	type handOut struct {
		o *owner
		p offsets.Position
	}
	var all []handOut
	for _, g := range m.all() {
		for _, s := range g.all() {
			for _, o := range s.list() {
				if p, news := o.unkept(); news && len(all) < mostKept {
					all = append(all, handOut{o, p})
				}
			}
		}
	}
	if len(all) == 0 {
		<-m.keeping
		return
	}
	m.wg.Go(func() {
		defer func() { <-m.keeping }()
		var wg sync.WaitGroup
		for _, h := range all { // beside each other: they share a transaction
			wg.Go(func() {
				if err := m.local.Merge(ctx, h.o.key, h.p); err != nil && ctx.Err() == nil {
					h.o.log.Debug("hand-outs are not in the local store", zap.Error(err))
				}
			})
		}
		wg.Wait()
	})
}

// unkept is the position when something was handed out that no write to the
// local store has taken along; it counts as kept then.
func (o *owner) unkept() (p offsets.Position, news bool) {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.win == nil || o.win.Leases() == o.kept || o.win.InFlight() == 0 {
		return p, false
	}
	o.kept = o.win.Leases()
	return o.win.Position(), true
}
