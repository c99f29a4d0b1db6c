package consume

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
)

func TestTakeoverRepeatsOnlySinceTheCheckpoint(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	for p := range int32(2) {
		l.produce("views", p, 0, 20)
	}
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "g", Topic: "views", Max: 5, Lease: time.Minute}
	a.pull(req)
	b.pull(req)
	eventually(t, "a partition each", func() bool {
		return len(a.partitions("g", "views")) == 1 && len(b.partitions("g", "views")) == 1
	})
	of := b.partitions("g", "views")[0]
	// Five acknowledged and checkpointed …
	b.ackAll("g", "views", b.pullSome(req))
	eventually(t, "the checkpoint", func() bool {
		st, err := a.m.stored(t.Context(), "g", "views")
		return err == nil && st[of].Position.Low == 5
	})
	// … five acknowledged and on b's disk only, five out under a lease.
	b.interval.Store(int64(time.Hour))
	time.Sleep(50 * time.Millisecond) // one interval, so that the next counts
	b.ackAll("g", "views", b.pullSome(req))
	out := b.pullSome(req)
	st, err := a.m.stored(t.Context(), "g", "views")
	if err != nil || st[of].Position.Low != 5 {
		t.Fatalf("checkpointed %+v %v although the interval is an hour", st[of], err)
	}
	b.kill()
	// a suspects it by the health check, and takes over.
	eventually(t, "both partitions at a", func() bool { return len(a.partitions("g", "views")) == 2 })
	sum := drain(t, "g", "views", 35, a)
	if r := sum.repeated(); len(r) > 0 {
		t.Fatalf("delivered twice by one owner: %v", r)
	}
	want := make([]int64, 15)
	for i := range want {
		want[i] = int64(5 + i)
	}
	if got := sum.order[of]; !slices.Equal(got, want) {
		t.Fatalf("partition %d after the takeover: %v, want %v (out were %s)", of, got, want, offsetsOf(out.Messages))
	}
	g, err := a.m.Group(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	moved := slices.ContainsFunc(g.History, func(m api.Move) bool {
		return m.From == "b" && m.To == "a" && m.Partition == of && strings.Contains(m.Cause, "session ended")
	})
	if !moved {
		t.Fatalf("history %+v", g.History)
	}
}

func TestTakeoverOfThePlanner(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 4})
	a, b, c := l.host("a"), l.host("b"), l.host("c")
	req := PullRequest{Group: "g", Topic: "views"}
	for _, h := range []*host{a, b, c} {
		h.pull(req)
		eventually(t, "joined", func() bool {
			g := h.m.lookup("g")
			return g != nil && g.session() != nil
		})
	}
	spread := func(hs ...*host) func() bool {
		return func() bool {
			n := 0
			for _, h := range hs {
				k := len(h.partitions("g", "views"))
				if k == 0 {
					return false
				}
				n += k
			}
			return n == 4
		}
	}
	eventually(t, "four partitions at three", spread(a, b, c))
	a.kill() // it plans
	eventually(t, "four partitions at two", spread(b, c))
	g, err := b.m.Group(t.Context(), "g")
	if err != nil || g.Planner != "b" {
		t.Fatalf("planner %q, %v", g.Planner, err)
	}
	if !slices.ContainsFunc(g.History, func(m api.Move) bool { return m.Cause == "a's session ended" }) {
		t.Fatalf("history %+v", g.History)
	}
}

func TestRestartRepeatsOnlyWhatWasNotAcknowledged(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 10)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "views", Max: 4, Lease: time.Minute}
	a.interval.Store(int64(time.Hour)) // only the disk knows
	a.ackAll("g", "views", a.pullSome(req))
	d := a.pullSome(req)
	a.ack("g", "views", d.Messages[0].Receipt, d.Messages[2].Receipt)
	a.kill()
	// Our own earlier life: its session is ended at once.
	if err := l.store.DestroySession(t.Context(), a.sess.ID()); err != nil {
		t.Fatal(err)
	}
	a2 := l.hostIn("a", a.dir)
	d = a2.pullSome(PullRequest{Group: "g", Topic: "views"})
	if got := offsetsOf(d.Messages); !strings.HasPrefix(got, "[5 7") {
		t.Fatalf("after the restart %s", got)
	}
	if d.Messages[0].Attempt != 2 {
		t.Fatalf("attempt %d of a message that was out before", d.Messages[0].Attempt)
	}
}

func TestSessionLost(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 5)
	a := l.host("a")
	d := a.pullSome(PullRequest{Group: "g", Topic: "views", Max: 2})
	sess := a.session()
	a.endSession()
	<-sess.Lost()
	r := a.ack("g", "views", receiptsOf(d)...)
	if r.OK != 0 || r.Results[0].Error.Code != api.CodeLeaseLost {
		t.Fatalf("ack under a lost session: %+v", r)
	}
	// It joins again with the new session, as a new generation.
	for _, want := range []string{"[0 1]", "[2 3 4]"} { // what was out comes again before anything else
		d = a.pullSome(PullRequest{Group: "g", Topic: "views"})
		if got := offsetsOf(d.Messages); got != want {
			t.Fatalf("after joining again %s, want %s", got, want)
		}
		a.ackAll("g", "views", d)
	}
	o, err := a.m.Offsets(t.Context(), "g", "views")
	if err != nil || o.Partitions[0].Generation != 2 || o.Partitions[0].Position != 5 {
		t.Fatalf("offsets %+v %v", o, err)
	}
}

func TestStoreAway(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 5)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "views", Max: 1}
	a.ackAll("g", "views", a.pullSome(req))
	l.store.SetDown(true)
	d := a.pullSome(req) // pulls go on
	a.ackAll("g", "views", d)
	eventually(t, "the fence", func() bool { return a.session().Ownership() == discovery.Unproven })
	d = a.pullSome(req)
	if d.Ownership != "unproven" || offsetsOf(d.Messages) != "[2]" {
		t.Fatalf("past the fence: ownership %q, %s", d.Ownership, offsetsOf(d.Messages))
	}
	r := a.ack("g", "views", receiptsOf(d)...)
	if r.OK != 1 || !r.Results[0].Provisional {
		t.Fatalf("ack past the fence %+v", r)
	}
	// A group that is not joined yet needs the store.
	if _, err := a.m.Pull(t.Context(), PullRequest{Group: "other", Topic: "views"}); !errors.Is(err, &api.Error{Code: api.CodeStoreUnavailable}) {
		t.Fatalf("first pull of a group without the store: %v", err)
	}
	l.store.SetDown(false)
	eventually(t, "proven again, and the checkpoint merged", func() bool {
		st, err := a.m.stored(t.Context(), "g", "views")
		return a.session().Ownership() == discovery.Proven && err == nil && st[0].Position.Low == 3
	})
	d = a.pullSome(req)
	if d.Ownership != "" || offsetsOf(d.Messages) != "[3]" {
		t.Fatalf("after the outage: ownership %q, %s", d.Ownership, offsetsOf(d.Messages))
	}
}

func TestStrictGroupStopsWithoutTheStore(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 5)
	a := l.host("a", func(c *Config) { c.StrictAfter = time.Second })
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{Exclusive: "strict"}); err != nil {
		t.Fatal(err)
	}
	req := PullRequest{Group: "g", Topic: "views", Max: 1}
	a.ackAll("g", "views", a.pullSome(req))
	l.store.SetDown(true)
	eventually(t, "no hand-out", func() bool {
		d := a.pull(req)
		if len(d.Messages) > 0 {
			a.ackAll("g", "views", d)
			l.produce("views", 0, 100, 1)
			return false
		}
		return *d.Reason == api.ReasonUnproven
	})
	l.store.SetDown(false)
	a.pullSome(req)
}

func TestUnprovenEnds(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	a := l.host("a", func(c *Config) { c.UnprovenMax = 3 * time.Second })
	a.pull(PullRequest{Group: "g", Topic: "views"})
	eventually(t, "owned", func() bool { return len(a.partitions("g", "views")) == 1 })
	l.store.SetDown(true)
	l.produce("views", 0, 0, 1)
	eventually(t, "the end of going on alone", func() bool { return a.session().Age() > 3*time.Second })
	d := a.pull(PullRequest{Group: "g", Topic: "views", Wait: 100 * time.Millisecond})
	if len(d.Messages) > 0 || *d.Reason != api.ReasonUnproven {
		t.Fatalf("%d messages, reason %v", len(d.Messages), d.Reason)
	}
	l.store.SetDown(false)
	a.pullSome(PullRequest{Group: "g", Topic: "views"})
}

func TestStoreWiped(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	for p := range int32(2) {
		l.produce("views", p, 0, 10)
	}
	a := l.host("a")
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{Lease: "17s"}); err != nil {
		t.Fatal(err)
	}
	req := PullRequest{Group: "g", Topic: "views"}
	drain(t, "g", "views", 20, a)
	l.store.Wipe()
	eventually(t, "owned again under a new session", func() bool {
		d := a.pull(req)
		if len(d.Messages) > 0 {
			t.Fatalf("delivered again after the wipe: %s", offsetsOf(d.Messages))
		}
		return *d.Reason == api.ReasonAtEnd && a.session().Ownership() == discovery.Proven && len(a.partitions("g", "views")) == 2
	})
	eventually(t, "the group's settings written again", func() bool {
		g, err := a.m.Group(t.Context(), "g")
		return err == nil && g.Config.Lease == "17s" && len(g.Members) == 1
	})
	l.produce("views", 1, 10, 1)
	if got := offsetsOf(a.pullSome(req).Messages); got != "[10]" {
		t.Fatal(got)
	}
}

func TestSeekAfterTheStoreWasWiped(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 5)
	a := l.host("a")
	drain(t, "g", "views", 5, a)
	for range 2 {
		if _, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{To: "earliest"}); err != nil {
			t.Fatal(err)
		}
		drain(t, "g", "views", 5, a)
	}
	l.store.Wipe() // the seeks are gone, the positions on the disk know of two
	eventually(t, "owned again", func() bool {
		g, err := a.m.Group(t.Context(), "g")
		return err == nil && len(g.Owners) == 1 && g.Owners[0].Owner == "a" && len(a.partitions("g", "views")) == 1
	})
	s, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{To: "earliest"})
	if err != nil || s.SeekEpoch != 3 {
		t.Fatalf("%+v %v", s, err)
	}
	drain(t, "g", "views", 5, a)
}

func TestGroupsDoNotDisturbEachOther(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 4})
	for p := range int32(4) {
		l.produce("views", p, 0, 10)
	}
	a, b := l.host("a"), l.host("b")
	drain(t, "steady", "views", 40, a)
	gens := func() string {
		o, err := a.m.Offsets(t.Context(), "steady", "views")
		if err != nil {
			t.Fatal(err)
		}
		s := ""
		for _, p := range o.Partitions {
			s += fmt.Sprint(p.Generation, p.Owner, " ")
		}
		return s
	}
	before := gens()
	drain(t, "restless", "views", 40, a, b)
	b.endSession()
	eventually(t, "b is back", func() bool { return len(b.partitions("restless", "views"))+len(a.partitions("restless", "views")) == 4 })
	if after := gens(); after != before {
		t.Fatalf("generations of the other group: %s, before %s", after, before)
	}
}

func TestOwnerThatIsCutOff(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 6)
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "g", Topic: "views", Max: 1, Lease: time.Minute}
	a.ackAll("g", "views", a.pullSome(req))
	b.pull(req)
	eventually(t, "the checkpoint", func() bool {
		st, err := b.m.stored(t.Context(), "g", "views")
		return err == nil && st[0].Position.Low == 1
	})
	a.store.SetCut(true)
	// The others suspect it, end its session, and take over …
	eventually(t, "b has it", func() bool { return len(b.partitions("g", "views")) == 1 })
	// … while it goes on, since it cannot know: the promise is at least once.
	d := a.pullSome(req)
	eventually(t, "past the fence", func() bool { return a.session().Ownership() == discovery.Unproven })
	r := a.ack("g", "views", receiptsOf(d)...)
	if r.OK != 1 || !r.Results[0].Provisional || offsetsOf(d.Messages) != "[1]" {
		t.Fatalf("%s: %+v", offsetsOf(d.Messages), r)
	}
	late := a.pullSome(req)
	// Back again it learns that the session is lost, and hands out no more under
	// it; what it had acknowledged is added to the group's position.
	sess := a.session()
	a.store.SetCut(false)
	<-sess.Lost()
	if r := a.ack("g", "views", receiptsOf(late)...); r.OK != 0 || r.Results[0].Error.Code != api.CodeLeaseLost {
		t.Fatalf("an ack under the lost session: %+v", r)
	}
	eventually(t, "the provisional ack in the stored position", func() bool {
		st, err := l.store.Get(t.Context(), discovery.KeyOffset("g", "views", 0))
		if err != nil {
			return false
		}
		s, err := offsets.DecodeStored(st)
		return err == nil && s.Owner == "b" && s.Generation == 2 && s.Position.IsAcked(1)
	})
}

func TestHistoryAfterTheDeathOfThePlanner(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "g", Topic: "views"}
	a.pull(req)
	eventually(t, "a has all", func() bool { return len(a.partitions("g", "views")) == 2 })
	b.pull(req)
	eventually(t, "one each", func() bool { return len(a.partitions("g", "views")) == 1 && len(b.partitions("g", "views")) == 1 })
	of := a.partitions("g", "views")[0]
	a.kill() // it planned
	eventually(t, "b has all", func() bool { return len(b.partitions("g", "views")) == 2 })
	g, err := b.m.Group(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(g.History, func(m api.Move) bool {
		return m.From == "a" && m.To == "b" && m.Partition == of && m.Cause == "a's session ended"
	}) {
		t.Fatalf("history %+v", g.History)
	}
	es, err := l.store.List(t.Context(), discovery.PrefixAssign)
	if err != nil || len(es) != 1 {
		t.Fatalf("assignments left: %v %v", es, err)
	}
}
