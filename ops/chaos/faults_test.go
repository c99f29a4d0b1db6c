package chaos

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/sdk/api"
)

var (
	faultsFor  = flag.Duration("faults.for", 0, "how long TestRandomFaults lets faults happen, with pauses as long as the guarantees speak of; 0: each once, with shorter ones")
	faultsSeed = flag.Uint64("faults.seed", 0, "order of the faults and behaviour of the applications of TestRandomFaults; 0: another each time")
	faultsKeep = flag.String("faults.keep", "", "folder for the data and logs of TestRandomFaults, which outlives it")
)

// Four sidecars share 32 partitions under load, and everything fails in turn, in
// an order of the seed. No message is skipped, none repeated but where the
// guarantees allow it, the order holds, and everything becomes whole again in
// time; memory stays flat.
func TestRandomFaults(t *testing.T) {
	const partitions = 32
	seed := *faultsSeed
	if seed == 0 {
		seed = rand.Uint64N(1_000_000)
	}
	t.Logf("repeat with: go test -race -count=1 -timeout 60m ./ops/chaos -run TestRandomFaults -faults.for=%v -faults.seed=%d", *faultsFor, seed)
	c := Start(t, 2, 4, Options{HostAgents: true, Spare: 1, Keep: *faultsKeep})
	c.CreateTopic("orders", partitions)
	groups := map[string]*Checker{"ordered": NewChecker(partitions, false), "by-key": NewChecker(partitions, true)}
	if _, err := call("PUT", c.Sidecars[0].HTTP+"/groups/by-key", []byte(`{"order":"key"}`), nil); err != nil {
		t.Fatal(err)
	}
	ledger := NewLedger()
	load := NewLoad("orders", groups, seed, ledger, slices.Concat(c.Sidecars, c.Spares)...)
	for _, p := range c.Spares {
		load.Faulty(p, true)
	}
	r := &Run{t: t, rng: rand.New(rand.NewPCG(seed, 7)), c: c, load: load, group: "ordered", checker: groups["ordered"], partitions: partitions, pauses: shortPauses}
	if *faultsFor > 0 {
		r.pauses = longPauses
	}
	var resources Resources
	watching, stopWatching := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	watchers.Go(func() { r.sample(watching, &resources) })
	watchers.Go(func() { r.stalls.Watch(watching) })
	defer func() {
		stopWatching()
		watchers.Wait()
		load.Stop()
		t.Logf("resident memory: %s", resources.Report())
		for group, c := range groups {
			t.Logf("group %s: %s", group, c.Report())
			broken := c.Broken()
			for _, rule := range slices.Sorted(maps.Keys(broken)) {
				t.Errorf("group %s, %s, %d times:\n%s", group, rule, len(broken[rule]), strings.Join(broken[rule][:min(len(broken[rule]), 12)], "\n"))
			}
		}
	}()
	load.Start()
	r.whole()

	began := time.Now()
	r.Round(faults, began.Add(time.Hour)) // each once, whatever it takes
	for end := began.Add(*faultsFor); time.Now().Before(end); {
		r.Round(doubleFaults, end)
		r.Round(faults, end)
	}

	load.StopPublishing()
	ends := map[string]map[int32]int64{}
	for group, c := range groups {
		ends[group] = r.settled(group, c)
	}
	load.Stop()
	for _, what := range resources.Growing() {
		r.checker.Break(ruleResource, "%s", what)
	}
	for group, c := range groups {
		c.Finish(ends[group])
	}
	c.checkLog(ledger, c.Sidecars[0], "orders", partitions)
	seen(t, c.Sidecars[0])
}

// seen lets a group break its word on the same cluster, by seeks that the
// checker is not told of, and demands that it is seen.
func seen(t *testing.T, p *Process) {
	t.Helper()
	checker := NewChecker(4, false) // as many partitions as a topic has by default
	seed := func(n int) {
		for i := range n {
			a, err := publish(p.HTTP, "sabotage", fmt.Sprint("key-", i), fmt.Sprint("event ", i), "")
			if err != nil {
				t.Fatal(err)
			}
			checker.Published(time.Now(), a.Partition, a.Offset, fmt.Sprint("key-", i), fmt.Sprint("event ", i))
		}
	}
	consume := func() {
		load := NewLoad("sabotage", map[string]*Checker{"g": checker}, 1, NewLedger(), p)
		load.Publishers = 0
		load.Start()
		defer load.Stop()
		eventually(t, wholeLimit, func() error {
			var o api.Offsets
			if _, err := call("GET", p.HTTP+"/groups/g/topics/sabotage/offsets", nil, &o); err != nil {
				return err
			}
			if len(o.Partitions) != 4 || o.Lag > 0 {
				return fmt.Errorf("lag is %d", o.Lag)
			}
			return nil
		})
	}
	seek := func(to string) {
		if _, err := call("PUT", p.HTTP+"/groups/g/topics/sabotage/offsets", []byte(`{"to":"`+to+`"}`), nil); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := call("PUT", p.HTTP+"/topics/sabotage", []byte(`{"partitions":4}`), nil); err != nil {
		t.Fatal(err)
	}
	seed(100)
	consume()
	if b := checker.Broken(); len(b) > 0 {
		t.Fatalf("broken before anything was done: %v", b)
	}
	seed(100)
	seek("latest")
	seed(100)
	consume()
	if b := checker.Broken(); len(b[ruleOrder]) == 0 {
		t.Errorf("100 messages were passed over, and the checker says %v", b)
	}
	seek("earliest")
	consume()
	if b := checker.Broken(); len(b[ruleRepeat]) == 0 {
		t.Errorf("200 acknowledged messages came again, and the checker says %v", b)
	}
}

// sample samples what answers until ctx ends.
func (r *Run) sample(ctx context.Context, into *Resources) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, p := range slices.Concat(r.load.Healthy(), r.c.Agents) {
				into.Sample(ctx, p, now)
			}
		}
	}
}

// settled waits until a group has acknowledged everything, by its own account
// and by the checker's, and returns the ends of the log.
func (r *Run) settled(group string, checker *Checker) map[int32]int64 {
	r.t.Helper()
	ends := map[int32]int64{}
	eventually(r.t, wholeLimit, func() error {
		var o api.Offsets
		p := r.load.Healthy()[0]
		if _, err := call("GET", p.HTTP+"/groups/"+group+"/topics/"+r.load.Topic+"/offsets", nil, &o); err != nil {
			return err
		}
		for _, part := range o.Partitions {
			ends[part.Partition] = part.End
			if part.End < 0 || part.Lag != 0 || part.Position != part.End {
				return fmt.Errorf("partition %d is not at its end: %+v", part.Partition, part)
			}
		}
		if n, list := checker.Open(ends); n > 0 {
			return fmt.Errorf("the group is at the end, and %d messages are not acknowledged: %s", n, list)
		}
		return nil
	})
	return ends
}
