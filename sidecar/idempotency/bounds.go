package idempotency

import (
	"context"
	"errors"
	"sync"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

const (
	// boundAge is how old the offsets may be from which on records are looked
	// for: any that was once a partition's end will do, an old one makes the
	// look longer.
	boundAge = time.Second
	// boundWait is how long a request waits for them; without them the time of
	// the request is what a look goes by.
	boundWait = 500 * time.Millisecond
	// spoolWait is how long one that may go to the spool waits for what the
	// brokers say of its topic.
	spoolWait = 300 * time.Millisecond
)

// bounds remembers where the partitions of topics ended a moment ago.
type bounds struct {
	brokers Brokers

	// mu guards topics.
	mu     sync.Mutex
	topics map[string]*topicBounds
}

// topicBounds are those of one topic.
type topicBounds struct {
	// mu guards the rest.
	mu     sync.Mutex
	uuid   string
	ends   map[int32]int64 // never changed, only replaced
	asked  time.Time
	asking chan struct{} // closed when the question under way is answered
}

// of are offsets at which partitions of a topic ended before the call; those
// that could not be learned are left out.
func (b *bounds) of(ctx context.Context, t upstream.Topic) map[int32]int64 {
	b.mu.Lock()
	tb := b.topics[t.Name]
	if tb == nil {
		tb = &topicBounds{}
		b.topics[t.Name] = tb
	}
	b.mu.Unlock()
	for {
		tb.mu.Lock()
		if tb.uuid != t.UUID {
			tb.uuid, tb.ends, tb.asked = t.UUID, nil, time.Time{}
		}
		if time.Since(tb.asked) < boundAge || (tb.asking != nil && tb.ends != nil) {
			defer tb.mu.Unlock()
			return tb.ends
		}
		if asking := tb.asking; asking != nil {
			tb.mu.Unlock()
			select {
			case <-asking:
				continue
			case <-ctx.Done():
				return nil
			}
		}
		asking := make(chan struct{})
		tb.asking = asking
		tb.mu.Unlock()

		ends := b.ask(ctx, t.Name)

		tb.mu.Lock()
		if tb.uuid == t.UUID {
			merged := make(map[int32]int64, len(ends))
			for p, end := range tb.ends {
				merged[p] = end
			}
			for p, end := range ends {
				merged[p] = end
			}
			tb.ends = merged
		}
		tb.asked, tb.asking = time.Now(), nil
		close(asking)
		tb.mu.Unlock()
	}
}

func (b *bounds) ask(ctx context.Context, topic string) map[int32]int64 {
	ctx, cancel := context.WithTimeout(ctx, boundWait)
	defer cancel()
	ends, err := b.brokers.EndOffsets(ctx, topic)
	var partial *upstream.PartialError
	if err != nil && !errors.As(err, &partial) {
		return nil
	}
	return ends
}

// place tells where messages will come to lie, and gives those with a key their
// partition: a repeat must look where the first one went, also when the topic
// has more partitions by then. The messages are the caller's own copies.
func (k *Keys) place(ctx context.Context, topic string, ms []publish.Message, o publish.Options) (places, error) {
	p := places{since: time.Now().UnixMilli()}
	for i := range ms {
		if !ms[i].Timestamp.IsZero() {
			p.since = min(p.since, ms[i].Timestamp.UnixMilli())
		}
	}
	if o.Ack == publish.AckSpool { // it chooses the partitions, with the brokers or without
		p.all = true
		return p, nil
	}
	asking, cancel := ctx, context.CancelFunc(func() {})
	if o.MaySpool {
		asking, cancel = context.WithTimeout(ctx, spoolWait)
	}
	defer cancel()
	t, err := k.topic(asking, topic)
	if err != nil {
		if o.MaySpool && isCode(err, api.CodeBrokersUnavailable) {
			p.all = true
			return p, nil
		}
		return p, err
	}
	p.uuid = t.UUID
	used := map[int32]bool{}
	for i := range ms {
		m := &ms[i]
		if m.Partition == nil && m.Key != nil && len(t.Partitions) > 0 {
			n := publish.PartitionOf(m.Key, int32(len(t.Partitions)))
			m.Partition = &n
		}
		if m.Partition == nil {
			p.all = true
		} else {
			used[*m.Partition] = true
		}
	}
	if p.all {
		for _, part := range t.Partitions {
			used[part.ID] = true
		}
	}
	ends := k.bounds.of(asking, t)
	for id := range used {
		end, ok := ends[id]
		if !ok {
			end = -1
		}
		p.from = append(p.from, place{id, end})
	}
	return p, nil
}

// topic is what the brokers say of a topic; one that is not there is made when
// the configuration says so.
func (k *Keys) topic(ctx context.Context, name string) (upstream.Topic, error) {
	t, err := k.deps.Brokers.Topic(ctx, name)
	if k.deps.AutoCreate && upstream.MayAutoCreate(name) && isCode(err, api.CodeTopicNotFound) {
		t, err = k.deps.Brokers.CreateTopic(ctx, name, api.TopicSpec{})
		if isCode(err, api.CodeTopicExists) {
			t, err = k.deps.Brokers.Refresh(ctx, name)
		}
	}
	return t, err
}

func isCode(err error, code api.Code) bool { return errors.Is(err, api.NewError(code, "")) }
