package consume

import (
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// sweeper is a keeper whose clock is the test's.
type sweeper struct {
	t   *testing.T
	k   *keeper
	now time.Time
}

func newSweeper(h *host) *sweeper {
	return &sweeper{t: h.lab.t, k: newKeeper(h.m, time.Minute), now: time.Now()}
}

// after sweeps for so long, once a minute if nothing else was set.
func (s *sweeper) after(d time.Duration) {
	s.t.Helper()
	for end := s.now.Add(d); s.now.Before(end); {
		s.now = s.now.Add(s.k.every)
		if err := s.k.sweep(s.t.Context(), s.now); err != nil {
			s.t.Fatal(err)
		}
	}
}

func (h *host) groups() []string {
	h.lab.t.Helper()
	l, err := h.m.Groups(h.lab.t.Context())
	if err != nil {
		h.lab.t.Fatal(err)
	}
	return l.Groups
}

// idleGroup makes a group that has consumed a message and has no member any more.
func (h *host) idleGroup(name, topic string, c api.GroupConfig) {
	h.lab.t.Helper()
	if _, err := h.m.Configure(h.lab.t.Context(), name, c); err != nil {
		h.lab.t.Fatal(err)
	}
	h.ackAll(name, topic, h.pullSome(PullRequest{Group: name, Topic: topic}))
	h.leave(name)
}

// noSweeps keeps the host's own keeper from looking.
func noSweeps(c *Config) { c.GroupSweep = time.Hour }

func TestIdleGroupsAreRemoved(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 3)
	a := l.host("a", noSweeps, func(c *Config) { c.IdleAfter = time.Hour })
	yes := true
	a.idleGroup("steady", "views", api.GroupConfig{})
	a.idleGroup("brief", "views", api.GroupConfig{Ephemeral: &yes})
	if _, err := a.m.Configure(t.Context(), "planned", api.GroupConfig{Lease: "1m"}); err != nil {
		t.Fatal(err)
	}
	used := PullRequest{Group: "used", Topic: "views"}
	a.ackAll("used", "views", a.pullSome(used))

	s := newSweeper(a)
	s.after(9 * time.Minute)
	if got := a.groups(); !slices.Equal(got, []string{"brief", "planned", "steady", "used"}) {
		t.Fatalf("after 9 minutes: %v", got)
	}
	s.after(4 * time.Minute)
	if got := a.groups(); !slices.Equal(got, []string{"planned", "steady", "used"}) {
		t.Fatalf("after 13 minutes: %v", got)
	}
	// Another keeper goes on where this one wrote last.
	s.after(40 * time.Minute)
	s.k.seen = map[string]sighting{}
	s.after(4 * time.Minute)
	if got := a.groups(); !slices.Equal(got, []string{"planned", "steady", "used"}) {
		t.Fatalf("after 57 minutes: %v", got)
	}
	s.after(10 * time.Minute)
	if got := a.groups(); !slices.Equal(got, []string{"used"}) {
		t.Fatalf("after 67 minutes: %v", got)
	}
	if n := a.counter("sidestream_consume_groups_removed_total"); n != 3 {
		t.Errorf("%v groups counted as removed", n)
	}
	// A new group of the name begins at its beginning, with default settings.
	d := a.pullSome(PullRequest{Group: "steady", Topic: "views"})
	if got := offsetsOf(d.Messages); got != "[0 1 2]" {
		t.Errorf("a new group of the name begins with %s", got)
	}
	// What is left of the others is forgotten at last.
	s.k.every = 6 * time.Hour
	s.after(31 * 24 * time.Hour)
	es, err := l.store.List(t.Context(), discovery.PrefixGroups)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range es {
		if !strings.HasPrefix(e.Key, "groups/steady/") && !strings.HasPrefix(e.Key, "groups/used/") {
			t.Errorf("left: %s", e.Key)
		}
	}
}

// A clock that jumps removes nothing, and whoever pulls starts the count anew.
func TestIdleIsCountedNotReadFromAClock(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 1)
	a := l.host("a", noSweeps, func(c *Config) { c.IdleAfter = time.Hour })
	a.idleGroup("g", "views", api.GroupConfig{})
	s := newSweeper(a)
	s.after(30 * time.Minute)
	s.now = s.now.Add(30 * 24 * time.Hour) // the host slept, or its clock was set
	s.after(time.Minute)
	if got := a.groups(); len(got) != 1 {
		t.Fatal("removed by a clock")
	}
	a.pull(PullRequest{Group: "g", Topic: "views"})
	eventually(t, "a member again", func() bool { _, ok := a.m.lookup("g").joined(); return ok })
	if _, err := l.store.Get(t.Context(), discovery.KeyIdle("g")); !isNotFound(err) {
		t.Fatalf("joined and still idle: %v", err)
	}
	s.after(2 * time.Hour)
	if got := a.groups(); len(got) != 1 {
		t.Fatal("removed with a member")
	}
	g := a.m.lookup("g")
	g.leaveNow()
	<-g.done
	s.after(55 * time.Minute)
	if got := a.groups(); len(got) != 1 {
		t.Fatal("the count went on where it was before the pull")
	}
	s.after(10 * time.Minute)
	if got := a.groups(); len(got) != 0 {
		t.Fatalf("%v is still there", got)
	}
}

// A member that comes between the look and the removal keeps its group whole.
func TestRemovalLosesAgainstAMember(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 2)
	a, b := l.host("a", noSweeps), l.host("b", noSweeps)
	a.idleGroup("g", "views", api.GroupConfig{Lease: "17s"})
	s := newSweeper(a)
	if err := s.k.sweep(t.Context(), s.now); err != nil {
		t.Fatal(err)
	}
	es, err := l.store.List(t.Context(), discovery.PrefixGroups+"g/")
	if err != nil {
		t.Fatal(err)
	}
	keys := readGroupKeys("g", es)
	idle, err := discovery.Decode[discovery.Idle](*keys.idle)
	if err != nil {
		t.Fatal(err)
	}
	b.pull(PullRequest{Group: "g", Topic: "views"})
	eventually(t, "a member", func() bool { return len(b.partitions("g", "views")) == 1 })
	if err := s.k.remove(t.Context(), keys, idle); err == nil {
		t.Fatal("removed under a member")
	}
	l.produce("views", 0, 2, 1)
	if got := offsetsOf(b.pullSome(PullRequest{Group: "g", Topic: "views"}).Messages); got != "[2]" {
		t.Errorf("delivered %s", got)
	}
	if g, err := b.m.Group(t.Context(), "g"); err != nil || g.Config.Lease != "17s" {
		t.Errorf("%+v %v", g, err)
	}
}

// A sidecar that was away while a group was removed neither skips with its old
// positions what the new group has not seen, nor keeps them for ever.
func TestRemovedWhileASidecarWasAway(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 5)
	a, b := l.host("a", noSweeps), l.host("b", noSweeps, func(c *Config) { c.EphemeralAfter = time.Minute })
	yes := true
	a.idleGroup("g", "views", api.GroupConfig{Ephemeral: &yes})
	a.idleGroup("h", "views", api.GroupConfig{Ephemeral: &yes})
	a.close()
	s := newSweeper(b)
	s.after(5 * time.Minute)
	if got := b.groups(); len(got) != 0 {
		t.Fatal(got)
	}
	a2 := l.hostIn("a", a.dir, noSweeps)
	if names, err := a2.local.Groups(); err != nil || !slices.Equal(names, []string{"g", "h"}) {
		t.Fatalf("on the disk of a: %v %v", names, err)
	}
	if got := offsetsOf(a2.pullSome(PullRequest{Group: "g", Topic: "views"}).Messages); got != "[0 1 2 3 4]" {
		t.Errorf("the new group is given %s", got)
	}
	if err := a2.m.tidyLocal(t.Context()); err != nil {
		t.Fatal(err)
	}
	if names, err := a2.local.Groups(); err != nil || slices.Contains(names, "h") {
		t.Errorf("on the disk of a: %v %v", names, err)
	}
}

// One sidecar of the cluster is the keeper, and another follows it.
func TestOneKeeper(t *testing.T) {
	t.Parallel()
	quick := func(c *Config) { c.GroupSweep, c.EphemeralAfter = 100*time.Millisecond, time.Second }
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 1)
	a, b := l.host("a", quick), l.host("b", quick)
	keeper := func() string {
		e, err := l.store.Get(t.Context(), discovery.KeyKeeper)
		if err != nil {
			return ""
		}
		k, _ := discovery.Decode[discovery.Keeper](e)
		return k.Sidecar
	}
	eventually(t, "a keeper", func() bool { return keeper() != "" })
	first, other := a, b
	if keeper() == "b" {
		first, other = b, a
	}
	first.close()
	eventually(t, "another keeper", func() bool { return keeper() == other.id })
	yes := true
	other.idleGroup("g", "views", api.GroupConfig{Ephemeral: &yes})
	eventually(t, "removed", func() bool { return len(other.groups()) == 0 })
}

func TestCeiling(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 3, "clicks": 2, "one": 1})
	l.produce("views", 0, 0, 1)
	a, b := l.host("a", noSweeps, func(c *Config) { c.MaxGroupPartitions = 6 }), l.host("b", noSweeps, func(c *Config) { c.MaxGroupPartitions = 6 })
	a.ackAll("first", "views", a.pullSome(PullRequest{Group: "first", Topic: "views"}))
	b.pull(PullRequest{Group: "first", Topic: "views"}) // counts once
	b.pull(PullRequest{Group: "second", Topic: "clicks"})
	count := func() int {
		n, _, err := a.m.readCensus(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	eventually(t, "five are counted", func() bool { return count() == 5 })
	_, err := a.m.Pull(t.Context(), PullRequest{Group: "third", Topic: "clicks"})
	wantCode(t, err, api.CodeGroupLimit)
	if slices.Contains(a.groups(), "third") {
		t.Error("a group was made that may not begin")
	}
	a.pull(PullRequest{Group: "third", Topic: "one"})
	eventually(t, "six are counted", func() bool { return count() == 6 })
	_, err = b.m.Pull(t.Context(), PullRequest{Group: "third", Topic: "views"})
	wantCode(t, err, api.CodeGroupLimit)
	// Those who are in go on.
	l.produce("views", 0, 1, 1)
	a.ackAll("first", "views", a.pullSome(PullRequest{Group: "first", Topic: "views"}))
	// A group less is room for another.
	b.leave("second")
	if err := a.m.DeleteGroup(t.Context(), "second"); err != nil {
		t.Fatal(err)
	}
	s := newSweeper(a)
	if err := s.k.sweep(t.Context(), s.now); err != nil {
		t.Fatal(err)
	}
	if n := count(); n != 4 {
		t.Errorf("%d are counted", n)
	}
	b.pull(PullRequest{Group: "fourth", Topic: "clicks"})
	eventually(t, "six are counted", func() bool { return count() == 6 })
}

// A removal of more topics than one commit takes is whole in the end, and its
// last commit is the one that removes.
func TestForgetOpsFitTheirCommits(t *testing.T) {
	for _, topics := range []int{0, 1, 40, 57, 58, 200} {
		g := readGroupKeys("g", []discovery.Entry{{Key: "groups/g/config", Version: 7}, {Key: "groups/g/planner"}, {Key: "groups/g/history"}})
		for i := range topics {
			g.begun[string(rune('a'+i%26))+string(rune('a'+i/26))] = 1
			g.kinds["begin/"], g.kinds["offsets/"], g.kinds["owners/"] = true, true, true
		}
		commits := g.forgetOps([]discovery.Op{discovery.Unchanged("groups/g/idle", 3)}, discovery.Set("groups/g/idle", nil))
		seeks := 0
		for i, ops := range commits {
			if len(ops) > discovery.MaxCommitOps || ops[0].Verb != discovery.VerbUnchanged {
				t.Errorf("%d topics: commit %d has %d operations, the first is %+v", topics, i, len(ops), ops[0])
			}
			for _, op := range ops {
				if op.Verb == discovery.VerbSet && strings.HasPrefix(op.Key, "groups/g/seek/") {
					seeks++
				}
				if op.Verb == discovery.VerbDeleteCAS && i != len(commits)-1 {
					t.Errorf("%d topics: the settings go before the last seek", topics)
				}
			}
		}
		if seeks != topics || g.partitions() != topics {
			t.Errorf("%d topics: %d seeks, %d partitions", topics, seeks, g.partitions())
		}
	}
}

// A group that nobody consumes any more has a lag all the same.
func TestLagOfIdleGroups(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	l.produce("views", 0, 0, 2)
	a, b := l.host("a", noSweeps), l.host("b", noSweeps)
	a.idleGroup("g", "views", api.GroupConfig{})
	l.produce("views", 1, 0, 3)
	const lag, seconds = "sidestream_consume_idle_lag_messages", "sidestream_consume_idle_lag_seconds"
	s := newSweeper(b)
	s.after(time.Minute)
	if n, age := b.gauge(lag), b.gauge(seconds); n != 3 || age <= 0 || age > 60 {
		t.Errorf("lag %v, %v s", n, age)
	}
	a.pull(PullRequest{Group: "g", Topic: "views"})
	eventually(t, "a member", func() bool { return len(a.partitions("g", "views")) == 2 })
	s.after(time.Minute)
	if n := b.gauge(lag); n != 0 {
		t.Errorf("a group with a member is told as idle, with a lag of %v", n)
	}
}

// A topic that a pattern matches and that goes beyond the ceiling is left out,
// and the others are consumed.
func TestCeilingOfAPattern(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders.a": 2, "orders.b": 3})
	a := l.host("a", noSweeps, func(c *Config) { c.MaxGroupPartitions = 4 })
	l.produce("orders.a", 0, 0, 1)
	l.produce("orders.b", 0, 0, 1)
	req := PullRequest{Group: "g", Topic: "orders.*"}
	d := a.pullSome(req)
	topic := d.Messages[0].Topic
	for range 3 {
		for _, m := range a.pull(PullRequest{Group: "g", Topic: "orders.*", Wait: 200 * time.Millisecond}).Messages {
			if m.Topic != topic {
				t.Errorf("%s is consumed beyond the ceiling", m.Topic)
			}
		}
	}
	if n, _, err := a.m.readCensus(t.Context()); err != nil || n > 4 {
		t.Errorf("%d are counted %v", n, err)
	}
}

// Somebody who makes a group anew, or changes its settings, still wants it.
func TestSettingsBeginTheIdleTimeAnew(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	a := l.host("a", noSweeps, func(c *Config) { c.IdleAfter = time.Hour })
	set := func() {
		t.Helper()
		// Two writes, as the same settings again are no change.
		for _, lease := range []string{"17s", "18s"} {
			if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{Lease: lease}); err != nil {
				t.Fatal(err)
			}
		}
	}
	here := func() bool { return slices.Equal(a.groups(), []string{"g"}) }
	s := newSweeper(a)
	set()
	s.after(50 * time.Minute)
	set()
	s.after(50 * time.Minute)
	if !here() {
		t.Fatal("removed after its settings were changed")
	}
	if err := a.m.DeleteGroup(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	s.after(5 * time.Hour)
	set()
	s.after(50 * time.Minute)
	if !here() {
		t.Fatal("made anew and removed for the time before")
	}
	s.after(20 * time.Minute)
	if here() {
		t.Fatal("not removed")
	}
}
