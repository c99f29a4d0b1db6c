package upstream

import (
	"cmp"
	"context"
	"encoding/hex"
	"errors"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// How long failures are remembered: long enough that a flood of requests asks
// once, short enough that nobody notices.
const (
	negativeAge = 100 * time.Millisecond
	maxCached   = 10_000 // topics in memory; a flood of made-up names must not grow it
)

// cached is one answer of the brokers: a topic or an error.
type cached struct {
	topic Topic
	err   error // *api.Error
	at    time.Time
}

// Topic is what the brokers say of a topic, from memory when that is no older
// than MetadataAge. Errors are *api.Error: topic_not_found at once for one that
// is not there; brokers_unavailable when no broker answered within ctx and the
// request timeout; bad_request for an impossible name; forbidden.
func (u *Upstream) Topic(ctx context.Context, name string) (Topic, error) {
	now := time.Now()
	u.mu.Lock()
	c, ok := u.topics[name]
	u.mu.Unlock()
	if ok {
		age := now.Sub(c.at)
		switch {
		case c.err != nil && age < negativeAge:
			return Topic{}, c.err
		case c.err == nil && age < u.cfg.MetadataAge/2:
			return c.topic, nil
		case c.err == nil && age < u.cfg.MetadataAge:
			u.refreshBehind(name) // so that a busy topic never waits for it
			return c.topic, nil
		}
	}
	return u.Refresh(ctx, name)
}

// Refresh is Topic past the memory. Calls for the same topic share a request.
func (u *Upstream) Refresh(ctx context.Context, name string) (Topic, error) {
	if err := discovery.CheckName("topic", name); err != nil {
		return Topic{}, api.NewError(api.CodeBadRequest, err.Error())
	}
	select {
	case r := <-u.flights.DoChan(name, func() (any, error) { return u.fetch(name) }):
		if r.Err != nil {
			return Topic{}, r.Err
		}
		return r.Val.(Topic), nil
	case <-ctx.Done():
		return Topic{}, unavailable("no broker answered in time (metadata of topic " + name + ")" + u.lastSaid(name))
	}
}

// lastSaid is why the brokers last told nothing of a topic, as the end of a sentence.
func (u *Upstream) lastSaid(name string) string {
	u.mu.Lock()
	c := u.topics[name]
	u.mu.Unlock()
	if e, ok := errors.AsType[*api.Error](c.err); ok && e.Code == api.CodeBrokersUnavailable {
		return ": " + e.Message
	}
	if cause := u.Cause(context.DeadlineExceeded); cause != context.DeadlineExceeded {
		return ": " + cause.Error()
	}
	return ""
}

// refreshBehind renews what is remembered of a topic without anybody waiting.
// Close waits for it.
func (u *Upstream) refreshBehind(name string) {
	u.flights.DoChan(name, func() (any, error) { return u.fetch(name) })
}

// fetch asks the brokers for one topic and remembers the answer. It runs with
// its own deadline, since callers with different ones share it.
func (u *Upstream) fetch(name string) (Topic, error) {
	if !u.enter() {
		return Topic{}, unavailable("the sidecar stops")
	}
	defer u.wg.Done()
	ctx, cancel := context.WithTimeout(u.ctx, u.cfg.RequestTimeout)
	defer cancel()
	c := cached{at: time.Now()}
	resp, err := u.metadata(ctx, &name)
	if err != nil {
		c.err = err
	} else if len(resp.Topics) == 0 {
		c.err = notFound(name)
	} else {
		c.topic, c.err = topicOf(name, resp.Topics[0], resp.Brokers)
	}
	u.mu.Lock()
	if old, ok := u.topics[name]; c.err == nil || !ok || !old.at.After(c.at) {
		if len(u.topics) >= maxCached {
			clear(u.topics)
		}
		u.topics[name] = c
	}
	u.mu.Unlock()
	return c.topic, c.err
}

// Topics lists all topics, sorted by name, without the brokers' own.
func (u *Upstream) Topics(ctx context.Context) ([]Topic, error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	resp, err := u.metadata(ctx, nil)
	if err != nil {
		return nil, err
	}
	topics := make([]Topic, 0, len(resp.Topics))
	for _, mt := range resp.Topics {
		if mt.Topic == nil || mt.IsInternal {
			continue
		}
		t, err := topicOf(*mt.Topic, mt, resp.Brokers)
		if err != nil {
			t = Topic{Name: *mt.Topic, UUID: uuid(mt.TopicID)} // it is there, its partitions are not known now
		}
		topics = append(topics, t)
	}
	slices.SortFunc(topics, func(a, b Topic) int { return cmp.Compare(a.Name, b.Name) })
	return topics, nil
}

// Ping asks any broker for nothing but an answer, within ctx and the request
// timeout; the error is brokers_unavailable.
func (u *Upstream) Ping(ctx context.Context) *api.Error {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	req.Topics = []kmsg.MetadataRequestTopic{}
	if _, err := req.RequestWith(ctx, u.cl); err != nil {
		return u.unreachable(err)
	}
	return nil
}

// metadata asks for one topic, or for all when name is nil. It never creates.
func (u *Upstream) metadata(ctx context.Context, name *string) (*kmsg.MetadataResponse, error) {
	req := kmsg.NewPtrMetadataRequest() // negotiated up to the newest: topic ids come with version 10
	if name != nil {
		rt := kmsg.NewMetadataRequestTopic()
		rt.Topic = name
		req.Topics = append(req.Topics, rt)
	}
	resp, err := req.RequestWith(ctx, u.cl)
	if err != nil {
		return nil, u.unreachable(err)
	}
	return resp, nil
}

// topicOf reads the answer for one topic. It is pure.
func topicOf(name string, mt kmsg.MetadataResponseTopic, brokers []kmsg.MetadataResponseBroker) (Topic, error) {
	if err := topicError(name, mt.ErrorCode); err != nil {
		return Topic{}, err
	}
	live := make(map[int32]bool, len(brokers))
	for _, b := range brokers {
		live[b.NodeID] = true
	}
	t := Topic{Name: name, UUID: uuid(mt.TopicID), Internal: mt.IsInternal, Partitions: make([]Partition, 0, len(mt.Partitions))}
	for _, mp := range mt.Partitions {
		p := Partition{ID: mp.Partition, Leader: mp.Leader, Epoch: mp.LeaderEpoch, Replicas: mp.Replicas, ISR: mp.ISR}
		if !live[p.Leader] || mp.ErrorCode == kerr.LeaderNotAvailable.Code {
			p.Leader = -1
		}
		t.Partitions = append(t.Partitions, p)
	}
	slices.SortFunc(t.Partitions, func(a, b Partition) int { return cmp.Compare(a.ID, b.ID) })
	return t, nil
}

// uuid is the canonical form of a topic id, "" for the zero one.
func uuid(id [16]byte) string {
	if id == [16]byte{} {
		return ""
	}
	b := make([]byte, 0, 36)
	for i, part := range [][]byte{id[:4], id[4:6], id[6:8], id[8:10], id[10:]} {
		if i > 0 {
			b = append(b, '-')
		}
		b = hex.AppendEncode(b, part)
	}
	return string(b)
}
