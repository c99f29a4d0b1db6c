package agent

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

// flaky is a store whose commits fail in each of the ways that a commit can:
// not applied, applied with the reply lost, and lost before it was applied.
type flaky struct {
	discovery.Store
	mu   sync.Mutex // guards rng and off
	rng  *rand.Rand
	off  bool
	hits int
}

func (f *flaky) roll() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.off {
		return 0
	}
	n := f.rng.IntN(8)
	if n >= 5 {
		f.hits++
	}
	return n
}

func (f *flaky) heal() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.off = true
	return f.hits
}

func (f *flaky) Commit(ctx context.Context, ops ...discovery.Op) ([]discovery.Entry, error) {
	switch f.roll() {
	case 5:
		return nil, fmt.Errorf("made up: %w", discovery.ErrUnavailable)
	case 6:
		return nil, fmt.Errorf("made up, not applied: %w", discovery.ErrUnknownOutcome)
	case 7:
		if _, err := f.Store.Commit(ctx, ops...); err != nil && !errors.Is(err, discovery.ErrConflict) {
			return nil, err
		}
		return nil, fmt.Errorf("made up, applied: %w", discovery.ErrUnknownOutcome)
	}
	return f.Store.Commit(ctx, ops...)
}

// Topics are created, grown and deleted while commits fail at every step and
// hosts restart. When the store is well again, store and disks agree.
func TestStoreAndDisksAgreeInTheEnd(t *testing.T) {
	for seed := range uint64(3) {
		t.Run(fmt.Sprint("seed ", seed), func(t *testing.T) { churn(t, seed) })
	}
}

func churn(t *testing.T, seed uint64) {
	c := newTestCluster(t)
	rng := rand.New(rand.NewPCG(seed, 1))
	var stores []*flaky
	var hosts []*storageHost
	for i := range 3 {
		h := c.host(fmt.Sprint("host", i+1))
		f := &flaky{rng: rand.New(rand.NewPCG(seed, uint64(i+2)))}
		h.wrap = func(s discovery.Store) discovery.Store { f.Store = s; return f }
		stores = append(stores, f)
		h.start(c)
		h.ready()
		hosts = append(hosts, h)
	}
	wanted := map[string]bool{} // topics that a call said are there
	unsure := map[string]bool{} // topics of which a call failed
	for range 30 {
		h := hosts[rng.IntN(len(hosts))]
		name := fmt.Sprint("t", rng.IntN(4))
		ctx, cancel := context.WithTimeout(context.Background(), 3*time.Second)
		var err error
		switch rng.IntN(7) {
		case 0, 1, 2:
			_, err = h.CreateTopic(ctx, broker.TopicSpec{Name: name, Partitions: 1 + rng.Int32N(100), Replication: 1})
			note(wanted, unsure, name, err, broker.ErrTopicExists, true)
		case 3, 4:
			err = h.DeleteTopic(ctx, name)
			note(wanted, unsure, name, err, broker.ErrUnknownTopic, false)
		case 5:
			_ = h.CreatePartitions(ctx, name, 1+rng.Int32N(150))
		case 6:
			h.stop()
			h.start(c)
			h.ready()
		}
		cancel()
	}
	failures := 0
	for _, f := range stores {
		failures += f.heal()
	}
	if failures < 10 {
		t.Errorf("only %d commits failed", failures)
	}
	hosts[0].await("store and disks agree", func() bool { return disagreement(c, hosts) == "" })
	for name := range wanted {
		if !unsure[name] && hosts[0].View().Topics[name] == nil {
			t.Errorf("topic %s was created, and is not there", name)
		}
	}
	for _, h := range hosts {
		h.await("no alarms", func() bool { return len(h.Alarms()) == 0 })
	}
}

// note keeps account of what a call promised.
func note(wanted, unsure map[string]bool, name string, err, already error, there bool) {
	switch {
	case err == nil:
		delete(unsure, name)
		if there {
			wanted[name] = true
		} else {
			delete(wanted, name)
		}
	case errors.Is(err, already):
	default:
		unsure[name] = true
	}
}

// disagreement says in which way the store and what is on the disks differ.
func disagreement(c *testCluster, hosts []*storageHost) string {
	f := facts.Empty()
	for _, e := range c.keys(discovery.PrefixTopics) {
		topic, err := discovery.Decode[discovery.Topic](e)
		if err != nil || topic.Phase != discovery.PhaseLive {
			return fmt.Sprintf("%s is %s", e.Key, topic.Phase)
		}
		f.Topics[topic.Name] = facts.Topic{Topic: topic}
	}
	listed := 0
	for _, e := range c.keys(discovery.PrefixState) {
		uuid, n, _ := facts.ParseShardKey(e.Key)
		s, err := discovery.Decode[discovery.Shard](e)
		if _, known := f.ByUUID()[uuid]; err != nil || !known {
			return e.Key + " is nobody's"
		}
		if f.Shards[uuid] == nil {
			f.Shards[uuid] = map[int]facts.Shard{}
		}
		f.Shards[uuid][n] = facts.Shard{Shard: s}
	}
	for _, topic := range f.Topics {
		for p := range topic.Partitions {
			part := facts.Part{UUID: topic.UUID, Partition: p}
			st, ok := f.State(part)
			if !ok || len(st.Replicas) != 1 || st.Leader != st.Replicas[0] || st.Epoch < 1 {
				return fmt.Sprintf("%s-%d is %+v", topic.Name, p, st)
			}
			listed++
			i := slices.IndexFunc(hosts, func(h *storageHost) bool { return h.ID() == st.Leader })
			if l := hosts[i].host.leading()[part]; l.Epoch != st.Epoch || l.Count != topic.Partitions {
				return fmt.Sprintf("%s-%d is %+v, and led as %+v", topic.Name, p, st, l)
			}
			for _, h := range hosts {
				if v := h.View().Topics[topic.Name]; v == nil || int(p) >= len(v.Partitions) || v.Partitions[p].Leader != st.Leader {
					return fmt.Sprintf("%s sees %s-%d otherwise", h.name, topic.Name, p)
				}
			}
		}
	}
	onDisk := 0
	for _, h := range hosts {
		onDisk += len(h.disk.held())
	}
	if onDisk != listed {
		return fmt.Sprintf("%d partitions are on disk, %d in the store", onDisk, listed)
	}
	return ""
}
