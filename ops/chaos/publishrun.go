package chaos

import (
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// PublishRun is a cluster whose wires, brokers and sidecars fail one after the
// other while applications publish. After each fault every application must be
// answered well again.
type PublishRun struct {
	t    testing.TB
	rng  *rand.Rand
	c    *Cluster
	load *Publishers
	most time.Duration // that a fault lasts
}

type publishFault struct {
	name string
	do   func(*PublishRun)
}

// publishFaults are all, in a fixed order: the seed shuffles them.
var publishFaults = []publishFault{
	{"kill -9 of a broker", (*PublishRun).killBroker},
	{"pause of a broker", (*PublishRun).pauseBroker},
	{"a broker's network cut", func(r *PublishRun) { r.failWire(cut) }},
	{"a broker's network silent", func(r *PublishRun) { r.failWire(silent) }},
	{"a broker's answers lost", func(r *PublishRun) { r.failWire(deaf) }},
	{"requests to a broker late", (*PublishRun).delayWire},
	{"kill -9 of a sidecar", (*PublishRun).killSidecar},
	{"SIGTERM to a sidecar", (*PublishRun).stopSidecar},
	{"kill -9 of a sidecar while answers are lost", (*PublishRun).killWhileDeaf},
	{"kill -9 of all brokers", (*PublishRun).killAllBrokers},
	{"a broker's disk full", (*PublishRun).fillBroker},
	{"a sidecar's disk full", (*PublishRun).fillSidecar},
}

// publishDoubles are for long runs.
var publishDoubles = []publishFault{
	{"pause of a sidecar", (*PublishRun).pauseSidecar},
	{"kill -9 of a sidecar while all brokers are away", (*PublishRun).killWithoutBrokers},
	{"kill -9 of a sidecar, and of it again at once", (*PublishRun).killTwice},
	{"kill -9 of a broker that is paused, and of a sidecar", (*PublishRun).killPaused},
	{"SIGTERM to a sidecar while answers are lost", (*PublishRun).stopWhileDeaf},
}

// Round lets every fault happen once, in an order of the seed, until a time.
func (r *PublishRun) Round(faults []publishFault, until time.Time) {
	r.t.Helper()
	for _, i := range r.rng.Perm(len(faults)) {
		if !time.Now().Before(until) {
			return
		}
		began := time.Now()
		r.load.stalls.Reset()
		r.t.Logf("%s %s …", clock(began), faults[i].name)
		faults[i].do(r)
		r.well()
		r.t.Logf("%s %s: all publish again after %v", clock(time.Now()), faults[i].name, time.Since(began).Round(10*time.Millisecond))
	}
}

// well waits until every publisher has been answered well since the call.
func (r *PublishRun) well() {
	r.t.Helper()
	began := time.Now().UnixNano()
	eventually(r.t, wholeLimit, func() error {
		for _, p := range r.c.all() {
			if p.cmd != nil && p.Exited() {
				r.t.Fatalf("%s ended by itself\n%s", p.Name, p.Tail())
			}
		}
		var waiting []string
		for _, w := range r.load.list {
			if w.lastGood.Load() < began {
				waiting = append(waiting, fmt.Sprintf("publisher %d (%s) of %s", w.number, w.name, w.p.Name))
			}
		}
		if len(waiting) > 0 {
			return fmt.Errorf("without a good answer since %s: %s", clock(time.Unix(0, began)), few(waiting))
		}
		return nil
	})
}

// last lets a fault last for a time.
func (r *PublishRun) last() { time.Sleep(r.most/2 + upTo(r.rng, r.most/2)) }

func (r *PublishRun) broker() int { return r.rng.IntN(len(r.c.Agents)) }

func (r *PublishRun) sidecar() *Process {
	return r.c.Sidecars[r.rng.IntN(len(r.c.Sidecars))]
}

func (r *PublishRun) start(ps ...*Process) {
	r.t.Helper()
	for _, p := range ps {
		p.Start()
	}
	for _, p := range ps {
		p.WaitReady(wholeLimit)
		if slices.Contains(r.c.Sidecars, p) {
			r.load.Faulty(p, false)
		}
	}
}

// kill is kill -9 as the load must know of it.
func (r *PublishRun) kill(p *Process) {
	r.t.Helper()
	r.load.Faulty(p, true)
	p.Kill()
}

// killBroker also lets the wire refuse connections, now and then: without that
// they are taken and reset.
func (r *PublishRun) killBroker() {
	n := r.broker()
	if refuses := r.rng.IntN(2) == 0; refuses {
		r.c.Wires[n].Fail(cut)
		defer r.c.Wires[n].Heal()
	}
	r.c.Agents[n].Kill()
	time.Sleep(upTo(r.rng, r.most))
	r.start(r.c.Agents[n])
}

func (r *PublishRun) pauseBroker() {
	p := r.c.Agents[r.broker()]
	p.Signal(syscall.SIGSTOP)
	r.last()
	p.Signal(syscall.SIGCONT)
	p.WaitReady(wholeLimit)
}

func (r *PublishRun) failWire(how wireState) {
	w := r.c.Wires[r.broker()]
	w.Fail(how)
	r.last()
	w.Heal()
}

// delayWire holds requests back for less than their senders wait for an answer:
// what they do then, and what arrives after all, must not be two messages. One
// that is held back for longer may be, see TestTheEdgeOfPublishing.
func (r *PublishRun) delayWire() {
	w := r.c.Wires[r.broker()]
	w.Fail(held)
	time.Sleep(time.Second + upTo(r.rng, 2*time.Second))
	w.Heal()
}

func (r *PublishRun) failWires(how wireState) (heal func()) {
	for _, w := range r.c.Wires {
		w.Fail(how)
	}
	return func() {
		for _, w := range r.c.Wires {
			w.Heal()
		}
	}
}

func (r *PublishRun) killSidecar() {
	p := r.sidecar()
	r.kill(p)
	time.Sleep(upTo(r.rng, time.Second))
	r.start(p)
}

func (r *PublishRun) killTwice() {
	p := r.sidecar()
	r.kill(p)
	p.Start()
	time.Sleep(upTo(r.rng, 2*time.Second))
	p.Kill()
	r.start(p)
}

func (r *PublishRun) stopSidecar() {
	p := r.sidecar()
	r.load.Faulty(p, true)
	p.Stop()
	r.start(p)
}

func (r *PublishRun) pauseSidecar() {
	p := r.sidecar()
	r.load.Faulty(p, true)
	p.Signal(syscall.SIGSTOP)
	r.last()
	p.Signal(syscall.SIGCONT)
	p.WaitReady(wholeLimit)
	r.load.Faulty(p, false)
}

func (r *PublishRun) killWhileDeaf() {
	p := r.sidecar()
	heal := r.failWires(deaf)
	time.Sleep(upTo(r.rng, time.Second))
	r.kill(p)
	p.Start()
	r.last()
	heal()
	p.WaitReady(wholeLimit)
	r.load.Faulty(p, false)
}

func (r *PublishRun) stopWhileDeaf() {
	p := r.sidecar()
	heal := r.failWires(deaf)
	time.Sleep(upTo(r.rng, time.Second))
	r.load.Faulty(p, true)
	p.Stop()
	p.Start()
	r.last()
	heal()
	p.WaitReady(wholeLimit)
	r.load.Faulty(p, false)
}

// killAllBrokers also looks at what goes on without brokers: what this host's
// disk answers for.
func (r *PublishRun) killAllBrokers() {
	for _, p := range r.c.Agents {
		p.Kill()
	}
	spooling := r.spooling()
	r.last()
	for w, before := range spooling {
		if w.good.Load() == before {
			r.breakIfSteady(ruleLate, "publisher %d (%s) of %s was not answered well once while all brokers were down", w.number, w.name, w.p.Name)
		}
	}
	r.start(r.c.Agents...)
}

// spooling are the publishers that need no brokers, with what they got so far.
func (r *PublishRun) spooling() map[*publisher]int64 {
	out := map[*publisher]int64{}
	for _, w := range r.load.list {
		if !slices.ContainsFunc(w.acks, func(ack string) bool { return ack != "spool" }) {
			out[w] = w.good.Load()
		}
	}
	return out
}

func (r *PublishRun) killWithoutBrokers() {
	for _, p := range r.c.Agents {
		p.Kill()
	}
	p := r.sidecar()
	r.last()
	r.kill(p)
	p.Start()
	r.last()
	r.start(r.c.Agents...)
	p.WaitReady(wholeLimit)
	r.load.Faulty(p, false)
}

func (r *PublishRun) killPaused() {
	b, p := r.c.Agents[r.broker()], r.sidecar()
	b.Signal(syscall.SIGSTOP)
	r.last()
	r.kill(p)
	b.Kill()
	r.start(b, p)
}

func (r *PublishRun) fillBroker() {
	if d, ok := r.c.Disks[r.c.Agents[0]]; ok {
		r.fill(d)
	}
}

func (r *PublishRun) fillSidecar() {
	if d, ok := r.c.Disks[r.c.Sidecars[0]]; ok {
		r.load.diskFull.Store(true)
		r.load.Faulty(r.c.Sidecars[0], true)
		r.fill(d)
		r.c.Sidecars[0].WaitReady(wholeLimit)
		r.well()
		r.load.Faulty(r.c.Sidecars[0], false)
		r.load.diskFull.Store(false)
	}
}

func (r *PublishRun) fill(d Disk) {
	if err := d.Fill(); err != nil {
		r.t.Fatal(err)
	}
	r.last()
	if err := d.Free(); err != nil {
		r.t.Fatal(err)
	}
}

// sample samples what answers until ctx ends.
func (r *PublishRun) sample(ctx context.Context, into *Resources) {
	tick := time.NewTicker(sampleEvery)
	defer tick.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case now := <-tick.C:
			for _, p := range r.c.all() {
				into.Sample(ctx, p, now)
			}
		}
	}
}

// breakIfSteady breaks a rule about time, unless this machine stood still.
func (r *PublishRun) breakIfSteady(rule, format string, args ...any) {
	r.t.Helper()
	if worst := r.load.stalls.Worst(); worst > stallLimit {
		r.t.Logf("not judged, since this machine stood still for %v: %s", worst.Round(time.Millisecond), fmt.Sprintf(format, args...))
		return
	}
	r.load.Checker.Break(rule, format, args...)
}

// settled waits until nothing is on its way to the brokers any more.
func (r *PublishRun) settled() {
	r.t.Helper()
	eventually(r.t, wholeLimit, func() error {
		for _, p := range r.c.Sidecars {
			m, err := metricsOf(context.Background(), p)
			if err != nil {
				return err
			}
			for _, name := range onTheWay {
				n, ok := m[name]
				if !ok {
					r.t.Fatalf("%s has no metric %s", p.Name, name)
				}
				if n != 0 {
					return fmt.Errorf("%s: %s is %v", p.Name, name, n)
				}
			}
		}
		return nil
	})
}

// onTheWay are the metrics that count what is not settled.
var onTheWay = []string{"sidestream_publish_buffered_records", "sidestream_spool_pending_records", "sidestream_idempotency_open_keys"}

// readLog reads all of a topic with a Kafka client of its own: what a sidecar
// says of the log proves nothing here.
func readLog(t testing.TB, brokers []string, topic string) (log []Found) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), wholeLimit)
	defer cancel()
	cl, err := kgo.NewClient(kgo.SeedBrokers(brokers...), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ends, err := kadm.NewClient(cl).ListEndOffsets(ctx, topic)
	if err == nil {
		err = ends.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	next := map[int32]int64{}
	behind := func() bool {
		for p, end := range ends[topic] {
			if next[p] < end.Offset {
				return true
			}
		}
		return false
	}
	for behind() {
		fetches := cl.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			t.Fatal(err)
		}
		fetches.EachRecord(func(rec *kgo.Record) {
			if rec.Offset != next[rec.Partition] {
				t.Fatalf("%s/%d: offset %d where %d was due", topic, rec.Partition, rec.Offset, next[rec.Partition])
			}
			next[rec.Partition]++
			f := Found{Partition: rec.Partition, Offset: rec.Offset, Key: string(rec.Key), Value: string(rec.Value)}
			for _, h := range rec.Headers {
				if h.Key == "sidestream-id" {
					f.ID = string(h.Value)
				}
			}
			log = append(log, f)
		})
	}
	return log
}

// spoolFates asks the sidecars what became of what they took into their spools,
// and holds that against the log.
func (r *PublishRun) spoolFates(log []Found) {
	r.t.Helper()
	there := map[string]Found{}
	for _, f := range log {
		there[f.Value] = f
	}
	for _, w := range r.load.list {
		ids := r.load.Checker.Spooled(w.number)
		for _, i := range r.rng.Perm(len(ids))[:min(len(ids), 50)] {
			var ev api.SpoolEvent
			f := there[ids[i].value]
			if _, err := call("GET", w.p.HTTP+"/spool/"+ids[i].id, nil, &ev); err != nil {
				r.load.Checker.Break(ruleFate, "%s at %s: %v", ids[i].id, w.p.Name, err)
			} else if ev.State != api.SpoolWritten || ev.Partition != f.Partition || ev.Offset != f.Offset {
				r.load.Checker.Break(ruleFate, "%s at %s is %+v, and in the log at %d/%d", ids[i].id, w.p.Name, ev, f.Partition, f.Offset)
			}
		}
	}
}
