package consume

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
)

// produceKeys writes a message for each letter to partition 0: its key, or none
// for a dot.
func (l *lab) produceKeys(topic, keys string) {
	l.t.Helper()
	var rs []*kgo.Record
	for i, k := range keys {
		r := &kgo.Record{Topic: topic, Value: fmt.Append(nil, i)}
		if k != '.' {
			r.Key = []byte(string(k))
		}
		rs = append(rs, r)
	}
	if err := l.prod.ProduceSync(l.t.Context(), rs...).FirstErr(); err != nil {
		l.t.Fatal(err)
	}
}

func (h *host) configure(group string, c api.GroupConfig) {
	h.lab.t.Helper()
	if _, err := h.m.Configure(h.lab.t.Context(), group, c); err != nil {
		h.lab.t.Fatal(err)
	}
}

func (h *host) nack(group, topic string, r api.Receipts) {
	h.lab.t.Helper()
	if resp, err := h.m.Nack(h.lab.t.Context(), group, topic, r); err != nil || resp.Failed > 0 {
		h.lab.t.Fatalf("%s: nack: %+v, %v", h.id, resp, err)
	}
}

// One slow key does not hold up the others, and what is given back comes before
// what follows it in its key.
func TestOrderKey(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produceKeys("jobs", "aabab.c.")
	a := l.host("a")
	a.configure("g", api.GroupConfig{Order: "key"})
	req := PullRequest{Group: "g", Topic: "jobs", Max: 1, Lease: time.Minute}
	slow := a.pullSome(req) // key a, and it is not acknowledged
	if got := offsetsOf(slow.Messages); got != "[0]" {
		t.Fatal(got)
	}
	req.Max = 10
	d := a.pullSome(req)
	if got := offsetsOf(d.Messages); got != "[2 4 5 6 7]" {
		t.Fatal(got)
	}
	if d := a.pull(req); len(d.Messages) > 0 || *d.Reason != api.ReasonInFlightFull {
		t.Fatalf("behind the slow one: %s %v", offsetsOf(d.Messages), d.Reason)
	}
	// A nack of one of b returns what follows it in b alone.
	a.nack("g", "jobs", api.Receipts{Receipts: []string{d.Messages[0].Receipt}})
	b := a.pullSome(req)
	if got := offsetsOf(b.Messages); got != "[2 4]" || b.Messages[0].Attempt != 2 {
		t.Fatalf("%s %+v", got, b.Messages)
	}
	a.ackAll("g", "jobs", b)
	a.ackAll("g", "jobs", slow)
	rest := a.pullSome(req)
	if got := offsetsOf(rest.Messages); got != "[1 3]" {
		t.Fatal(got)
	}
	a.ackAll("g", "jobs", rest)
	for _, m := range d.Messages[2:] {
		a.ack("g", "jobs", m.Receipt)
	}
	o, err := a.m.Offsets(t.Context(), "g", "jobs")
	if err != nil || o.Partitions[0].Position != 8 {
		t.Fatalf("%+v %v", o, err)
	}
}

func TestOrderNone(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produceKeys("jobs", "aaaa")
	a := l.host("a")
	a.configure("g", api.GroupConfig{Order: "none"})
	req := PullRequest{Group: "g", Topic: "jobs", Max: 1, Lease: time.Minute}
	first := a.pullSome(req)
	req.Max = 2
	if got := offsetsOf(a.pullSome(req).Messages); got != "[1 2]" {
		t.Fatal(got)
	}
	a.nack("g", "jobs", api.Receipts{Receipts: receiptsOf(first), Delay: "1h"})
	if got := offsetsOf(a.pullSome(req).Messages); got != "[3]" {
		t.Fatal(got)
	}
	if d := a.pull(req); len(d.Messages) > 0 {
		t.Fatalf("put off for an hour, and delivered: %s", offsetsOf(d.Messages))
	}
}

// A group that changes its order goes on in the new one, and delivers nothing
// again that was acknowledged.
func TestOrderChangesOnALiveGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produceKeys("jobs", "abab")
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "jobs", Max: 1, Lease: time.Minute}
	d := a.pullSome(req)
	if d := a.pull(req); len(d.Messages) > 0 {
		t.Fatalf("two leases of a partition: %s", offsetsOf(d.Messages))
	}
	a.configure("g", api.GroupConfig{Order: "key"})
	time.Sleep(2 * tickEvery)
	a.ackAll("g", "jobs", d) // while it is waited for
	d = a.pullSome(req)
	if got := offsetsOf(d.Messages); got != "[1]" || d.Messages[0].Attempt != 1 {
		t.Fatalf("%s %+v", got, d.Messages)
	}
	if got := offsetsOf(a.pullSome(req).Messages); got != "[2]" {
		t.Fatal(got)
	}
}

// What was put off, and how often it was tried, outlives a kill of the sidecar
// and a takeover by another.
func TestNackOutlivesItsSidecar(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produceKeys("jobs", "abc")
	a := l.host("a")
	a.interval.Store(int64(time.Hour)) // nothing of it is in the coordination store
	a.configure("g", api.GroupConfig{Order: "key"})
	req := PullRequest{Group: "g", Topic: "jobs", Max: 10, Lease: time.Minute}
	// Counted from before the nack: its delay begins when it is taken in, and its
	// answer may come late on a busy machine. Times are kept in milliseconds.
	var due time.Time
	for attempt := range 3 {
		d := a.pullSome(req)
		if d.Messages[0].Offset != 0 || d.Messages[0].Attempt != attempt+1 {
			t.Fatalf("%+v", d.Messages)
		}
		delay := ""
		if attempt == 2 {
			delay = "2s"
			due = time.Now().Add(2 * time.Second).Truncate(time.Millisecond)
		}
		a.nack("g", "jobs", api.Receipts{Receipts: []string{d.Messages[0].Receipt}, Delay: delay})
	}
	a.kill()
	a.endSession()
	check := func(h *host, attempt int) {
		t.Helper()
		for {
			d := h.pullSome(req)
			for _, m := range d.Messages {
				if m.Offset != 0 {
					continue
				}
				if time.Now().Before(due) {
					t.Fatalf("%s: delivered %s before its time", h.id, time.Until(due))
				}
				if m.Attempt != attempt {
					t.Fatalf("%s: attempt %d, want %d", h.id, m.Attempt, attempt)
				}
				return
			}
		}
	}
	restarted := l.hostIn("a", a.dir)
	check(restarted, 4)
	eventually(t, "the checkpoint has the attempts", func() bool {
		st, err := restarted.m.stored(t.Context(), "g", "jobs")
		if err != nil {
			return false
		}
		r, ok := st[0].Position.Retry(0)
		return ok && r.Attempt == 4
	})
	restarted.kill()
	restarted.endSession()
	check(l.host("b"), 5)
}

// A message that is put off for long, with so many of its key behind it that
// nothing can be read for the other keys, becomes a dead letter.
func TestOneKeyDoesNotStopThePartition(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produceKeys("jobs", strings.Repeat("a", 60))
	a := l.host("a", func(c *Config) { c.PrefetchCount, c.FullWait = 40, time.Second })
	a.configure("g", api.GroupConfig{Order: "key"})
	req := PullRequest{Group: "g", Topic: "jobs", Max: 1, Lease: time.Minute}
	d := a.pullSome(req)
	a.nack("g", "jobs", api.Receipts{Receipts: receiptsOf(d), Delay: "1h", Error: "later"})
	l.produceKeys("jobs", "bb")
	if d := a.pull(req); len(d.Messages) > 0 {
		t.Fatalf("put off, and %s comes", offsetsOf(d.Messages))
	}
	sum := newTally()
	req.Max = 20
	eventually(t, "the rest", func() bool {
		d := a.pull(req)
		sum.add(d.Messages)
		if len(d.Messages) > 0 {
			a.ackAll("g", "jobs", d)
		}
		return sum.distinct() == 61
	})
	letters := a.letters("g", "jobs")
	if len(letters) != 1 || letters[0].Reason != "window_full" || letters[0].Attempts != 1 {
		t.Fatalf("%+v", letters)
	}
	if at := a.position("g", "jobs"); at != 62 {
		t.Fatalf("position %d", at)
	}
}

// A pull that does not want to wait gets what is being read although a message
// of another key is put off.
func TestReadingOnBehindAMessagePutOff(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produceKeys("jobs", "a")
	a := l.host("a", func(c *Config) { c.PrefetchCount, c.PartitionFetchBytes = 8, 4<<10 })
	a.configure("g", api.GroupConfig{Order: "key"})
	req := PullRequest{Group: "g", Topic: "jobs", Max: 2, Lease: time.Minute}
	d := a.pullSome(req)
	a.nack("g", "jobs", api.Receipts{Receipts: receiptsOf(d), Delay: "1h"})
	const more = 60
	for i := range more {
		r := &kgo.Record{Topic: "jobs", Key: fmt.Append(nil, i), Value: make([]byte, 2<<10)}
		for j := range r.Value {
			r.Value[j] = byte(rand.Int()) // which no codec shortens
		}
		if err := l.prod.ProduceSync(t.Context(), r).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	l.kafka.ControlKey(int16(kmsg.Fetch), func(kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		time.Sleep(20 * time.Millisecond) // a slow network
		return nil, nil, false
	})
	sum := newTally()
	o := a.m.lookup("g").share("jobs").owner(0)
	for o.view(time.Now()).end <= more { // until it knows how much there is
		d := a.pullSome(req)
		sum.add(d.Messages)
		a.ackAll("g", "jobs", d)
	}
	for sum.distinct() < more {
		d := a.pull(req)
		if len(d.Messages) == 0 {
			t.Fatalf("%v after %d of %d", *d.Reason, sum.distinct(), more)
		}
		sum.add(d.Messages)
		a.ackAll("g", "jobs", d)
	}
}

// A message that takes its host down counts an attempt each time, also when
// nothing of it reached the coordination store.
func TestAttemptsOfAMessageThatKills(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 1)
	dir := t.TempDir()
	for attempt := 1; attempt <= 4; attempt++ {
		a := l.hostIn("a", dir)
		a.interval.Store(int64(time.Hour))
		d := a.pullSome(PullRequest{Group: "g", Topic: "jobs", Lease: time.Minute})
		if d.Messages[0].Attempt != attempt {
			t.Fatalf("attempt %d, want %d", d.Messages[0].Attempt, attempt)
		}
		eventually(t, "it is counted on disk", func() bool {
			p, ok, err := a.local.Get(offsets.Key{Group: "g", Topic: "jobs"})
			r, _ := p.Retry(0)
			return err == nil && ok && p.HandOut == 1 && max(1, r.Attempt) == attempt
		})
		a.kill()
		a.endSession()
	}
}
