package chaos

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

var (
	publishFor  = flag.Duration("publish.for", 0, "how long TestPublishFaults lets faults happen; 0: each once, and short")
	publishSeed = flag.Uint64("publish.seed", 0, "order of the faults and behaviour of the applications of TestPublishFaults; 0: another each time")
	publishKeep = flag.String("publish.keep", "", "folder for the data and logs of TestPublishFaults, which outlives it")
)

// Applications publish in every way through two sidecars, and everything fails in
// turn, in an order of the seed. Then the log is read: no answer was a lie.
func TestPublishFaults(t *testing.T) {
	const partitions = 8
	seed := *publishSeed
	if seed == 0 {
		seed = rand.Uint64N(1_000_000)
	}
	t.Logf("repeat with: go test -race -count=1 -timeout 60m ./ops/chaos -run TestPublishFaults -publish.for=%v -publish.seed=%d", *publishFor, seed)
	c := Start(t, 2, 2, Options{Wires: true, SmallDisks: true, Keep: *publishKeep, Sidecar: publishConfig})
	c.CreateTopic("events", partitions)
	load := NewPublishers("events", partitions, seed, manners, c.Sidecars...)
	r := &PublishRun{t: t, rng: rand.New(rand.NewPCG(seed, 7)), c: c, load: load, most: 2 * time.Second}
	if *publishFor > 0 {
		r.most = 8 * time.Second
	}
	watching, stopWatching := context.WithCancel(t.Context())
	var watchers sync.WaitGroup
	var resources Resources
	watchers.Go(func() { r.sample(watching, &resources) })
	watchers.Go(func() { load.stalls.Watch(watching) })
	load.Start()
	defer func() {
		stopWatching()
		watchers.Wait()
		load.Stop()
		t.Logf("resident memory: %s", resources.Report())
		t.Logf("messages and requests: %v", load.Checker.Counts())
		tell(t, load.Checker.Broken())
	}()
	r.well()
	began := time.Now()
	r.Round(publishFaults, began.Add(time.Hour)) // each once, whatever it takes
	for end := began.Add(*publishFor); time.Now().Before(end); {
		r.Round(publishDoubles, end)
		r.Round(publishFaults, end)
	}
	load.Stop()
	r.settled()
	brokers := []string{c.Wires[0].Addr, c.Wires[1].Addr}
	log := readLog(t, brokers, "events")
	load.Checker.Finish(log)
	for _, what := range resources.Growing() {
		load.Checker.Break(ruleResource, "%s", what)
	}
	r.spoolFates(log)
	t.Logf("%d messages are in the log", len(log))
	counts := load.Checker.Counts()
	for _, want := range wanted {
		if counts[want] == 0 {
			t.Errorf("the faults did not bring about every outcome: %q never happened", want)
		}
	}
	publishSeen(t, brokers, load.Checker)
}

// publishConfig is of the sidecars: less than the defaults, so that limits are met.
var publishConfig = fmt.Sprintf(`
publish:
  max_message_bytes: %d
spool:
  fallback: true
limits:
  max_wait: 100ms
  callers:
    limited: "%d"
`, largest, callerLimit)

// wanted are the outcomes without which a run has shown little.
var wanted = []string{"written", "spooled", "refused", "unknown", "replayed", "brokers_unavailable", "message_too_large", "bad_record", "rate_limited", "idempotency_conflict", "fell back", "streamed"}

func tell(t *testing.T, broken map[string][]string) {
	t.Helper()
	for _, rule := range slices.Sorted(maps.Keys(broken)) {
		t.Errorf("%s, %d times:\n%s", rule, len(broken[rule]), strings.Join(broken[rule][:min(len(broken[rule]), 12)], "\n"))
	}
}

// publishSeen writes to the log what no answer allows, and demands that the
// checker sees it.
func publishSeen(t *testing.T, brokers []string, c *PublishChecker) {
	t.Helper()
	if len(c.Broken()) > 0 {
		return // nothing more could be seen
	}
	seen := NewPublishChecker()
	seen.posts = c.posts
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.DefaultProduceTopic("events"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	for _, which := range []fate{fateWritten, fateRefused} {
		m := anyOf(c, which)
		if err := cl.ProduceSync(t.Context(), &kgo.Record{Key: []byte(m.key), Value: []byte(m.value)}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	seen.Finish(readLog(t, brokers, "events"))
	for _, rule := range []string{ruleTwice, ruleRefused} {
		if len(seen.Broken()[rule]) != 1 {
			t.Errorf("a copy of a message and a message that was refused are in the log, and the checker says %v", seen.Broken())
		}
	}
}

// anyOf is a message of a fate.
func anyOf(c *PublishChecker, which fate) sent {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, posts := range c.posts {
		for _, p := range posts {
			for _, m := range p.messages {
				if m.outcome.fate == which && m.partition < 0 {
					return m
				}
			}
		}
	}
	return sent{}
}

// The edge of the promise that nothing is there twice: a request that the network
// or a broker holds back for longer than its sidecar lives, and than the next one
// looks for it. Both copies can be told by the id in their headers.
func TestTheEdgeOfPublishing(t *testing.T) {
	c := Start(t, 1, 1, Options{Wires: true})
	c.CreateTopic("edge", 1)
	s, w := c.Sidecars[0], c.Wires[0]
	post := func(value string, ack string) (int, error) {
		r := request{url: s.HTTP + "/topics/edge?timeout=5s&ack=" + ack, body: []byte(value), header: http.Header{}}
		if ack == "all" {
			r.header.Set(api.HeaderIdempotencyKey, "of "+value)
		}
		status, _, _, err := exchange(r)
		return status, err
	}
	for _, tc := range []struct {
		value, ack string
		good       int
	}{{"spooled", "spool", http.StatusAccepted}, {"keyed", "all", http.StatusOK}} {
		t.Run(tc.value, func(t *testing.T) {
			if status, err := post("the first "+tc.value, tc.ack); err != nil || status != tc.good {
				t.Fatal(status, err)
			}
			copies(t, w, "the first "+tc.value, 1)
			w.Fail(held)
			late := make(chan struct{})
			go func() { _, _ = post(tc.value+" late", tc.ack); close(late) }()
			eventually(t, wholeLimit, func() error {
				if !w.Waits(tc.value + " late") {
					return errNotYet
				}
				return nil
			})
			s.Kill()
			<-late
			s.Start()
			s.WaitReady(wholeLimit)
			if tc.ack == "all" {
				eventually(t, wholeLimit, func() error {
					if status, err := post(tc.value+" late", tc.ack); err != nil || status != tc.good {
						return fmt.Errorf("%d %v", status, err)
					}
					return nil
				})
			}
			copies(t, w, tc.value+" late", 1)
			w.Heal()
			copies(t, w, tc.value+" late", 2)
		})
	}
}

// copies waits until a value is in the log so often, each time with the same id.
func copies(t *testing.T, w *Wire, value string, want int) {
	t.Helper()
	eventually(t, wholeLimit, func() error {
		n, ids := 0, map[string]bool{}
		for _, f := range readLog(t, []string{w.Addr}, "edge") {
			if f.Value == value {
				n++
				ids[f.ID] = true
			}
		}
		if n != want || len(ids) != 1 || ids[""] {
			return fmt.Errorf("%q is there %d times with the ids %v, want %d with one id", value, n, ids, want)
		}
		return nil
	})
}
