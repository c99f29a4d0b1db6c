package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

const (
	lookAgain    = 30 * time.Second // the broker and the store are compared though nothing changed
	leadParallel = 8                // partitions opened at once
)

// reconcile brings the broker in line with the store until ctx ends.
func (a *Agent) reconcile(ctx context.Context) error {
	failures := 0
	for {
		err := a.round(ctx)
		if ctx.Err() != nil {
			return nil
		}
		wake := a.wake
		pause := lookAgain
		if err != nil {
			failures++
			pause = backoff(failures)
			wake = nil // what comes meanwhile is looked at after the pause
			a.metrics.reconciles.WithLabelValues("error").Inc()
			a.log.Debug("reconcile: trying again", zap.Error(err))
			if !errors.Is(err, errBroker) {
				a.mirror.Resync() // what was decided on may be out of date
			}
		} else {
			failures = 0
			a.metrics.reconciles.WithLabelValues("ok").Inc()
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-wake:
		case <-timer.C:
		}
		timer.Stop()
	}
}

// errBroker marks what the broker could not do; the store is not to blame.
var errBroker = errors.New("the broker could not do it")

// round decides once and does it.
func (a *Agent) round(ctx context.Context) error {
	s := a.situation()
	t := decide(s)
	a.reportDecision(s, t)

	for _, part := range t.resign {
		if id, err := broker.ParseUUID(part.UUID); err == nil {
			a.theBroker().Resign(id, part.Partition)
		}
	}
	a.forget(t.resign)
	err := errors.Join(
		a.leadAll(t.serve, ""),
		a.leadAll(t.lead, s.session),
		a.takeAll(ctx, s, t.take),
		a.removeAll(ctx, s, t.remove),
	)
	a.reportFailures()
	a.refreshView()
	settled := s.facts.Cluster != facts.Unread && (s.session != "" || s.facts.Cluster != facts.Same)
	if (settled || s.alone) && (err == nil || errors.Is(err, errBroker)) {
		a.readied.Do(func() { close(a.ready) })
	}
	return err
}

func (a *Agent) situation() situation {
	f, _ := a.mirror.Latest()
	s := situation{facts: f, held: map[facts.Part]broker.Held{}}
	if live := a.liveSession(); live != nil {
		s.session = live.ID()
	}
	for _, h := range a.theBroker().Held() {
		s.held[facts.Part{UUID: h.ID.String(), Partition: h.Partition}] = h
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	s.self, s.alone, s.led = a.id, a.alone, maps.Clone(a.led)
	return s
}

// forget notes that the broker leads the partitions no more.
func (a *Agent) forget(parts []facts.Part) {
	if len(parts) == 0 {
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	next := maps.Clone(a.led) // a round may be looking at the old one
	for _, part := range parts {
		delete(next, part)
	}
	a.led = next
}

// leadAll tells the broker to lead, several at once.
func (a *Agent) leadAll(leads []broker.Lead, session string) error {
	if len(leads) == 0 {
		return nil
	}
	var mu sync.Mutex // guards done and failed
	done := map[facts.Part]standing{}
	var failed error
	var g errgroup.Group
	g.SetLimit(leadParallel)
	for _, l := range leads {
		g.Go(func() error {
			err := a.theBroker().Lead(l)
			mu.Lock()
			defer mu.Unlock()
			done[facts.Part{UUID: l.ID.String(), Partition: l.Partition}] = standing{lead: l, session: session, failed: err != nil}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%w: lead %s-%d at epoch %d: %w", errBroker, l.Topic, l.Partition, l.Epoch, err))
			}
			return nil
		})
	}
	_ = g.Wait()
	a.mu.Lock()
	next := maps.Clone(a.led)
	maps.Copy(next, done)
	a.led = next
	a.mu.Unlock()
	a.refreshView()
	return failed
}

// takeAll takes the lead of partitions: their epochs are raised by compare and
// swap, under this broker's registration, and then the broker leads at them.
func (a *Agent) takeAll(ctx context.Context, s situation, take []broker.Lead) error {
	byShard := map[string][]broker.Lead{} // in the order of take within a shard
	var order []string
	for _, l := range take {
		key := discovery.KeyShard(l.ID.String(), facts.Part{Partition: l.Partition}.Shard())
		if _, ok := byShard[key]; !ok {
			order = append(order, key)
		}
		byShard[key] = append(byShard[key], l)
	}
	const room = facts.MaxOps - 1 // the registration's check
	var failed error
	for keys := range slices.Chunk(order, room) {
		ops := []discovery.Op{discovery.Held(discovery.KeyBroker(s.self), s.session)}
		var leads []broker.Lead
		for _, key := range keys {
			op, raised := raise(s, byShard[key])
			ops = append(ops, op)
			leads = append(leads, raised...)
		}
		if err := a.writer.Commit(ctx, ops...); err != nil {
			return errors.Join(failed, err)
		}
		a.metrics.takes.Add(float64(len(leads)))
		failed = errors.Join(failed, a.leadAll(leads, s.session))
	}
	return failed
}

// raise is the shard with this broker as leader of the partitions, at the next
// epoch of each, above what the folder was led at before.
func raise(s situation, leads []broker.Lead) (discovery.Op, []broker.Lead) {
	part := facts.Part{UUID: leads[0].ID.String(), Partition: leads[0].Partition}
	old := s.facts.Shards[part.UUID][part.Shard()]
	next := facts.CloneShard(old.Shard)
	next.Writer = discovery.NewNonce()
	raised := slices.Clone(leads)
	for i, l := range raised {
		part.Partition = l.Partition
		p := &next.Partitions[part.Slot()]
		p.Leader, p.ISR = s.self, slices.Clone(p.Replicas)
		p.Epoch = 1 + max(p.Epoch, s.held[part].LeaderEpoch, s.led[part].lead.Epoch)
		raised[i].Epoch = p.Epoch
	}
	return discovery.CAS(discovery.KeyShard(part.UUID, part.Shard()), discovery.Encode(next), old.Version), raised
}

// removeAll deletes the files of partitions whose topic is being deleted, and
// then takes this broker out of their replicas. When no replicas are left the
// controller deletes the keys; till then they wait for brokers that are down.
func (a *Agent) removeAll(ctx context.Context, s situation, parts []facts.Part) error {
	var failed error
	var gone []facts.Part
	byShard := map[string][]facts.Part{}
	var order []string
	for _, part := range parts {
		if _, held := s.held[part]; held {
			id, err := broker.ParseUUID(part.UUID)
			if err == nil {
				err = a.theBroker().Remove(id, part.Partition)
			}
			if err != nil {
				failed = errors.Join(failed, fmt.Errorf("%w: remove partition %d of topic %s: %w", errBroker, part.Partition, part.UUID, err))
				continue
			}
			a.log.Info("partition removed", zap.String("topic", s.held[part].Topic), zap.Int32("partition", part.Partition), zap.String("uuid", part.UUID))
		}
		gone = append(gone, part)
		if st, listed := s.facts.State(part); !listed || !slices.Contains(st.Replicas, s.self) {
			continue
		}
		key := discovery.KeyShard(part.UUID, part.Shard())
		if _, ok := byShard[key]; !ok {
			order = append(order, key)
		}
		byShard[key] = append(byShard[key], part)
	}
	a.forget(gone)
	text := ""
	if failed != nil {
		text = failed.Error()
	}
	a.alarms.put(alarmRemove, text)
	if s.session == "" {
		return failed
	}
	for keys := range slices.Chunk(order, facts.MaxOps-1) {
		ops := []discovery.Op{discovery.Held(discovery.KeyBroker(s.self), s.session)}
		for _, key := range keys {
			ops = append(ops, without(s, byShard[key]))
		}
		if err := a.writer.Commit(ctx, ops...); err != nil {
			return errors.Join(failed, err)
		}
	}
	return failed
}

// without is the shard with this broker taken out of the partitions' replicas.
func without(s situation, parts []facts.Part) discovery.Op {
	old := s.facts.Shards[parts[0].UUID][parts[0].Shard()]
	next := facts.CloneShard(old.Shard)
	next.Writer = discovery.NewNonce()
	us := func(id int32) bool { return id == s.self }
	for _, part := range parts {
		p := &next.Partitions[part.Slot()]
		p.Replicas, p.ISR = slices.DeleteFunc(p.Replicas, us), slices.DeleteFunc(p.ISR, us)
		if p.Leader == s.self {
			p.Leader = -1
		}
	}
	return discovery.CAS(discovery.KeyShard(parts[0].UUID, parts[0].Shard()), discovery.Encode(next), old.Version)
}

// reportDecision raises the alarms about what the decision found.
func (a *Agent) reportDecision(s situation, t todo) {
	a.clusterAlarm(s.facts.Cluster, s.facts.StoreID)
	text := ""
	if n := len(t.unknown); n > 0 {
		text = fmt.Sprintf("%d partitions on disk are unknown to the store (%s): nothing was removed; if the store lost them, %s",
			n, names(s, t.unknown), a.rebuildHint())
	}
	a.alarms.put(alarmUnknown, text)
	text = ""
	if n := len(t.elsewhere); n > 0 {
		text = fmt.Sprintf("%d partitions on disk are placed on other brokers by the store (%s): they are not served here, and nothing was removed",
			n, names(s, t.elsewhere))
	}
	a.alarms.put(alarmElsewhere, text)
	text = ""
	if t.beyond > 0 {
		text = fmt.Sprintf("%d partitions have several replicas, which this version cannot serve", t.beyond)
	}
	a.alarms.put(alarmReplicated, text)
}

// names lists the first partitions for people.
func names(s situation, parts []facts.Part) string {
	const most = 5
	text := ""
	for i, p := range parts {
		if i == most {
			return text + ", …"
		}
		if i > 0 {
			text += ", "
		}
		text += fmt.Sprintf("%s-%d", s.held[p].Topic, p.Partition)
	}
	return text
}

// reportFailures raises the alarm about partitions that the broker refuses.
func (a *Agent) reportFailures() {
	a.mu.Lock()
	n, example := 0, ""
	for _, s := range a.led {
		if s.failed {
			n++
			name := fmt.Sprintf("%s-%d", s.lead.Topic, s.lead.Partition)
			if example == "" || name < example {
				example = name
			}
		}
	}
	a.mu.Unlock()
	text := ""
	if n > 0 {
		text = fmt.Sprintf("%d partitions cannot be led by this broker, such as %s: the log says why; it goes on trying", n, example)
	}
	a.alarms.put(alarmLead, text)
}
