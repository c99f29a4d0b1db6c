package publish

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// Publish brings one message to a topic and waits for its fate. The error is
// an *api.Error: brokers_unavailable says that it certainly is not written,
// unknown_outcome that it may be.
func (p *Publisher) Publish(ctx context.Context, topic string, m Message, o Options) (api.Published, error) {
	results, ts, err := p.publish(ctx, topic, []Message{m}, o, false)
	if err != nil {
		return api.Published{}, err
	}
	if results[0].Error != nil {
		return api.Published{}, results[0].Error
	}
	return api.Published{Topic: topic, Partition: results[0].Partition, Offset: results[0].Offset, Timestamp: ts[0].Timestamp.UnixMilli()}, nil
}

// PublishBatch brings messages to a topic and waits for the fate of each, in
// the order given. The error (an *api.Error) is of the batch as a whole:
// nothing of it was sent. Its Line, if any, counts messages.
func (p *Publisher) PublishBatch(ctx context.Context, topic string, ms []Message, o Options) ([]api.BatchResult, error) {
	if len(ms) > p.cfg.BatchRecords {
		return nil, TooMany(len(ms), p.cfg.BatchRecords)
	}
	results, _, err := p.publish(ctx, topic, ms, o, true)
	return results, err
}

func (p *Publisher) publish(ctx context.Context, topic string, ms []Message, o Options, batch bool) ([]api.BatchResult, []kgo.Record, error) {
	begun := time.Now()
	if o.Timeout == 0 {
		o.Timeout = p.cfg.Timeout
	}
	o.Timeout = min(o.Timeout, p.cfg.MaxTimeout)
	if o.Begun.IsZero() {
		o.Begun = begun
	}
	ctx, cancel := context.WithDeadline(ctx, o.Begun.Add(o.Timeout))
	defer cancel()
	defer p.tellLanded(&o)()

	results, recs, err := p.trySend(ctx, topic, ms, o, begun, batch)
	p.metrics.seconds.WithLabelValues(o.Ack.String()).Observe(time.Since(begun).Seconds())
	if err != nil {
		var ae *api.Error
		if !errors.As(err, &ae) {
			ae = api.NewError(api.CodeInternal, err.Error())
		}
		p.metrics.failures.WithLabelValues(string(ae.Code)).Add(float64(len(ms)))
		return nil, nil, ae
	}
	written, bytes := 0, 0
	for i, r := range results {
		if r.Error != nil {
			p.metrics.failures.WithLabelValues(string(r.Error.Code)).Inc()
			continue
		}
		written++
		bytes += ms[i].size()
	}
	p.metrics.records.WithLabelValues(o.Ack.String()).Add(float64(written))
	p.metrics.bytes.WithLabelValues(o.Ack.String()).Add(float64(bytes))
	return results, recs, nil
}

func (p *Publisher) trySend(ctx context.Context, topic string, ms []Message, o Options, now time.Time, batch bool) ([]api.BatchResult, []kgo.Record, error) {
	if o.Ack != AckAll && o.Ack != AckLeader {
		return nil, nil, api.NewError(api.CodeInternal, "ack="+o.Ack.String()+" came past the spool")
	}
	if p.isClosed() {
		return nil, nil, api.NewError(api.CodeDraining, "this sidecar is stopping and takes no more messages")
	}
	for i, m := range ms {
		if n := m.size(); n > p.cfg.MaxMessageBytes {
			e := tooLarge(n, p.cfg.MaxMessageBytes)
			if batch {
				e.Message = fmt.Sprintf("message %d of the batch: %s; nothing was sent", i+1, e.Message)
				e.Line = i + 1
			}
			return nil, nil, e
		}
	}
	if ctx.Err() != nil {
		return nil, nil, late(o.Timeout)
	}
	t, err := p.topic(ctx, topic)
	if err != nil {
		return nil, nil, err
	}
	if batch {
		if t, err = p.checkPartitions(ctx, t, ms); err != nil {
			return nil, nil, err
		}
	}
	if e := p.limits.admit(ctx, topic, len(ms)); e != nil {
		return nil, nil, e
	}
	s := p.state(t)
	p.knowLimit(ctx, s, topic, time.Now())
	recs := records(topic, ms, now)
	f := newFlight(len(recs))
	life := p.lifeOf(ctx, o, len(recs))
	defer life.end(f)
	which := make([]int, len(recs))
	for i := range which {
		which[i] = i
	}
	for len(which) > 0 {
		p.enter(ctx, t, s, ms, recs, which, o, life, f)
		if o.Entered != nil {
			o.Entered()
			o.Entered = nil
		}
		if !p.await(ctx, life, f) {
			if o.later != nil {
				o.later(t, f)
			}
			return p.settle(t, f, o.Ack), recs, nil
		}
		if which = f.again(errNotKnownYet, errDisplaced); len(which) > 0 {
			p.clients[o.Ack].ForceMetadataRefresh()
			select {
			case <-time.After(50 * time.Millisecond):
			case <-ctx.Done():
				for _, i := range which {
					f.land(i, 0, -1, late(o.Timeout))
				}
				return p.settle(t, f, o.Ack), recs, nil
			}
		}
	}
	return p.settle(t, f, o.Ack), recs, nil
}

// tellLanded has Options.Landed called: by what it returns, at the end of the
// call, or by a goroutine that waits for what is still on its way.
func (p *Publisher) tellLanded(o *Options) (atEnd func()) {
	if o.Landed == nil {
		return func() {}
	}
	landed, ack, watched := o.Landed, o.Ack, false
	o.later = func(t upstream.Topic, f *flight) {
		p.mu.Lock()
		defer p.mu.Unlock()
		if watched = !p.closed; watched {
			p.watches.Go(func() {
				<-f.done
				landed(p.settle(t, f, ack))
			})
		}
	}
	return func() {
		if !watched {
			landed(nil)
		}
	}
}

// await waits until all has landed; false when ctx ends first.
func (p *Publisher) await(ctx context.Context, life *life, f *flight) bool {
	for {
		select {
		case <-f.done:
			return true
		case <-life.check:
			life.endUnsent(f, &p.writes)
		case <-ctx.Done():
			return false
		}
	}
}

// errNotKnownYet is the end of a record whose partition the client has not
// heard of: it was not sent, and is tried again.
var errNotKnownYet = errors.New("the partition is not known to the client yet")

// errDisplaced is the end of a record that was thrown out with another's that
// waited before it for too long: it was not sent, and is tried again.
var errDisplaced = errors.New("the brokers cannot be reached; it was not sent")

// errNoRoom is the end of a record that found no room in time.
var errNoRoom = errors.New("no room for more messages on their way")

func (p *Publisher) isClosed() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.closed
}

// topic is what is known of the topic; one that is not there is created when
// the configuration says so. Leaders that are away are looked for once more,
// so that an old memory never refuses a message.
func (p *Publisher) topic(ctx context.Context, name string) (upstream.Topic, error) {
	t, err := p.up.Topic(ctx, name)
	if p.create && errors.Is(err, api.NewError(api.CodeTopicNotFound, "")) {
		t, err = p.up.CreateTopic(ctx, name, api.TopicSpec{})
		if errors.Is(err, api.NewError(api.CodeTopicExists, "")) {
			t, err = p.up.Refresh(ctx, name)
		}
	}
	if err != nil {
		return t, err
	}
	for _, part := range t.Partitions {
		if part.Leader < 0 {
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
	for i, m := range ms {
		if m.Partition == nil {
			continue
		}
		if _, ok := t.Partition(*m.Partition); ok {
			continue
		}
		if !fresh {
			now, err := p.up.Refresh(ctx, t.Name)
			if err != nil {
				return t, err
			}
			t, fresh = now, true
		}
		if _, ok := t.Partition(*m.Partition); !ok {
			e := api.NewError(api.CodeBadRecord, fmt.Sprintf("message %d of the batch: topic %s has no partition %d: it has 0 to %d; nothing was sent",
				i+1, t.Name, *m.Partition, len(t.Partitions)-1))
			e.Line = i + 1
			return t, e
		}
	}
	return t, nil
}

// state remembers a topic. A topic that was deleted and made anew under its
// name is forgotten by the clients first, or they would send to the old one.
func (p *Publisher) state(t upstream.Topic) *topicState {
	p.mu.Lock()
	s := p.topics[t.Name]
	anew := s != nil && s.uuid != t.UUID
	if s == nil || anew {
		s = &topicState{uuid: t.UUID}
		p.topics[t.Name] = s
	}
	p.mu.Unlock()
	if anew {
		p.batchLimits.Delete(t.Name)
		p.log.Info("topic was made anew", zap.String("topic", t.Name))
		for _, cl := range p.clients {
			cl.PurgeTopicsFromProducing(t.Name)
		}
	}
	return s
}

// enter hands the records to the client, each to its partition, in order. What
// finds no leader or no room until ctx ends lands at once: it never entered. Errors
// are shared: a batch may have many messages.
func (p *Publisher) enter(ctx context.Context, t upstream.Topic, s *topicState, ms []Message, recs []kgo.Record, which []int, o Options, life *life, f *flight) {
	cl := p.clients[o.Ack]
	for k, i := range which {
		if ctx.Err() != nil {
			over := late(o.Timeout)
			for _, i := range which[k:] {
				f.land(i, 0, -1, over)
			}
			return
		}
		now := time.Now()
		s.mu.Lock()
		partition, r, refused := choose(t, ms[i], s.run, now)
		s.run = r
		s.mu.Unlock()
		if refused != nil {
			f.land(i, 0, -1, refused)
			continue
		}
		size := int64(max(1, ms[i].size()))
		if !p.room(ctx, size) {
			f.land(i, partition, -1, errNoRoom)
			continue
		}
		recs[i].Partition = partition
		part, _ := t.Partition(partition)
		before := p.writes.to(part)
		life.enters(i, part, before)
		cl.TryProduce(life.context(p, now), &recs[i], func(rec *kgo.Record, err error) {
			p.bytes.Release(size)
			p.count.Release(1)
			if err != nil && rec.Partition == notKnownYet {
				f.land(i, partition, -1, errNotKnownYet)
				return
			}
			f.land(i, partition, rec.Offset, life.fate(err, p.writes.to(part) == before))
		})
	}
}

// room takes one message's room, waiting until ctx ends.
func (p *Publisher) room(ctx context.Context, size int64) bool {
	if p.count.Acquire(ctx, 1) != nil {
		return false
	}
	if p.bytes.Acquire(ctx, size) != nil {
		p.count.Release(1)
		return false
	}
	return true
}

// settle is what the caller is told, now. Messages with the same fate share
// their error.
func (p *Publisher) settle(t upstream.Topic, f *flight, ack Ack) []api.BatchResult {
	results, errs, landed := f.fates()
	unheard := unknown(t.Name, "no answer from the brokers in time; it may still be written")
	told := map[string]*api.Error{} // by the text of the client's error
	for i := range results {
		if !landed[i] {
			results[i].Offset, results[i].Error = -1, unheard
			continue
		}
		err := errs[i]
		if err == nil {
			continue
		}
		var ae *api.Error
		if !errors.As(err, &ae) {
			if ae = told[err.Error()]; ae == nil {
				ae = p.tell(err, t, ack)
				told[err.Error()] = ae
			}
		}
		results[i].Error = ae
	}
	return results
}

// tell is what an error means to the caller of a message.
func (p *Publisher) tell(err error, t upstream.Topic, ack Ack) *api.Error {
	switch {
	case errors.Is(err, errNotKnownYet):
		return away("the partition is so new that it is not known here yet; nothing was sent")
	case errors.Is(err, errDisplaced), errors.Is(err, errNotSent):
		return away(fmt.Sprintf("the message for topic %s was not sent and is not written: its broker could not be reached in time (%v)", t.Name, err))
	case errors.Is(err, errNoRoom):
		return away("too many messages are on their way to the brokers; this one was not sent")
	}
	if errors.Is(err, kerr.InvalidRecord) && p.compacted(t.Name) {
		return api.NewError(api.CodeBadRecord, fmt.Sprintf("the broker refuses the message for topic %s: the topic is compacted: give every message a key", t.Name))
	}
	err = outcome(err, t.Name, ack == AckLeader)
	if errors.Is(err, errGone) {
		return p.gone(t)
	}
	var ae *api.Error
	if !errors.As(err, &ae) {
		return unknown(t.Name, err.Error())
	}
	return ae
}

// compacted says whether the brokers tell of a topic that they compact it, which
// takes a key of each message. It is asked only for the words of an error.
func (p *Publisher) compacted(topic string) bool {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	c, err := p.up.TopicConfigs(ctx, topic)
	return err == nil && strings.Contains(c.All["cleanup.policy"], "compact")
}

// late is the error of what was not sent before its time was over.
func late(timeout time.Duration) *api.Error {
	return away(fmt.Sprintf("the time (timeout %s) was over before the message could be sent; it was not sent", timeout))
}

// gone is the error of a message whose broker does not know the topic: 404 if
// the brokers still say so when asked again, else the fate is not known.
func (p *Publisher) gone(t upstream.Topic) *api.Error {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	now, err := p.up.Refresh(ctx, t.Name)
	var ae *api.Error
	if errors.As(err, &ae) && ae.Code == api.CodeTopicNotFound {
		return ae
	}
	if err == nil && now.UUID != t.UUID {
		return api.NewError(api.CodeTopicNotFound, fmt.Sprintf("topic %s was deleted and made anew meanwhile", t.Name))
	}
	return unknown(t.Name, "its broker does not know the topic, others do")
}
