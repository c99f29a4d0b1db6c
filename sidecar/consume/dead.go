package consume

import (
	"context"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// deadState is where a partition stands with its dead letters. It is guarded by
// the owner's mu.
type deadState struct {
	bad      *unreadable // where the log stands still; nil: nowhere
	busy     bool        // a goroutine diverts
	failures int         // in a row
	retryAt  time.Time
	why      string // why the last attempt failed, "" when it did not
}

// divertDue diverts what is to be diverted of a topic, of each partition by
// itself: what one waits for is nothing to the others. Only tick calls it, which
// stop waits for.
func (m *Manager) divertDue(ctx context.Context, s *share, now time.Time) {
	if _, hold := s.g.proof(); hold {
		return // another sidecar may do it
	}
	for _, o := range s.list() {
		if d, due := o.dueDead(now); due {
			m.wg.Go(func() { o.runDivert(ctx, d) })
		}
	}
}

// dueDead says whether there is something to divert, and reserves the partition.
func (o *owner) dueDead(now time.Time) (d diverted, due bool) {
	c := o.s.g.settings()
	most := maxAttempts(o.key.Group, o.key.Topic, c)
	o.mu.Lock()
	wait := o.state != stateOwned || o.win == nil || o.dead.busy || now.Before(o.dead.retryAt) || o.sess.Ownership() == discovery.Lost
	if !wait {
		o.win.SetMaxAttempts(most) // the group may have changed it
	}
	still := o.standsStill()
	failed := o.dead.why != ""
	o.mu.Unlock()
	if wait {
		return d, false
	}
	if d = o.exhausted(now); len(d.messages) == 0 {
		if !still || unreadablePolicy(o.key.Group, o.key.Topic, c) == unreadableStop {
			if failed { // acknowledged meanwhile, sought past, or settled otherwise
				o.mu.Lock()
				o.dead.failures, o.dead.why = 0, ""
				o.mu.Unlock()
				o.s.g.m.outage.works(o.deadPart())
			}
			return d, false
		}
	}
	o.mu.Lock()
	o.dead.busy = true
	o.mu.Unlock()
	return d, true
}

// isDiverting says whether something of the partition is on its way to the dead
// letters.
func (o *owner) isDiverting() bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.dead.busy
}

// standsStill says whether the log stands still where it may be passed over. It
// needs mu.
func (o *owner) standsStill() bool {
	bad := o.dead.bad
	return o.unreadable && o.win != nil && bad != nil && bad.offset == o.win.Next() && bad.passable(time.Now(), o.s.g.m.cfg.DamageWait)
}

// deadPart names the partition's dead letters for the log of outages.
func (o *owner) deadPart() string { return "dead letters of " + o.key.String() }

// divertBatch is how many messages are diverted at once.
const divertBatch = 500

// offsets are those of the messages.
func (d diverted) offsets() []int64 {
	all := make([]int64, len(d.messages))
	for i, x := range d.messages {
		all[i] = x.Offset
	}
	return all
}

// runDivert diverts until nothing is left to be or it fails; d has been listed
// already.
func (o *owner) runDivert(ctx context.Context, d diverted) {
	var err *api.Error
	for len(d.messages) > 0 && err == nil && ctx.Err() == nil {
		if dead := deadOf(o.key.Group, o.s.g.settings()); dead == deadOff || dead == o.key.Topic {
			d.retain(d.offsets()...) // what fills the window waits until its time comes
			break
		}
		for chunk := range slices.Chunk(d.messages, divertBatch) {
			part := d
			part.messages = chunk
			if err != nil {
				part.retain(part.offsets()...)
				continue
			}
			err = o.divertMessages(ctx, part)
		}
		if err == nil {
			d = o.exhausted(time.Now())
		}
	}
	if err == nil && ctx.Err() == nil {
		err = o.passOver(ctx)
	}
	m := o.s.g.m
	o.mu.Lock()
	o.dead.busy = false
	if err == nil {
		o.dead.failures, o.dead.why = 0, ""
	} else {
		o.dead.failures++
		o.dead.why = err.Message
		o.dead.retryAt = time.Now().Add(backOff(o.dead.failures, time.Second, 30*time.Second))
	}
	o.mu.Unlock()
	if err == nil {
		m.outage.works(o.deadPart())
	} else if ctx.Err() == nil {
		m.metrics.deadFailures.WithLabelValues(o.key.Group, o.key.Topic).Inc()
		m.outage.fails(o.deadPart(), "write dead letters", err)
	}
	kick(o.poke) // a release may wait for it
	o.s.wake()   // a waiting pull may answer why, or has something to take
}

// divertMessages writes messages that may not be handed out any more to the dead
// letters, or passes them over, and counts them as acknowledged then.
func (o *owner) divertMessages(ctx context.Context, d diverted) *api.Error {
	m := o.s.g.m
	dead := deadOf(o.key.Group, o.s.g.settings())
	all := d.offsets()
	gone := all
	var failed *api.Error
	if dead != deadSkip {
		drafts := make([]draft, len(d.messages))
		for i, x := range d.messages {
			drafts[i] = draft{o.letter(x.Offset, x.Offset+1, x.Ref), x.Ref}
			drafts[i].l.reason, drafts[i].l.attempts, drafts[i].l.err = x.Reason, x.Attempt, x.LastError
			drafts[i].l.first = x.FirstError
		}
		var errs []*api.Error
		errs, failed = m.writeLetters(ctx, dead, o.key.Topic, drafts)
		gone = nil
		for i, err := range errs {
			if err == nil {
				gone = append(gone, all[i])
			} else {
				failed = err
				d.retain(all[i])
			}
		}
		if len(errs) == 0 {
			d.retain(all...)
		}
	}
	if len(gone) == 0 {
		return failed
	}
	reasons := map[string]int{}
	for _, x := range d.messages {
		reasons[x.Reason]++
	}
	if err := d.skip(ctx, gone...); err != nil {
		if isCode(err, api.CodeLeaseLost) {
			return nil // whoever has the partition now writes the same letters again
		}
		return err
	}
	o.count(dead, reasons)
	o.log.Warn("messages were given up", zap.String("to", dead), zap.Int64s("offsets", gone),
		zap.String("reason", d.messages[0].Reason), zap.Int("attempts", d.messages[0].Attempt), zap.String("last_error", clip(d.messages[0].LastError, 200)))
	return failed
}

// count counts messages as diverted.
func (o *owner) count(dead string, reasons map[string]int) {
	how := o.s.g.m.metrics.deadLetters
	if dead == deadSkip {
		how = o.s.g.m.metrics.skipped
	}
	for reason, n := range reasons {
		how.WithLabelValues(o.key.Group, o.key.Topic, reason).Add(float64(n))
	}
}

// letter says of a message what the partition knows.
func (o *owner) letter(offset, until int64, r *kgo.Record) letter {
	o.mu.Lock()
	uuid := o.uuid
	o.mu.Unlock()
	l := letter{
		id:    letterID(o.key.Group, o.key.Topic, uuid, o.key.Partition, offset),
		group: o.key.Group, topic: o.key.Topic, partition: o.key.Partition, offset: offset, until: until,
		at: time.Now(),
	}
	if r != nil {
		l.millis = r.Timestamp.UnixMilli()
	}
	return l
}

// passOver goes on behind what cannot be delivered as it stands in the log, once
// a second look has found the same, and its letter is written.
func (o *owner) passOver(ctx context.Context) *api.Error {
	m := o.s.g.m
	policy := unreadablePolicy(o.key.Group, o.key.Topic, o.s.g.settings())
	o.mu.Lock()
	if !o.standsStill() || policy == unreadableStop {
		o.mu.Unlock()
		return nil
	}
	bad, generation, epoch := *o.dead.bad, o.generation, o.epoch
	o.mu.Unlock()
	seen, err := m.up.Inspect(ctx, o.key.Topic, o.key.Partition, bad.offset)
	if err != nil {
		return brokerError("look again at what cannot be read", err)
	}
	defer seen.Release()
	r, after, left, millis := seen.Record, seen.After, 0, int64(0)
	switch {
	case bad.kind == kindOversized && seen.Oversized && seen.After > bad.offset:
		// What its batch takes on the brokers is told and not kept: it lies there,
		// for whoever has the memory, and its bytes are no message.
		r, left, millis = &kgo.Record{}, len(seen.Raw), seen.Millis
	case bad.kind == kindOversized && r != nil && r.Offset == bad.offset && tooLarge([]*kgo.Record{r}, m.cfg.MaxMessageBytes) != nil:
		after = r.Offset + 1
	case bad.kind == kindUndecodable && seen.Why != "" && seen.After > bad.offset:
		r = &kgo.Record{Value: seen.Raw}
	case bad.kind == kindUndecodable && seen.Why != "" && bad.passable(time.Now(), m.cfg.DamageWait):
		if after, err = o.endOfDamage(ctx, bad); err != nil {
			return brokerError("look for the end of what cannot be read", err)
		}
		r = &kgo.Record{}
	default:
		// It can be read now, or nobody knows where to go on: the reader comes
		// back to it by itself.
		return nil
	}
	dead := deadSkip
	if policy == unreadableDead {
		dead = deadOf(o.key.Group, o.s.g.settings())
		l := o.letter(bad.offset, after, seen.Record)
		l.reason, l.err, l.beyond = bad.kind, bad.why, left
		if left > 0 {
			l.millis = millis
		}
		errs, failed := m.writeLetters(ctx, dead, o.key.Topic, []draft{{l, r}})
		if failed != nil {
			return failed
		}
		if errs[0] != nil {
			return errs[0]
		}
	}
	if err := o.goOn(ctx, bad, after, generation, epoch); err != nil {
		return err
	}
	o.count(dead, map[string]int{bad.kind: 1})
	o.log.Error("records that cannot be delivered were passed over",
		zap.String("to", dead), zap.Int64("offset", bad.offset), zap.Int64("until", after), zap.String("why", bad.why))
	return nil
}

// mostProbes is how many offsets are looked at in one attempt.
const mostProbes = 100_000

// endOfDamage finds the first offset behind damage that the brokers can read,
// one after the other: a good batch between two bad ones must not be missed.
func (o *owner) endOfDamage(ctx context.Context, bad unreadable) (int64, error) {
	next, found, err := o.s.g.m.up.NextReadable(ctx, o.key.Topic, o.key.Partition, max(bad.probed, bad.offset+1), mostProbes)
	o.mu.Lock()
	if is := o.dead.bad; is != nil && is.offset == bad.offset {
		is.probed = max(is.probed, next)
	}
	o.mu.Unlock()
	if err == nil && !found {
		err = apiError(api.CodeCorruptRecord, "nothing from offset %d to %d can be read; looking further", bad.offset, next-1)
	}
	return next, err
}

// goOn moves the partition behind what was passed over, which counts as
// acknowledged.
func (o *owner) goOn(ctx context.Context, bad unreadable, after int64, generation, epoch uint64) *api.Error {
	o.mu.Lock()
	if o.win == nil || o.state != stateOwned && o.state != stateReleasing || o.generation != generation || o.epoch != epoch || o.win.Next() != bad.offset {
		o.mu.Unlock()
		return nil // it moved, or was sought past it
	}
	if err := o.win.Add(window.Fetched[*kgo.Record]{Next: after, LeaderEpoch: -1}); err != nil {
		o.mu.Unlock()
		return apiError(api.CodeInternal, "%v", err)
	}
	o.why, o.unreadable, o.dead.bad = "", false, nil
	p, cur := o.win.Position(), o.cur
	o.marked = p.Low
	o.mu.Unlock()
	m := o.s.g.m
	if cur != nil {
		m.reader.wake(cur)
	}
	err := m.local.Merge(ctx, o.key, p)
	m.checkpointer.Mark(o.key, generation, p)
	if err != nil {
		return apiError(api.CodeUnknownOutcome, "what was passed over may not be on disk: %v", err)
	}
	return nil
}

// draft is a letter to be written, and the message that it is of.
type draft struct {
	l letter
	r *kgo.Record
}

// writeLetters writes letters to a topic of dead letters, and tells what became
// of each. What does not fit goes without its value, and at last with nothing
// but what is said of it: a partition must not wait for ever for a letter that
// is too large. err is of all of them: nothing was written.
func (m *Manager) writeLetters(ctx context.Context, dead, origin string, drafts []draft) (errs []*api.Error, err *api.Error) {
	topic, terr := m.dead.topic(ctx, dead, origin)
	if terr != nil {
		return nil, brokerError("find the topic of the dead letters", terr)
	}
	at := func(d draft, p portion) (*kgo.Record, error) {
		r := d.l.record(dead, d.r, p)
		var err error
		r.Partition, err = place(topic, preferred(d.r.Key, d.l.partition, len(topic.Partitions)))
		return r, err
	}
	rs := make([]*kgo.Record, len(drafts))
	for i, d := range drafts {
		r, perr := at(d, whole)
		if perr != nil {
			return nil, brokerError("place a dead letter", perr)
		}
		rs[i] = r
	}
	errs = m.dead.write(ctx, topic, rs)
	for i, d := range drafts {
		// A batch that is too large as a whole says nothing of one letter in it.
		for p := whole; p <= bare && errs[i] != nil && errs[i].Code == api.CodeMessageTooLarge; p++ {
			r, perr := at(d, p)
			if perr != nil {
				break
			}
			errs[i] = m.dead.write(ctx, topic, []*kgo.Record{r})[0]
		}
	}
	for _, e := range errs {
		if e != nil && e.Code == api.CodeTopicNotFound {
			_, _ = m.up.Refresh(ctx, dead) // so that the next attempt makes it
		}
	}
	return errs, nil
}

// unreadablePolicy is what becomes of what cannot be delivered as it stands in
// the log: unreadableDead, Skip or Stop.
func unreadablePolicy(group, topic string, c discovery.GroupConfig) string {
	policy := c.Unreadable
	if policy == "" || policy == unreadableDead {
		switch deadOf(group, c) {
		case deadSkip:
			return unreadableSkip
		case deadOff, topic:
			return unreadableStop
		}
		return unreadableDead
	}
	return policy
}
