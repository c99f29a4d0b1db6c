package consume

import (
	"context"
	"errors"
	"time"
	"unicode/utf8"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
	"sidestream/sidecar/offsets"
)

// Ack acknowledges messages. What it answers without an error is on this host's
// disk. An ack of the present generation counts even after its lease ended; that
// of an earlier one is lease_lost.
func (m *Manager) Ack(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error) {
	return m.settleAll(ctx, group, topic, r, func(o *owner, rs []receipt) []outcome { return o.ack(ctx, rs) })
}

// Nack gives messages back, to be delivered again after the delay; with them,
// as far as the group's order binds them, every unacknowledged message of the
// same pull above them. Its error is kept for whoever looks at the message when
// its attempts are used up. Messages that are unhandled spend no attempt.
func (m *Manager) Nack(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error) {
	delay := time.Duration(0)
	if r.Delay != "" {
		d, err := parseDuration("delay", r.Delay, 0, maxDelay)
		if err != nil {
			return api.ReceiptResponse{}, err
		}
		delay = d
	}
	if r.Unhandled && (r.Delay != "" || r.Error != "") {
		return api.ReceiptResponse{}, badRequest("unhandled messages come again at once and have not failed: leave out delay and error")
	}
	return m.settleAll(ctx, group, topic, r, func(o *owner, rs []receipt) []outcome {
		return o.nack(ctx, rs, refusal{delay: delay, why: cutText(r.Error, maxErrorText), unhandled: r.Unhandled})
	})
}

// maxDelay is the longest that a nack may put a message off.
const maxDelay = 7 * 24 * time.Hour

// Extend moves the end of leases to so long from now.
func (m *Manager) Extend(ctx context.Context, group, topic string, r api.Receipts) (api.ReceiptResponse, error) {
	lease := m.cfg.Lease
	if g := m.lookup(group); g != nil {
		lease = g.lease()
	}
	if r.Lease != "" {
		d, err := parseDuration("lease", r.Lease, MinLease, MaxLease)
		if err != nil {
			return api.ReceiptResponse{}, err
		}
		lease = d
	}
	return m.settleAll(ctx, group, topic, r, func(o *owner, rs []receipt) []outcome { return o.extend(rs, lease) })
}

// outcome is what became of one receipt.
type outcome struct {
	err         *api.Error
	provisional bool
	until       time.Time
}

// mine says whether a receipt is of the partition's present generation and seek
// epoch. It needs mu.
func (o *owner) mine(r receipt) *api.Error {
	if err := o.owns(); err != nil {
		return err
	}
	return o.same(r)
}

// owns says whether receipts can be taken at all. It needs mu.
func (o *owner) owns() *api.Error {
	switch {
	case o.win == nil || o.state != stateOwned && o.state != stateReleasing:
		return errLeaseLost("this sidecar does not own the partition any more")
	case o.sess.Ownership() == discovery.Lost:
		return errLeaseLost("this sidecar's session is lost")
	}
	return nil
}

func (o *owner) same(r receipt) *api.Error {
	switch {
	case r.generation != o.generation:
		return errLeaseLost("the partition has been taken anew since")
	case r.seekEpoch != o.epoch:
		return errLeaseLost("the group has been sought since")
	}
	return nil
}

// windowError is the window's verdict on a receipt.
func windowError(err error) *api.Error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, window.ErrLeaseLost):
		return errLeaseLost("the lease is over")
	case errors.Is(err, window.ErrAcked):
		return apiError(api.CodeLeaseLost, "the message is acknowledged already: it is not delivered again")
	}
	return badRequest("no such message was handed out under such a lease")
}

func (o *owner) ack(ctx context.Context, rs []receipt) []outcome {
	outs := make([]outcome, len(rs))
	added, good := 0, 0
	o.mu.Lock()
	before := 0
	if o.win != nil {
		before = o.win.Bytes()
	}
	lost := o.owns()
	for i, r := range rs {
		if outs[i].err = lost; lost == nil {
			outs[i].err = o.same(r)
		}
		if outs[i].err != nil {
			continue
		}
		news, err := o.win.Ack(r.lease, r.offset)
		if outs[i].err = windowError(err); outs[i].err != nil {
			continue
		}
		good++
		if news {
			added++
		}
	}
	if good == 0 {
		o.mu.Unlock()
		return outs
	}
	p, generation, cur := o.win.Position(), o.generation, o.cur
	freed := o.win.Bytes() - before
	o.marked, o.kept = p.Low, o.win.Leases()
	o.mu.Unlock()

	m := o.s.g.m
	o.settled(freed, cur)
	err := m.local.Merge(ctx, o.key, p)
	m.checkpointer.Mark(o.key, generation, p)
	m.metrics.acked.WithLabelValues(o.key.Group, o.key.Topic).Add(float64(added))
	provisional := o.sess.Ownership() == discovery.Unproven
	for i := range outs {
		switch {
		case outs[i].err != nil:
		case err != nil:
			outs[i].err = apiError(api.CodeUnknownOutcome, "the ack may not be on disk: %v; repeating it is safe", err)
		default:
			outs[i].provisional = provisional
		}
	}
	return outs
}

// settled tells everyone who waits for room or for the next lease.
func (o *owner) settled(freed int, cur *cursor) {
	m := o.s.g.m
	m.reader.hold(int64(freed))
	if cur != nil && freed < 0 {
		m.reader.wake(cur)
	}
	kick(o.poke)
	o.s.wake()
}

// ackHanded acknowledges messages as they are handed out, for applications that
// prefer a loss to a repetition. It is on disk before they are given; when it
// cannot be, they stay.
func (o *owner) ackHanded(ctx context.Context, h handed) *api.Error {
	o.mu.Lock()
	if o.win == nil || o.generation != h.generation || o.epoch != h.epoch {
		o.mu.Unlock()
		return errLeaseLost("the partition moved meanwhile")
	}
	p := o.win.Position()
	o.mu.Unlock()
	for _, x := range h.messages {
		p.Ack(x.Offset)
	}
	if err := o.s.g.m.local.Merge(ctx, o.key, p); err != nil {
		o.takeBack(h)
		return apiError(api.CodeDiskUnavailable, "the acks cannot be written to this host's disk, so nothing is handed out: %v", err)
	}
	o.mu.Lock()
	var q offsets.Position
	freed, cur := 0, o.cur
	same := o.win != nil && o.generation == h.generation && o.epoch == h.epoch
	if same {
		before := o.win.Bytes()
		for _, x := range h.messages {
			_, _ = o.win.Ack(x.LeaseNo, x.Offset)
		}
		freed = o.win.Bytes() - before
		q = o.win.Position()
	}
	o.mu.Unlock()
	if same {
		o.settled(freed, cur)
		o.s.g.m.checkpointer.Mark(o.key, h.generation, q)
	}
	o.s.g.m.metrics.acked.WithLabelValues(o.key.Group, o.key.Topic).Add(float64(len(h.messages)))
	return nil
}

// maxErrorText bounds what is kept of an application's error, in bytes.
const maxErrorText = 1 << 10

// cutText shortens a text to so many bytes without cutting a character.
func cutText(s string, most int) string {
	if len(s) <= most {
		return s
	}
	for most > 0 && !utf8.RuneStart(s[most]) {
		most--
	}
	return s[:most]
}

// refusal is what an application says with a nack.
type refusal struct {
	delay     time.Duration // until when the messages are put off
	why       string        // its error, "" for none
	unhandled bool          // it has not begun them
}

// nack gives messages back. The attempts that were spent and the delay are on
// this host's disk when it returns.
func (o *owner) nack(ctx context.Context, rs []receipt, say refusal) []outcome {
	outs := make([]outcome, len(rs))
	byLease := map[uint64][]int{}
	good := 0
	now := time.Now()
	o.mu.Lock()
	for i, r := range rs {
		if outs[i].err = o.mine(r); outs[i].err == nil {
			byLease[r.lease] = append(byLease[r.lease], i)
		}
	}
	for lease, is := range byLease {
		nacked := make([]int64, len(is))
		for j, i := range is {
			nacked[j] = rs[i].offset
		}
		var errs []error
		if say.unhandled {
			_, errs = o.win.Decline(lease, nacked)
		} else {
			_, errs = o.win.Nack(now, lease, nacked, say.delay, say.why)
		}
		for j, i := range is {
			if outs[i].err = windowError(errs[j]); outs[i].err == nil {
				good++
			}
		}
	}
	var p offsets.Position
	generation := o.generation
	if good > 0 {
		p, o.kept = o.win.Position(), o.win.Leases()
	}
	o.mu.Unlock()
	if good == 0 {
		return outs
	}
	m := o.s.g.m
	m.metrics.nacked.WithLabelValues(o.key.Group, o.key.Topic).Add(float64(good))
	kick(o.poke)
	o.s.wake()
	if err := m.local.Merge(ctx, o.key, p); err != nil {
		// The messages come again all the same, perhaps too early after a restart.
		o.log.Warn("a nack is not in the local store", zap.Error(err))
	}
	m.checkpointer.Mark(o.key, generation, p)
	return outs
}

func (o *owner) extend(rs []receipt, lease time.Duration) []outcome {
	outs := make([]outcome, len(rs))
	now := time.Now()
	o.mu.Lock()
	defer o.mu.Unlock()
	for i, r := range rs {
		if outs[i].err = o.mine(r); outs[i].err != nil {
			continue
		}
		until, errs := o.win.Extend(now, r.lease, []int64{r.offset}, lease)
		outs[i].err, outs[i].until = windowError(errs[0]), until
	}
	return outs
}
