package publish

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"go.uber.org/zap"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// Publish brings one message to a topic and waits for its fate. The error is
// an *api.Error: brokers_unavailable says that it certainly is not written,
// unknown_outcome that it may be.
func (p *Publisher) Publish(ctx context.Context, topic string, m Message, o Options) (api.Published, error) {
	j := newSingle(m)
	results, err := p.publish(ctx, topic, j, o, false)
	if err != nil {
		return api.Published{}, err
	}
	r := results[0]
	at := timeOf(&m, j.now)
	j.reuse()
	if r.Error != nil {
		return api.Published{}, r.Error
	}
	return api.Published{Topic: topic, Partition: r.Partition, Offset: r.Offset, Timestamp: at}, nil
}

// PublishBatch brings messages to a topic and waits for the fate of each, in
// the order given. The error (an *api.Error) is of the batch as a whole:
// nothing of it was sent. Its Line, if any, counts messages.
func (p *Publisher) PublishBatch(ctx context.Context, topic string, ms []Message, o Options) ([]api.BatchResult, error) {
	if len(ms) > p.cfg.BatchRecords {
		if o.Landed != nil {
			o.Landed(nil)
		}
		return nil, TooMany(len(ms), p.cfg.BatchRecords)
	}
	return p.publish(ctx, topic, newJob(ms), o, true)
}

func (p *Publisher) publish(ctx context.Context, topic string, j *job, o Options, batch bool) ([]api.BatchResult, error) {
	begun := time.Now()
	j.now, j.placed = begun, o.IdempotencyKey != ""
	if o.Timeout == 0 {
		o.Timeout = p.cfg.Timeout
	}
	o.Timeout = min(o.Timeout, p.cfg.MaxTimeout)
	if o.Begun.IsZero() {
		o.Begun = begun
	}
	j.wait.Context, j.wait.deadline = ctx, o.Begun.Add(o.Timeout)
	if d, ok := ctx.Deadline(); ok && d.Before(j.wait.deadline) {
		j.wait.deadline = d
	}
	results, landed, err := p.send(topic, j, o, batch)
	j.wait.end()
	if landed && o.Landed != nil {
		o.Landed(nil)
	}
	if o.Ack == AckAll || o.Ack == AckLeader {
		p.metrics.by[o.Ack].seconds.Observe(time.Since(begun).Seconds())
	}
	if err != nil {
		var ae *api.Error
		if !errors.As(err, &ae) {
			ae = api.NewError(api.CodeInternal, err.Error())
		}
		p.metrics.failures.WithLabelValues(string(ae.Code)).Add(float64(len(j.ms)))
		p.troubles.failed(topic, noPartition, ae.Code, len(j.ms))
		return nil, ae
	}
	written, bytes := 0, 0
	for i := range results {
		if e := results[i].Error; e != nil {
			p.metrics.failures.WithLabelValues(string(e.Code)).Inc()
			p.troubles.failed(topic, results[i].Partition, e.Code, 1)
			continue
		}
		written++
		bytes += j.ms[i].size()
	}
	p.metrics.by[o.Ack].records.Add(float64(written))
	p.metrics.by[o.Ack].bytes.Add(float64(bytes))
	return results, nil
}

// send has all messages brought to their partitions. landed says that none of
// them is on its way any more, so that the results are the last word; where they
// are not, o.Landed is called later.
func (p *Publisher) send(topic string, j *job, o Options, batch bool) (results []api.BatchResult, landed bool, err error) {
	if o.Ack != AckAll && o.Ack != AckLeader {
		return nil, true, api.NewError(api.CodeInternal, "ack="+o.Ack.String()+" came past the spool")
	}
	if p.closed.Load() {
		return nil, true, stopping()
	}
	bytes, named, err := p.checkSizes(j.ms, batch)
	if err != nil {
		return nil, true, err
	}
	ctx := &j.wait
	if !j.now.Before(ctx.deadline) || ctx.Context.Err() != nil {
		return nil, true, late(o.Timeout)
	}
	t, err := p.topic(ctx, topic)
	if err != nil {
		p.refusedWhole(topic, err)
		return nil, true, err
	}
	if batch && named {
		if t, err = p.checkPartitions(ctx, t, j.ms); err != nil {
			return nil, true, err
		}
	}
	s := p.state(&t)
	p.knowLimit(ctx, s, topic, j.now)
	if !j.room.take(ctx, p, len(j.ms), bytes) {
		return nil, true, away("too many messages are on their way to the brokers; nothing was sent")
	}
	if !p.begin() {
		j.room.free()
		return nil, true, stopping()
	}
	j.room.begun = true
	s.enter(p, &t, j, o.Ack)
	if o.Entered != nil {
		o.Entered()
	}
	if len(j.pieces) > 0 && !j.hasLanded() {
		results, landed = j.leave(unheard(o.Timeout), unsent(o.Timeout), o.Landed)
	} else {
		results, landed = j.results, true
	}
	if landed {
		j.room.free()
	}
	return results, landed, nil
}

// checkSizes refuses messages that are too large, before anything is sent. named
// says that some name their partition.
func (p *Publisher) checkSizes(ms []Message, batch bool) (bytes int, named bool, err error) {
	for i := range ms {
		n := ms[i].size()
		if n > p.cfg.MaxMessageBytes {
			e := tooLarge(n, p.cfg.MaxMessageBytes)
			if batch {
				e.Message = fmt.Sprintf("message %d of the batch: %s; nothing was sent", i+1, e.Message)
				e.Line = i + 1
			}
			return 0, false, e
		}
		bytes += n
		named = named || ms[i].Partition != nil
	}
	return bytes, named, nil
}

// topic is what is known of the topic; one that is not there is created when
// the configuration says so. Leaders that are away are looked for once more,
// so that an old memory never refuses a message.
func (p *Publisher) topic(ctx context.Context, name string) (upstream.Topic, error) {
	t, err := p.up.Topic(ctx, name)
	if p.create && upstream.MayAutoCreate(name) && err != nil && errors.Is(err, api.NewError(api.CodeTopicNotFound, "")) {
		t, err = p.up.CreateTopic(ctx, name, api.TopicSpec{})
		if errors.Is(err, api.NewError(api.CodeTopicExists, "")) {
			t, err = p.up.Refresh(ctx, name)
		}
	}
	if err != nil {
		return t, err
	}
	for i := range t.Partitions {
		if t.Partitions[i].Leader < 0 {
			return p.up.Refresh(ctx, name)
		}
	}
	return t, nil
}

// checkPartitions refuses a batch with a message for a partition that is not
// there, before anything of it is sent. The brokers are asked once more, since
// the partition may be new.
func (p *Publisher) checkPartitions(ctx context.Context, t upstream.Topic, ms []Message) (upstream.Topic, error) {
	fresh := false
	for i := range ms {
		if ms[i].Partition == nil {
			continue
		}
		if _, ok := t.Partition(*ms[i].Partition); ok {
			continue
		}
		if !fresh {
			now, err := p.up.Refresh(ctx, t.Name)
			if err != nil {
				return t, err
			}
			t, fresh = now, true
		}
		if _, ok := t.Partition(*ms[i].Partition); !ok {
			e := api.NewError(api.CodeBadRecord, fmt.Sprintf("message %d of the batch: topic %s has no partition %d: it has 0 to %d; nothing was sent",
				i+1, t.Name, *ms[i].Partition, len(t.Partitions)-1))
			e.Line = i + 1
			return t, e
		}
	}
	return t, nil
}

// refusedWhole notes why nothing can be sent to a topic, if it is for the brokers
// to mend.
func (p *Publisher) refusedWhole(topic string, err error) {
	if e, ok := errors.AsType[*api.Error](err); ok && e.Code == api.CodeBrokersUnavailable {
		p.troubles.meet(topic, noPartition, noBroker, e.Message)
	}
}

// state remembers a topic. Of a topic that was deleted and made anew under its
// name nothing is kept; what waits for the old one finds out by itself.
func (p *Publisher) state(t *upstream.Topic) *topicState {
	p.mu.Lock()
	s := p.topics[t.Name]
	anew := s != nil && s.uuid != t.UUID
	if s == nil || anew {
		s = &topicState{uuid: t.UUID, ids: p.ids}
		if anew {
			// A broker that is behind may have shown the earlier topic for a moment,
			// and this one was written to before. Its sequence numbers begin anew, so
			// it must be another producer's, or messages would be taken for repeats.
			s.ids = newProducerIDs(p.ids.cl)
		}
		p.topics[t.Name] = s
	}
	p.mu.Unlock()
	if anew {
		p.batchLimits.Delete(t.Name)
		p.log.Info("topic was made anew", zap.String("topic", t.Name))
	}
	return s
}

// enter chooses each message's partition and puts it into its lane, in order.
// What finds no leader lands at once: it never entered. Errors are shared: a
// batch may have many messages.
func (s *topicState) enter(p *Publisher, t *upstream.Topic, j *job, ack Ack) {
	// The order of two requests is the same in all lanes.
	s.mu.Lock()
	defer s.mu.Unlock()
	free := s.free(t)
	if len(j.ms) == 1 {
		id, refused := choose(t, free, &j.ms[0], &s.run, j.now)
		if refused != nil {
			p.refused(t, id, refused)
			j.refuse(0, id, refused)
			return
		}
		j.onePiece[0] = piece{job: j, lane: s.lane(p, t, ack, id), which: j.oneWhich[:]}
		j.pieces = j.onePiece[:]
	} else {
		s.divide(p, t, free, j, ack)
	}
	for i := range j.pieces {
		j.pieces[i].lane.enter(&j.pieces[i])
	}
}

// refused notes that messages were refused because nobody leads their partition,
// or any of the topic.
func (p *Publisher) refused(t *upstream.Topic, partition int32, why *api.Error) {
	switch {
	case why.Code != api.CodeBrokersUnavailable:
	case int(partition) < len(t.Partitions) && t.Partitions[partition].Leader < 0:
		p.troubles.meet(t.Name, partition, noBroker, why.Message)
	default:
		p.troubles.meet(t.Name, noPartition, noBroker, why.Message)
	}
}

// free are the partitions for messages without a key: one to which nothing gets
// through just now counts as without a leader, as long as there are others. The
// brokers may take seconds until they say so themselves. mu is held.
func (s *topicState) free(t *upstream.Topic) []upstream.Partition {
	if s.stuck.Load() == 0 {
		return t.Partitions
	}
	free, some := slices.Clone(t.Partitions), false
	for i := range free {
		if s.stuckAt(i) {
			free[i].Leader = -1
		}
		some = some || free[i].Leader >= 0
	}
	if !some {
		return t.Partitions
	}
	return free
}

// stuckAt says whether nothing gets through to a partition just now; mu is held.
func (s *topicState) stuckAt(partition int) bool {
	for _, lanes := range s.lanes {
		if partition < len(lanes) && lanes[partition] != nil && lanes[partition].stuck.Load() {
			return true
		}
	}
	return false
}

// divide makes a piece for each partition that messages of a batch go to.
func (s *topicState) divide(p *Publisher, t *upstream.Topic, free []upstream.Partition, j *job, ack Ack) {
	chosen := make([]int32, len(j.ms))
	counts := make([]int32, len(t.Partitions)+1) // behind the last those that go nowhere
	told := map[string]*api.Error{}              // by its text
	nowhere := int32(len(t.Partitions))
	for i := range j.ms {
		id, refused := choose(t, free, &j.ms[i], &s.run, j.now)
		if refused != nil {
			if same := told[refused.Message]; same != nil {
				refused = same
			} else {
				p.refused(t, id, refused)
			}
			told[refused.Message] = refused
			j.refuse(i, id, refused)
			id = nowhere
		}
		chosen[i] = id
		counts[id]++
	}
	order := make([]int32, len(j.ms))
	pieces, at := 0, int32(0)
	for id, n := range counts {
		if n > 0 && id < int(nowhere) {
			pieces++
		}
		counts[id] = at
		at += n
	}
	begins := append([]int32(nil), counts...)
	for i, id := range chosen {
		order[counts[id]] = int32(i)
		counts[id]++
	}
	j.pieces = make([]piece, 0, pieces) // the lanes point into it
	for id := range nowhere {
		if from, to := begins[id], counts[id]; to > from {
			j.pieces = append(j.pieces, piece{job: j, lane: s.lane(p, t, ack, id), which: order[from:to:to]})
		}
	}
}

// lane is that of a partition; mu is held.
func (s *topicState) lane(p *Publisher, t *upstream.Topic, ack Ack, id int32) *lane {
	lanes := &s.lanes[ack]
	for int(id) >= len(*lanes) {
		*lanes = append(*lanes, nil)
	}
	l := (*lanes)[id]
	if l == nil {
		l = &lane{p: p, of: s, topic: t.Name, uuid: t.UUID, partition: id, ack: ack, id: noProducer}
		(*lanes)[id] = l
	}
	return l
}

// unheard is the error of a message that its lane has sent, and of which no broker
// has told in time what became of it. What brokers said instead is in it.
func unheard(timeout time.Duration) func(*lane) *api.Error {
	told := map[*lane]*api.Error{}
	return func(l *lane) *api.Error {
		e := told[l]
		if e == nil {
			why := fmt.Sprintf("no broker answered in time (timeout %s)", timeout)
			if last := l.why.Load(); last != nil {
				why = fmt.Sprintf("no broker told within the timeout (%s); the last that came of it is: %s", timeout, *last)
			}
			e = unknown(l.topic, why+"; it may still be written")
			told[l] = e
		}
		return e
	}
}

// unsent is the error of a message that its lane has not sent in time.
func unsent(timeout time.Duration) func(*lane) *api.Error {
	told := map[*lane]*api.Error{}
	return func(l *lane) *api.Error {
		e := told[l]
		if e == nil {
			if e = late(timeout); l.stuck.Load() {
				if why := l.why.Load(); why != nil {
					e = away(fmt.Sprintf("the message for topic %s was not sent in time (timeout %s) and is not written: %s", l.topic, timeout, *why))
				}
			}
			told[l] = e
		}
		return e
	}
}

// tell is what an error of a produce answer means to the caller of a message, if
// there was no attempt before.
func (p *Publisher) tell(err error, topic string) *api.Error {
	if errors.Is(err, kerr.InvalidRecord) && p.compacted(topic) {
		return NeedsKey(topic)
	}
	return outcome(err, topic)
}

// compacted says whether the brokers tell of a topic that they compact it, which
// takes a key of each message. It is asked only for the words of an error.
func (p *Publisher) compacted(topic string) bool {
	ctx, cancel := context.WithTimeout(p.ctx, time.Second)
	defer cancel()
	c, err := p.up.TopicConfigs(ctx, topic)
	return err == nil && c.Compacted()
}

// NeedsKey is the error of a message without a key that a compacted topic refuses.
func NeedsKey(topic string) *api.Error {
	return api.NewError(api.CodeBadRecord, fmt.Sprintf("the broker refuses the message for topic %s: the topic is compacted: give every message a key", topic))
}

// late is the error of what was not sent before its time was over.
func late(timeout time.Duration) *api.Error {
	return away(fmt.Sprintf("the time (timeout %s) was over before the message could be sent; it was not sent", timeout))
}

func stopping() *api.Error {
	return api.NewError(api.CodeDraining, "this sidecar is stopping and takes no more messages")
}
