package broker_test

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker"
	"sidestream/broker/disk"
)

// The power goes while clients produce and consume. Whatever was acknowledged, and whatever a consumer saw, is there
// afterwards at its offset.
func TestPowerCutKeepsWhatWasAcknowledgedOrSeen(t *testing.T) {
	mem := disk.NewMem()
	w := startOn(t, mem, func(c *broker.Config) { c.DataDir = "/data" })
	w.topic("t", 1, map[string]string{"segment.bytes": "20000"})

	var mu sync.Mutex // guards known
	known := map[int64]string{}
	know := func(offset int64, value string) {
		mu.Lock()
		defer mu.Unlock()
		if have, ok := known[offset]; ok && have != value {
			t.Errorf("offset %d has two values: %q and %q", offset, have, value)
		}
		known[offset] = value
	}
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for i := range 3 {
		cl := w.client(kgo.ProducerLinger(0))
		wg.Add(1)
		go func() {
			defer wg.Done()
			for n := 0; ctx.Err() == nil; n++ {
				r := &kgo.Record{Topic: "t", Value: fmt.Appendf(nil, "producer %d number %d", i, n)}
				if cl.ProduceSync(ctx, r).FirstErr() == nil {
					know(r.Offset, string(r.Value))
				}
			}
		}()
	}
	consumer := w.client(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"t": {0: kgo.NewOffset().AtStart()}}))
	wg.Add(1)
	go func() {
		defer wg.Done()
		for ctx.Err() == nil {
			consumer.PollFetches(ctx).EachRecord(func(r *kgo.Record) { know(r.Offset, string(r.Value)) })
		}
	}()

	type cut struct {
		known map[int64]string
		disk  *disk.Mem
	}
	var cuts []cut
	for seed := range uint64(6) {
		time.Sleep(60 * time.Millisecond) // let some work happen; how much does not matter
		mu.Lock()
		snapshot := make(map[int64]string, len(known))
		for k, v := range known {
			snapshot[k] = v
		}
		mu.Unlock()
		cuts = append(cuts, cut{snapshot, mem.Crash(seed)})
	}
	cancel()
	wg.Wait()
	for i, c := range cuts {
		t.Run(fmt.Sprintf("cut %d", i), func(t *testing.T) {
			n := &world{t: t, cfg: w.cfg, fs: c.disk, cluster: newFakeCluster()}
			n.cluster.view = w.cluster.View()
			n.open()
			defer n.close()
			n.leadAgain()
			if a := n.b.Alarms(); len(a) != 0 {
				t.Errorf("alarms: %q", a)
			}
			end := n.b.Held()[0].End
			if end < int64(len(c.known)) {
				t.Fatalf("the log ends at %d, %d records were known", end, len(c.known))
			}
			got := consume(t, n, "t", int(end))
			for offset, value := range c.known {
				if got[offset] != value {
					t.Errorf("offset %d: %q, it was %q before the cut", offset, got[offset], value)
				}
			}
		})
	}
	if len(cuts[len(cuts)-1].known) == 0 {
		t.Error("nothing was produced: the test tested nothing")
	}
}
