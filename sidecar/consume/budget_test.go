package consume

import (
	"crypto/rand"
	"fmt"
	"runtime"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

func TestBudget(t *testing.T) {
	b := &budget{limit: 4000}
	for _, c := range []struct {
		held, own  int64
		partitions int
		want       int64
	}{
		{0, 0, 1, 3000},
		{2900, 2900, 1, 100}, // the common part is there for all
		{3000, 3000, 1, 0},   // the rest is not for who holds much
		{3000, 0, 10, 1024},  // but for who holds nothing: one batch at least
		{3000, 40, 10, 60},   // or little
		{3000, 100, 10, 0},
		{9000, 0, 1, 1024}, // whatever the others hold
		{9000, 1, 1, 999},
	} {
		b.held.Store(c.held)
		if got := b.allow(c.own, c.partitions); got != c.want {
			t.Errorf("%d held, %d by one of %d: %d allowed, want %d", c.held, c.own, c.partitions, got, c.want)
		}
	}
	b.held.Store(3500)
	if _, freed := b.add(-400); freed || !b.crowded() {
		t.Error("room where the common part is still taken")
	}
	if _, freed := b.add(-200); !freed || b.crowded() {
		t.Error("no room where the common part is free again")
	}
	if _, freed := b.add(-200); freed {
		t.Error("room twice")
	}
}

// backlog writes random bytes, which no codec shortens, to all partitions.
func (l *lab) backlog(topic string, partitions, each, size int) {
	l.t.Helper()
	var rs []*kgo.Record
	flush := func() {
		if err := l.prod.ProduceSync(l.t.Context(), rs...).FirstErr(); err != nil {
			l.t.Fatal(err)
		}
		rs = nil
	}
	for i := range partitions * each {
		value := make([]byte, size)
		_, _ = rand.Read(value) // never fails
		rs = append(rs, &kgo.Record{Topic: topic, Partition: int32(i % partitions), Value: value})
		if len(rs) == 64 {
			flush()
		}
	}
	flush()
}

// TestMemoryOfSlowApplications: a large backlog, groups that take messages and
// acknowledge none, one that does: what all hold stays within the budget, so
// does the heap, and the one gets everything.
func TestMemoryOfSlowApplications(t *testing.T) {
	const partitions, each, size, groups = 4, 700, 8 << 10, 6 // 22 MiB, read by 7 groups
	const process, prefetch, ask = 4 << 20, 2 << 20, 256 << 10
	l := newLab(t, map[string]int32{"log": partitions})
	l.backlog("log", partitions, each, size)
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	a := l.host("a", func(c *Config) {
		c.PrefetchBytes, c.ProcessBytes = prefetch, process
		c.FetchBytes, c.PartitionFetchBytes = ask, ask
	})
	before := heap()
	for i := range groups {
		for range partitions {
			a.pullSome(PullRequest{Group: fmt.Sprint("slow", i), Topic: "log", Max: 1, Lease: time.Hour})
		}
	}
	most := int64(0)
	got := 0
	for end := time.Now().Add(2 * deadline); got < partitions*each; {
		d := a.pullSome(PullRequest{Group: "quick", Topic: "log"})
		a.ackAll("quick", "log", d)
		got += len(d.Messages)
		most = max(most, a.m.reader.budget.held.Load())
		if time.Now().After(end) {
			t.Fatalf("the quick group got %d of %d messages beside slow ones", got, partitions*each)
		}
	}
	// On top of the budget there may be an answer, and a batch of each partition.
	batch := int64(64/partitions+1) * (size + recordOverhead)
	limit := process + 2*ask + (groups+1)*partitions*batch
	t.Logf("most held %d of %d, limit %d", most, process, limit)
	if most > limit {
		t.Errorf("%d bytes were held, at most %d wanted", most, limit)
	}
	if most < process/2 {
		t.Errorf("only %d bytes were held: the budget of %d was not tried", most, process)
	}
	if grown := heap() - before; grown > 3*limit {
		t.Errorf("the heap grew by %d bytes for a budget of %d", grown, process)
	}
}
