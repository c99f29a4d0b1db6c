package consume

import (
	"context"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// diverted are messages that a partition may hand out no more, with what they
// are settled by.
type diverted struct {
	o          *owner
	generation uint64
	epoch      uint64
	messages   []window.Exhausted[*kgo.Record]
}

// exhausted lists the messages that are to be diverted, each once until skip or
// retain of it.
func (o *owner) exhausted(now time.Time) diverted {
	o.mu.Lock()
	defer o.mu.Unlock()
	d := diverted{o: o, generation: o.generation, epoch: o.epoch}
	if o.win != nil && o.state == stateOwned {
		d.messages = o.win.Exhausted(now)
	}
	return d
}

// skip counts messages of d as acknowledged: they are elsewhere now, or are
// passed over by policy. It is on this host's disk when it returns without an
// error; lease_lost means that the partition is no longer here as it was, so
// that its owner will divert them once more.
func (d diverted) skip(ctx context.Context, offsets ...int64) *api.Error {
	o := d.o
	o.mu.Lock()
	if !d.present() {
		o.mu.Unlock()
		return errLeaseLost("the partition moved meanwhile")
	}
	before := o.win.Bytes()
	for _, offset := range offsets {
		o.win.Skip(offset)
	}
	freed, p, cur := o.win.Bytes()-before, o.win.Position(), o.cur
	o.marked = p.Low
	o.mu.Unlock()

	m := o.s.g.m
	o.settled(freed, cur)
	err := m.local.Merge(ctx, o.key, p)
	m.checkpointer.Mark(o.key, d.generation, p)
	if err != nil {
		return apiError(api.CodeUnknownOutcome, "what was diverted may not be on disk as acknowledged: %v", err)
	}
	return nil
}

// retain says that messages of d cannot be diverted now: they stay where they
// are, pulls say so, and they are listed again.
func (d diverted) retain(offsets ...int64) {
	o := d.o
	o.mu.Lock()
	if d.present() {
		for _, offset := range offsets {
			o.win.Retain(offset)
		}
	}
	o.mu.Unlock()
	o.s.wake() // a waiting pull may answer why
}

// present says whether the window is the one that d is of. It needs mu.
func (d diverted) present() bool {
	o := d.o
	return o.win != nil && (o.state == stateOwned || o.state == stateReleasing) && o.generation == d.generation && o.epoch == d.epoch
}
