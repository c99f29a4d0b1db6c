package committed

import (
	"context"
	"errors"
	"fmt"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"pgregory.net/rapid"

	"sidestream/broker/cluster"
	"sidestream/discovery"
)

var topic = cluster.UUID{1, 2, 3}

func at(partition int32) cluster.PartitionID {
	return cluster.PartitionID{Topic: topic, Partition: partition}
}

type offsets = map[cluster.PartitionID]cluster.CommittedOffset

// counting is a store that counts commits and can fail them.
type counting struct {
	discovery.Store
	commits atomic.Int64
	reads   atomic.Int64
	fail    func(n int64) error // after the commit was made, when it has an odd number; nil: never
}

func (c *counting) Commit(ctx context.Context, ops ...discovery.Op) ([]discovery.Entry, error) {
	n := c.commits.Add(1)
	if c.fail != nil {
		if err := c.fail(n); err != nil {
			if n%2 == 1 {
				_, _ = c.Store.Commit(ctx, ops...)
			}
			return nil, err
		}
	}
	return c.Store.Commit(ctx, ops...)
}

func (c *counting) Get(ctx context.Context, key string) (discovery.Entry, error) {
	c.reads.Add(1)
	return c.Store.Get(ctx, key)
}

func memory(t *testing.T) *discovery.Memory {
	t.Helper()
	m, err := discovery.NewMemory(discovery.MemoryOptions{SessionTTL: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = m.Close() })
	return m
}

// run starts a keeper, which ends with the test.
func run(t *testing.T, store discovery.Store, pace time.Duration) *Keeper {
	t.Helper()
	k := New(store, Options{Timeout: 3 * time.Second, Pace: func() time.Duration { return pace }})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = k.Run(ctx) }()
	t.Cleanup(func() { cancel(); <-done })
	return k
}

func TestWhatIsCommittedIsReadFromAnyHost(t *testing.T) {
	m := memory(t)
	one, two := run(t, m, time.Millisecond), run(t, m, time.Millisecond)
	ctx := t.Context()
	want := offsets{at(0): {Offset: 7, LeaderEpoch: 2, Metadata: `{"a":"<b>"}`}, at(63): {Offset: 1, LeaderEpoch: -1}, at(64): {Offset: 0, LeaderEpoch: -1, Metadata: "\xff\x00"}}
	for _, group := range []string{"g", "with/slash and space", "..", "ünï"} {
		if err := one.Commit(ctx, group, want); err != nil {
			t.Fatal(err)
		}
		got, err := two.Offsets(ctx, group)
		if err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%q: got %v, %v, want %v", group, got, err, want)
		}
	}
	groups, err := two.Groups(ctx)
	if err != nil || !reflect.DeepEqual(groups, []string{"..", "g", "with/slash and space", "ünï"}) {
		t.Errorf("groups %q, %v", groups, err)
	}
	if got, err := two.Offsets(ctx, "never"); err != nil || len(got) != 0 {
		t.Errorf("an unknown group: %v, %v", got, err)
	}
}

// The hosts write the same key. A commit used to be tried nine times at once, one
// after the other, and then its consumer was told that the cluster is unavailable,
// though each loss only meant that another host was quicker.
func TestHostsThatCommitOtherPartitionsLoseNothing(t *testing.T) {
	for _, hosts := range []int32{3, 12} {
		m := memory(t)
		var wg sync.WaitGroup
		want := offsets{}
		for h := range hosts {
			k := run(t, m, 0)
			for i := range int64(15) {
				want[at(h*5)] = cluster.CommittedOffset{Offset: i, LeaderEpoch: -1}
			}
			wg.Go(func() {
				for i := range int64(15) {
					if err := k.Commit(t.Context(), "g", offsets{at(h * 5): {Offset: i, LeaderEpoch: -1}}); err != nil {
						t.Errorf("host %d of %d, commit %d: %v", h, hosts, i, err)
					}
				}
			})
		}
		wg.Wait()
		if got, err := run(t, m, 0).Offsets(t.Context(), "g"); err != nil || !reflect.DeepEqual(got, want) {
			t.Errorf("%d hosts: got %v, %v, want %v", hosts, got, err, want)
		}
	}
}

// A cluster stays within its budget whatever consumers do.
func TestCommitsAreCoalesced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m, err := discovery.NewMemory(discovery.MemoryOptions{SessionTTL: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		store := &counting{Store: m}
		k := New(store, Options{Timeout: time.Second, Pace: func() time.Duration { return Pace(5) }})
		ctx, cancel := context.WithCancel(t.Context())
		done := make(chan struct{})
		go func() { defer close(done); _ = k.Run(ctx) }()
		begun := time.Now()
		var wg sync.WaitGroup
		for c := range 40 {
			wg.Go(func() {
				for i := range int64(20) {
					if err := k.Commit(ctx, fmt.Sprint("g", c), offsets{at(0): {Offset: i}, at(1): {Offset: i}}); err != nil {
						t.Error(err)
					}
				}
			})
		}
		wg.Wait()
		took := time.Since(begun)
		if most := int64(took/Pace(5)) + 2; store.commits.Load() > most || took > 4*time.Second {
			t.Errorf("%d commits in %s, at most %d are allowed", store.commits.Load(), took, most)
		}
		if n := store.reads.Load(); n != 40 {
			t.Errorf("%d reads before writes, want one for each key", n)
		}
		for c := range 40 {
			if got, err := k.Offsets(ctx, fmt.Sprint("g", c)); err != nil || got[at(0)].Offset != 19 || got[at(1)].Offset != 19 {
				t.Errorf("group %d: %v, %v", c, got, err)
			}
		}
		cancel()
		<-done
		if err := k.Commit(t.Context(), "g", offsets{at(0): {}}); !errors.Is(err, cluster.ErrUnavailable) {
			t.Errorf("after the end: %v", err)
		}
		_ = m.Close()
	})
}

func TestWhatIsOnItsWayIsReadHere(t *testing.T) {
	m := memory(t)
	k := New(m, Options{Timeout: time.Second, Pace: func() time.Duration { return 0 }}) // nobody stores
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Millisecond)
	defer cancel()
	if err := k.Commit(ctx, "g", offsets{at(3): {Offset: 9}}); !errors.Is(err, context.DeadlineExceeded) {
		t.Fatalf("answered before it is stored: %v", err)
	}
	got, err := k.Offsets(t.Context(), "g")
	if err != nil || got[at(3)].Offset != 9 {
		t.Errorf("%v, %v", got, err)
	}
}

func TestCommitsThatFailAreToldAndLostRepliesAreNot(t *testing.T) {
	m := memory(t)
	var err error
	store := &counting{Store: m, fail: func(n int64) error {
		if n <= 3 {
			return fmt.Errorf("made up: %w", err)
		}
		return nil
	}}
	err = discovery.ErrUnknownOutcome // applied the first time
	k := run(t, store, 0)
	if err := k.Commit(t.Context(), "g", offsets{at(0): {Offset: 1}}); err != nil {
		t.Errorf("lost replies: %v", err)
	}
	if got, _ := k.Offsets(t.Context(), "g"); got[at(0)].Offset != 1 {
		t.Errorf("%v", got)
	}
	err = discovery.ErrUnavailable
	store.commits.Store(0)
	if err := k.Commit(t.Context(), "g", offsets{at(0): {Offset: 2}}); !errors.Is(err, cluster.ErrUnavailable) {
		t.Errorf("an unreachable store: %v", err)
	}
	store.commits.Store(10)
	if err := k.Commit(t.Context(), "g", offsets{at(0): {Offset: 3}}); err != nil {
		t.Errorf("when it is back: %v", err)
	}
}

func TestDropForgetsPartitionsOrAll(t *testing.T) {
	m := memory(t)
	k := run(t, m, 0)
	ctx := t.Context()
	all := offsets{at(0): {Offset: 1}, at(1): {Offset: 2}, at(70): {Offset: 3}}
	if err := k.Commit(ctx, "g", all); err != nil {
		t.Fatal(err)
	}
	if err := k.Drop(ctx, "g", []cluster.PartitionID{at(0), at(70), at(99)}); err != nil {
		t.Fatal(err)
	}
	if got, _ := k.Offsets(ctx, "g"); len(got) != 1 || got[at(1)].Offset != 2 {
		t.Errorf("left: %v", got)
	}
	if err := k.Commit(ctx, "g", offsets{at(70): {Offset: 4}}); err != nil { // what was known of the key is out of date
		t.Fatal(err)
	}
	if got, _ := k.Offsets(ctx, "g"); len(got) != 2 || got[at(70)].Offset != 4 {
		t.Errorf("after another commit: %v", got)
	}
	if err := k.Drop(ctx, "g", nil); err != nil {
		t.Fatal(err)
	}
	if err := k.Drop(ctx, "g", nil); !errors.Is(err, cluster.ErrUnknownGroup) {
		t.Errorf("twice: %v", err)
	}
	if groups, _ := k.Groups(ctx); len(groups) != 0 {
		t.Errorf("groups %q", groups)
	}
}

func TestPackKeepsMetadataToTheLetter(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		want := cluster.CommittedOffset{Offset: rapid.Int64().Draw(t, "offset"), LeaderEpoch: rapid.Int32().Draw(t, "epoch"),
			Metadata: rapid.OneOf(rapid.String(), rapid.Map(rapid.SliceOf(rapid.Byte()), func(b []byte) string { return string(b) })).Draw(t, "metadata")}
		value := overlay(discovery.Committed{}, map[int32]cluster.CommittedOffset{5: want}, time.Unix(1, 0))
		back, err := discovery.Decode[discovery.Committed](discovery.Entry{Value: discovery.Encode(value)})
		if err != nil || unpack(back.Offsets[5]) != want {
			t.Fatalf("got %+v, %v, want %+v", unpack(back.Offsets[5]), err, want)
		}
	})
}

func TestTheLargestValueFits(t *testing.T) {
	for name, metadata := range map[string]string{"control": strings.Repeat("\x01", 4096), "quotes": strings.Repeat(`"`, 4096), "plain": strings.Repeat("x", 4096), "binary": strings.Repeat("\xff", 4096)} {
		newer := map[int32]cluster.CommittedOffset{}
		for p := range int32(discovery.ShardPartitions) {
			newer[9900+p] = cluster.CommittedOffset{Offset: 1<<63 - 1, LeaderEpoch: 1<<31 - 1, Metadata: metadata}
		}
		key := keyOf{strings.Repeat("/", 249), topic, 150}.String()
		if n := len(discovery.Encode(overlay(discovery.Committed{}, newer, time.Now()))) + len(key); n > discovery.MaxCommitBytes {
			t.Errorf("%s: %d bytes, a commit takes %d", name, n, discovery.MaxCommitBytes)
		}
	}
}

func TestOfFindsTheKeysOfATopic(t *testing.T) {
	mine, other := keyOf{"g", topic, 3}.String(), keyOf{"g", cluster.UUID{9}, 3}.String()
	if got := Of([]discovery.Entry{{Key: other}, {Key: mine}}, topic.String()); !reflect.DeepEqual(got, []string{mine}) {
		t.Errorf("got %v", got)
	}
}
