package consume

import (
	"slices"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

func TestPauseIsPure(t *testing.T) {
	c := discovery.GroupConfig{}
	c = withPause(withPause(withPause(c, "b"), "a"), "b")
	if all, ts := pausedTopics(c); all || !slices.Equal(ts, []string{"a", "b"}) || !isPaused(c, "a") || isPaused(c, "c") {
		t.Fatalf("%+v", c)
	}
	one, err := withoutPause(c, "a")
	if err != nil || isPaused(one, "a") || !isPaused(one, "b") {
		t.Fatalf("%+v %v", one, err)
	}
	if one, err = withoutPause(one, "b"); err != nil || one.Paused != "" {
		t.Fatalf("%+v %v", one, err)
	}
	all := withPause(withPause(c, ""), "a")
	if whole, _ := pausedTopics(all); !whole || !isPaused(all, "c") {
		t.Fatalf("%+v", all)
	}
	_, err = withoutPause(all, "a")
	wantCode(t, err, api.CodeGroupConfig)
	if all, err = withoutPause(all, ""); err != nil || all.Paused != "" {
		t.Fatalf("%+v %v", all, err)
	}
}

// A pause holds on all sidecars, also for pulls that wait already; what is out
// is acknowledged; nothing moves; and it outlives a restart.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	// The others learn of it by their planner, not by looking again.
	slow := func(c *Config) { c.Recheck = 5 * time.Minute }
	l := newLab(t, map[string]int32{"views": 2, "other": 1})
	a, b := l.host("a", slow), l.host("b", slow)
	req := PullRequest{Group: "g", Topic: "views"}
	a.pull(req)
	eventually(t, "a has all", func() bool { return len(a.partitions("g", "views")) == 2 })
	b.pull(req)
	eventually(t, "one each", func() bool { return len(a.partitions("g", "views")) == 1 && len(b.partitions("g", "views")) == 1 })
	for p := range int32(2) {
		l.produce("views", p, 0, 3)
	}
	out := b.pullSome(PullRequest{Group: "g", Topic: "views", Max: 1, Lease: time.Minute})
	_, err := a.m.Pause(t.Context(), "nobody", "")
	wantCode(t, err, api.CodeGroupNotFound)
	g, err := a.m.Pause(t.Context(), "g", "")
	if err != nil || !g.Paused {
		t.Fatalf("%+v %v", g, err)
	}
	paused := func(h *host, req PullRequest) bool {
		d := h.pull(req)
		if len(d.Messages) > 0 {
			h.ackAll("g", req.Topic, d)
			return false
		}
		return *d.Reason == api.ReasonPaused
	}
	if !paused(a, req) {
		t.Fatal("not paused where it was asked for")
	}
	b.ackAll("g", "views", out)
	eventually(t, "paused on the other", func() bool { return paused(b, req) })
	before, err := a.m.Offsets(t.Context(), "g", "views")
	if err != nil || !before.Paused {
		t.Fatalf("%+v %v", before, err)
	}
	// A pull that waits is woken when it is resumed.
	got := make(chan *Delivery, 1)
	go func() {
		d, err := a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "views", Wait: deadline})
		if err != nil {
			t.Error(err)
		}
		got <- d
	}()
	time.Sleep(50 * time.Millisecond)
	if g, err = b.m.Resume(t.Context(), "g", ""); err != nil || g.Paused {
		t.Fatalf("%+v %v", g, err)
	}
	if d := <-got; d == nil || len(d.Messages) != 3 {
		t.Fatalf("the waiting pull got %+v", d)
	} else {
		a.ackAll("g", "views", d)
	}
	// One topic of two, which stays so for a sidecar that comes later.
	if g, err = b.m.Pause(t.Context(), "g", "views"); err != nil || g.Paused || !slices.Equal(g.PausedTopics, []string{"views"}) {
		t.Fatalf("%+v %v", g, err)
	}
	l.produce("other", 0, 0, 1)
	b.ackAll("g", "other", b.pullSome(PullRequest{Group: "g", Topic: "other"}))
	a.close()
	b.close()
	c := l.host("c")
	c.pull(req)
	eventually(t, "c has all, and is paused", func() bool { return len(c.partitions("g", "views")) == 2 && paused(c, req) })
	if _, err := c.m.Resume(t.Context(), "g", "views"); err != nil {
		t.Fatal(err)
	}
	l.produce("views", 0, 3, 1)
	if d := c.pullSome(req); slices.ContainsFunc(d.Messages, func(m api.Message) bool { return m.ID == out.Messages[0].ID }) {
		t.Fatalf("acknowledged during the pause and delivered again: %s", offsetsOf(d.Messages))
	}
}

// A stream stands still while its group is paused, and goes on by itself.
func TestPauseOfAStream(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	h := l.host("a")
	l.produce("views", 0, 0, 1)
	st := h.stream(StreamRequest{Group: "g", Topic: "views", Window: 10})
	defer st.Close(1 << 62)
	b := nextSome(t, st)
	if _, err := h.m.Pause(t.Context(), "g", ""); err != nil {
		t.Fatal(err)
	}
	h.ack("g", "views", receiptsIn(b)...)
	l.produce("views", 0, 1, 1)
	nothing(t, st, api.ReasonPaused)
	if _, err := h.m.Resume(t.Context(), "g", ""); err != nil {
		t.Fatal(err)
	}
	if got := offsetsOf(nextSome(t, st).Messages); got != "[1]" {
		t.Errorf("after the resume %s", got)
	}
}

// Of several topics the ones that are not paused go on; only when all are is
// that the reason.
func TestPauseOfOneTopicOfSeveral(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders.eu": 1, "orders.us": 1})
	h := l.host("a")
	req := PullRequest{Group: "g", Topic: "orders.*"}
	h.pull(req)
	eventually(t, "both owned", func() bool {
		return len(h.partitions("g", "orders.eu")) == 1 && len(h.partitions("g", "orders.us")) == 1
	})
	if _, err := h.m.Pause(t.Context(), "g", "orders.us"); err != nil {
		t.Fatal(err)
	}
	l.produce("orders.eu", 0, 0, 2)
	l.produce("orders.us", 0, 0, 2)
	for n := 0; n < 2; {
		d := h.pullSome(req)
		for _, m := range d.Messages {
			if m.Topic != "orders.eu" {
				t.Fatalf("delivered %s of a paused topic", m.ID)
			}
		}
		n += len(d.Messages)
		if r, err := h.m.Ack(t.Context(), "g", "orders.*", api.Receipts{Receipts: receiptsOf(d)}); err != nil || r.Failed > 0 {
			t.Fatalf("%+v %v", r, err)
		}
	}
	if _, err := h.m.Pause(t.Context(), "g", "orders.eu"); err != nil {
		t.Fatal(err)
	}
	if d := h.pull(req); len(d.Messages) > 0 || *d.Reason != api.ReasonPaused {
		t.Errorf("%+v", d)
	}
	if _, err := h.m.Resume(t.Context(), "g", ""); err != nil {
		t.Fatal(err)
	}
	if d := h.pullSome(req); d.Messages[0].Topic != "orders.us" {
		t.Errorf("%+v", d)
	}
}
