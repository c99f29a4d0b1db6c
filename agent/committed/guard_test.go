package committed

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"time"

	"sidestream/broker/cluster"
	"sidestream/discovery"
)

// before is a store in which something happens just before a commit arrives.
type before struct {
	discovery.Store
	do func()
}

func (b *before) Commit(ctx context.Context, ops ...discovery.Op) ([]discovery.Entry, error) {
	if do := b.do; do != nil {
		b.do = nil
		do()
	}
	return b.Store.Commit(ctx, ops...)
}

func put(t *testing.T, m *discovery.Memory, name string, id cluster.UUID, phase discovery.Phase, configs map[string]string) {
	t.Helper()
	value := discovery.Encode(discovery.Topic{Name: name, UUID: id.String(), Phase: phase, Partitions: 1, Configs: configs, Writer: discovery.NewNonce()})
	if _, err := m.Commit(t.Context(), discovery.Set(discovery.KeyTopic(name), value)); err != nil {
		t.Fatal(err)
	}
}

func guarded(t *testing.T, store discovery.Store, names map[cluster.UUID]string) *Keeper {
	t.Helper()
	k := New(store, Options{Timeout: 3 * time.Second, Pace: func() time.Duration { return 0 },
		Topic: func(id cluster.UUID) (string, bool) { name, known := names[id]; return name, known }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = k.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return k
}

// Offsets that were on their way when their topic was deleted were once stored
// after those of the topic had been deleted, and stayed for ever. Whatever comes
// in between, none is left, and other topics' are stored.
func TestOffsetsOnTheirWayDoNotOutliveTheirTopic(t *testing.T) {
	other := cluster.UUID{9}
	for name, end := range map[string]func(t *testing.T, m *discovery.Memory){
		"deleting": func(t *testing.T, m *discovery.Memory) { put(t, m, "goes", topic, discovery.PhaseDeleting, nil) },
		"deleted": func(t *testing.T, m *discovery.Memory) {
			if _, err := m.Commit(t.Context(), discovery.Delete(discovery.KeyTopic("goes"))); err != nil {
				t.Fatal(err)
			}
		},
		"made again": func(t *testing.T, m *discovery.Memory) {
			put(t, m, "goes", cluster.UUID{7}, discovery.PhaseLive, nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			m := memory(t)
			put(t, m, "goes", topic, discovery.PhaseLive, nil)
			put(t, m, "stays", other, discovery.PhaseLive, nil)
			store := &before{Store: m}
			k := guarded(t, store, map[cluster.UUID]string{topic: "goes", other: "stays"})
			left := func() []string {
				t.Helper()
				entries, err := m.List(t.Context(), discovery.PrefixCommitted)
				if err != nil {
					t.Fatal(err)
				}
				return Of(entries, topic.String())
			}
			if err := k.Commit(t.Context(), "g", offsets{at(0): {Offset: 1}}); err != nil || len(left()) != 1 {
				t.Fatal(err, left())
			}
			store.do = func() {
				end(t, m)
				for _, key := range left() { // as the controller does
					if _, err := m.Commit(t.Context(), discovery.Delete(key)); err != nil {
						t.Error(err)
					}
				}
			}
			err := k.Commit(t.Context(), "g", offsets{at(0): {Offset: 2}, at(70): {Offset: 2}, {Topic: other}: {Offset: 5}})
			if !errors.Is(err, cluster.ErrUnavailable) {
				t.Errorf("offsets of a topic that went meanwhile: %v", err)
			}
			if keys := left(); len(keys) != 0 {
				t.Errorf("left behind: %q", keys)
			}
			if got, err := k.Offsets(t.Context(), "g"); err != nil || len(got) != 1 || got[cluster.PartitionID{Topic: other}].Offset != 5 {
				t.Errorf("the other topic's: %v, %v", got, err)
			}
		})
	}
}

// A topic that changes is no reason to refuse its offsets.
func TestOffsetsOfATopicThatIsAltered(t *testing.T) {
	m := memory(t)
	put(t, m, "t", topic, discovery.PhaseCreating, nil)
	store := &before{Store: m}
	k := guarded(t, store, map[cluster.UUID]string{topic: "t"})
	for i := range int64(5) {
		store.do = func() {
			put(t, m, "t", topic, discovery.PhaseLive, map[string]string{"retention.ms": fmt.Sprint(i)})
		}
		if err := k.Commit(t.Context(), "g", offsets{at(0): {Offset: i}}); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := k.Offsets(t.Context(), "g"); err != nil || got[at(0)].Offset != 4 {
		t.Error(got, err)
	}
	if err := k.Commit(t.Context(), "g", offsets{{Topic: cluster.UUID{8}}: {}}); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("a topic that nobody knows: %v", err)
	}
}

// Every topic of a commit brings a guard, which counts against what one takes.
func TestOffsetsOfManyTopics(t *testing.T) {
	m := memory(t)
	names := map[cluster.UUID]string{}
	all := offsets{}
	for i := range byte(150) {
		id := cluster.UUID{1, i}
		names[id] = fmt.Sprint("t", i)
		put(t, m, names[id], id, discovery.PhaseLive, nil)
		for p := range int32(1 + i%3) {
			all[cluster.PartitionID{Topic: id, Partition: 64 * p}] = cluster.CommittedOffset{Offset: int64(i)}
		}
	}
	k := guarded(t, m, names)
	if err := k.Commit(t.Context(), "g", all); err != nil {
		t.Fatal(err)
	}
	if got, err := k.Offsets(t.Context(), "g"); err != nil || len(got) != len(all) {
		t.Errorf("%d of %d stored, %v", len(got), len(all), err)
	}
}
