package upstream

import (
	"context"
	"errors"
	"net"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// TopicAway is how much of a topic is out of reach: its partitions have no
// leader, or one that does not take connections from this host.
type TopicAway struct {
	Topic      string
	Partitions int     // that it has
	Away       []int32 // of those, sorted
	Brokers    []int32 // that would have them, as far as the brokers tell; sorted
}

// Away asks the brokers in one request which partitions of the topics are out of
// reach. Topics that are not there, or of which the brokers tell nothing, are
// left out. The error is brokers_unavailable when none answers within ctx and
// the request timeout.
func (u *Upstream) Away(ctx context.Context, names []string) ([]TopicAway, error) {
	if len(names) == 0 {
		return nil, nil
	}
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	req := kmsg.NewPtrMetadataRequest()
	for _, name := range names {
		t := kmsg.NewMetadataRequestTopic()
		t.Topic = kmsg.StringPtr(name)
		req.Topics = append(req.Topics, t)
	}
	resp, err := req.RequestWith(ctx, u.cl)
	if err != nil {
		return nil, u.unreachable(err)
	}
	shut := map[int32]bool{}
	for _, b := range resp.Brokers {
		shut[b.NodeID] = u.dials.failed(net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port))), u.cfg.DialTimeout)
	}
	var all []TopicAway
	for _, mt := range resp.Topics {
		if mt.Topic == nil {
			continue
		}
		t, err := topicOf(*mt.Topic, mt, resp.Brokers)
		if err != nil {
			continue
		}
		all = append(all, awayOf(t, shut))
	}
	return all, nil
}

// awayOf is what of a topic is out of reach, when these brokers take no
// connections. It is pure.
func awayOf(t Topic, shut map[int32]bool) TopicAway {
	a := TopicAway{Topic: t.Name, Partitions: len(t.Partitions)}
	for _, p := range t.Partitions {
		if p.Leader >= 0 && !shut[p.Leader] {
			continue
		}
		a.Away = append(a.Away, p.ID)
		if p.Leader >= 0 {
			a.Brokers = append(a.Brokers, p.Leader)
		} else {
			a.Brokers = append(a.Brokers, p.Replicas...)
		}
	}
	slices.Sort(a.Brokers)
	a.Brokers = slices.Compact(a.Brokers)
	return a
}

// dials remembers of which addresses the last connection failed. Brokers may
// take seconds until they say of one of them that it is dead; whoever dials it
// knows at once.
type dials struct {
	mu   sync.Mutex           // guards what follows
	bad  map[string]time.Time // when it failed last
	last error                // the last failure; nil when a connection came about since
}

// staleDial is for how long, beyond two dials, a failure says something of an
// address that nobody has dialled since.
const staleDial = 3 * time.Second

func (d *dials) note(addr string, err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case err == nil:
		delete(d.bad, addr)
		d.last = nil
	case !errors.Is(err, context.Canceled):
		if d.bad == nil || len(d.bad) > 1000 {
			d.bad = map[string]time.Time{}
		}
		d.bad[addr], d.last = time.Now(), err
	}
}

func (d *dials) failed(addr string, dialTimeout time.Duration) bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	at, ok := d.bad[addr]
	return ok && time.Since(at) < 2*dialTimeout+staleDial
}
