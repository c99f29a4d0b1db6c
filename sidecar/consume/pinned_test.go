package consume

import (
	"runtime"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// TestMemoryOfStragglers: of a large backlog every hundredth message is put
// off for an hour. What is left in memory is those, not the answers that they
// came in.
func TestMemoryOfStragglers(t *testing.T) {
	const partitions, each, size = 2, 4000, 8 << 10 // 62 MiB
	l := newLab(t, map[string]int32{"log": partitions})
	l.backlog("log", partitions, each, size)
	a := l.host("a")
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{Order: "none"}); err != nil {
		t.Fatal(err)
	}
	heap := func() int64 {
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	before, got, late := heap(), 0, 0
	for got < partitions*each {
		d := a.pullSome(PullRequest{Group: "g", Topic: "log", Max: 500})
		var acks, nacks []string
		for _, m := range d.Messages {
			got++
			if m.Offset%100 == 0 {
				nacks = append(nacks, m.Receipt)
				continue
			}
			acks = append(acks, m.Receipt)
		}
		late += len(nacks)
		a.ack("g", "log", acks...)
		if len(nacks) > 0 {
			if r, err := a.m.Nack(t.Context(), "g", "log", api.Receipts{Receipts: nacks, Delay: "1h"}); err != nil || r.Failed > 0 {
				t.Fatalf("%+v, %v", r, err)
			}
		}
	}
	if held := a.m.reader.budget.held.Load(); held > int64(2*late*size) {
		t.Errorf("%d bytes held for %d messages", held, late)
	}
	limit := int64(4*late*size + 4<<20)
	end := time.Now().Add(deadline)
	for heap()-before > limit {
		if time.Now().After(end) {
			t.Fatalf("%d messages of %d bytes keep %d bytes in memory", late, size, heap()-before)
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Logf("%d messages keep %d bytes", late, heap()-before)
}
