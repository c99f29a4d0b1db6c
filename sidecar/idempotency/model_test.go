package idempotency

import (
	"fmt"
	"reflect"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// Whatever becomes of requests, repeats, the process and its disk: a record is
// there at most once at any time, what was answered is there and is answered
// again, and once everything is well each is there once.
func TestAtMostOnceAndInTheEndOnce(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &rig{t: t, world: newWorld(t), fs: disk.NewMem(), cfg: DefaultConfig()}
		r.deps = Deps{Dir: "/keys", Nonce: "n", Brokers: r.world, Spool: r.world, Timeout: 10 * time.Second, MaxTimeout: time.Minute, quiet: time.Millisecond, FS: r.fs}
		r.open()
		defer func() {
			if err := r.Keys.Close(); err != nil {
				rt.Error(err)
			}
		}()
		answers := map[string][]api.BatchResult{}
		check := func(what string) {
			for id, n := range r.world.copies() {
				if n > 1 {
					rt.Fatalf("after %s: %s is there %d times", what, id, n)
				}
			}
		}
		// send publishes and checks the answer; true if all of it is written.
		send := func(key string, timeout time.Duration) bool {
			spool := func(o *publish.Options) {
				o.Timeout = timeout
				if key[0] == 's' {
					o.Ack = publish.AckSpool
				}
			}
			var results []api.BatchResult
			if key[1] == 'b' {
				var err error
				if results, _, err = r.batch(key, 3, spool); err != nil {
					return false
				}
			} else {
				done, _, err := r.post(key, func(_ *publish.Message, o *publish.Options) { spool(o) })
				if err != nil {
					return false
				}
				results = []api.BatchResult{{Partition: done.Partition, Offset: done.Offset, SpoolID: done.SpoolID}}
			}
			for i, x := range results {
				if x.Error != nil {
					return false
				}
				if x.SpoolID != "" {
					continue
				}
				if log := r.world.logs[x.Partition]; x.Offset < 0 || x.Offset >= int64(len(log)) || log[x.Offset] == "" {
					rt.Fatalf("message %d of %s is answered as %+v, and is not there", i, key, x)
				}
			}
			if before, ok := answers[key]; ok && !reflect.DeepEqual(before, results) {
				rt.Fatalf("%s was answered %+v, and now %+v", key, before, results)
			}
			answers[key] = results
			return true
		}
		keys := []string{"a1", "a2", "ab", "s1", "sb"}
		for range rapid.IntRange(1, 12).Draw(rt, "steps") {
			switch what := rapid.SampledFrom([]string{"post", "post", "post", "post", "land", "crash", "crash in it", "restart", "away", "back"}).Draw(rt, "what"); what {
			case "post", "crash in it":
				key := rapid.SampledFrom(keys).Draw(rt, "key")
				next := plan(rapid.IntRange(0, int(plans)-2).Draw(rt, "plan"))
				if key[0] == 's' {
					next = rapid.SampledFrom([]plan{intoSpool, absent503}).Draw(rt, "plan of the spool")
				}
				r.world.next(next)
				var left *disk.Mem
				if what == "crash in it" {
					seed := rapid.Uint64().Draw(rt, "seed")
					kill := func() { left = r.fs.Crash(seed) }
					r.world.mu.Lock()
					if rapid.Bool().Draw(rt, "before") && next == absent503 {
						r.world.before = kill
					} else {
						r.world.after = kill
					}
					r.world.mu.Unlock()
				}
				before := answers[key]
				send(key, 10*time.Millisecond)
				r.world.mu.Lock()
				r.world.before, r.world.after = nil, nil
				r.world.mu.Unlock()
				if left != nil { // nobody got that answer
					if before == nil {
						delete(answers, key)
					}
					r.crashTo(left)
				}
				check(fmt.Sprint(what, " ", key, " ", next))
			case "land":
				r.world.land()
			case "crash":
				r.crash(rapid.Uint64().Draw(rt, "seed"))
			case "restart":
				r.world.land() // a publisher that closes lets all land
				r.restart()
			case "away", "back":
				r.world.mu.Lock()
				r.world.away = what == "away"
				r.world.mu.Unlock()
			}
			check("a step")
		}
		r.world.mu.Lock()
		r.world.away, r.world.plan = false, nil
		r.world.mu.Unlock()
		r.world.land()
		for _, key := range keys {
			r.world.next(written200)
			if key[0] == 's' {
				r.world.next(intoSpool)
			}
			if !send(key, 10*time.Second) {
				rt.Fatalf("%s is not written though all is well", key)
			}
			r.world.next()
			if !send(key, 10*time.Second) {
				rt.Fatalf("%s is not answered again", key)
			}
		}
		copies := r.world.copies()
		if len(copies) != 1+1+3+1+3 {
			rt.Fatalf("%d records: %v", len(copies), copies)
		}
		check("all")
	})
}
