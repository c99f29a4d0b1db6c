package consume

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sidestream/discovery"
	"sidestream/sidecar/consume/plan"
)

// The history is the same on every sidecar, shows each move once with both ends
// and its cause, and outlives those who made it.
func TestHistoryOutlivesTheSidecars(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 4})
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "g", Topic: "views"}
	a.pull(req)
	eventually(t, "a has all", func() bool { return len(a.partitions("g", "views")) == 4 })
	b.pull(req)
	eventually(t, "two each", func() bool { return len(a.partitions("g", "views")) == 2 && len(b.partitions("g", "views")) == 2 })
	read := func(h *host) string {
		g, err := h.m.Group(t.Context(), "g")
		if err != nil {
			t.Fatal(err)
		}
		var lines []string
		for _, m := range g.History {
			lines = append(lines, fmt.Sprintf("%d %s/%d %q to %q: %s", m.Plan, m.Topic, m.Partition, m.From, m.To, m.Cause))
		}
		return strings.Join(lines, "\n")
	}
	first := read(a)
	if first != read(b) {
		t.Fatalf("a shows\n%s\nb shows\n%s", first, read(b))
	}
	for p := range 4 {
		if n := strings.Count(first, fmt.Sprintf("1 views/%d \"\" to \"a\": a joined", p)); n != 1 {
			t.Errorf("the first move of %d is there %d times:\n%s", p, n, first)
		}
	}
	for _, p := range b.partitions("g", "views") {
		if n := strings.Count(first, fmt.Sprintf(" views/%d \"a\" to \"b\": b joined", p)); n != 1 {
			t.Errorf("the move of %d to b is there %d times:\n%s", p, n, first)
		}
	}
	// All of them end: what follows is told by others, under higher numbers.
	b.close()
	a.close()
	c := l.host("c")
	c.pull(req)
	eventually(t, "c has all", func() bool { return len(c.partitions("g", "views")) == 4 })
	last := read(c)
	if !strings.HasPrefix(last, first) || !strings.Contains(last, "\"b\" to \"a\": b left") || !strings.Contains(last, "to \"c\": c joined") {
		t.Errorf("after all restarted:\n%s", last)
	}
	g, _ := c.m.Group(t.Context(), "g")
	for i := 1; i < len(g.History); i++ {
		if g.History[i].Plan < g.History[i-1].Plan {
			t.Errorf("plan %d follows %d:\n%s", g.History[i].Plan, g.History[i-1].Plan, last)
		}
	}
}

func TestHistoryIsBounded(t *testing.T) {
	t.Parallel()
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 300).Draw(t, "most")
		h := discovery.History{}
		for n := range rapid.IntRange(1, 40).Draw(t, "plans") {
			p := discovery.HistoryPlan{Plan: uint64(n + 1), At: time.Unix(int64(n), 0).UTC(), Planner: "p", Cause: strings.Repeat("x", rapid.IntRange(0, 300).Draw(t, "cause"))}
			want := 0
			for i := range rapid.IntRange(1, 8).Draw(t, "ways") {
				mv := discovery.HistoryMove{Topic: "t", From: "a", To: fmt.Sprint("b", i)}
				for q := range rapid.IntRange(1, 2000).Draw(t, "partitions") {
					mv.Partitions = append(mv.Partitions, int32(q))
				}
				want += len(mv.Partitions)
				p.Moves = append(p.Moves, mv)
			}
			before := h
			h = withPlan(h, p, most)
			newest := h.Plans[len(h.Plans)-1]
			if newest.Plan != p.Plan || newest.Cause != p.Cause || movesOf(newest)+newest.Omitted != want {
				t.Fatalf("the newest plan is %+v", newest)
			}
			moves := 0
			for i, q := range h.Plans {
				moves += movesOf(q)
				if i > 0 && q.Plan != h.Plans[i-1].Plan+1 {
					t.Fatalf("plan %d follows %d", q.Plan, h.Plans[i-1].Plan)
				}
			}
			if moves > most || len(discovery.Encode(h)) > maxHistoryBytes+1024 {
				t.Fatalf("%d moves (most %d), %d bytes", moves, most, len(discovery.Encode(h)))
			}
			if len(before.Plans) > 0 && len(h.Plans) == 1 && movesOf(before.Plans[len(before.Plans)-1])+movesOf(newest)+2 < most &&
				len(discovery.Encode(before.Plans[len(before.Plans)-1]))+len(discovery.Encode(newest)) < maxHistoryBytes-16 {
				t.Fatalf("the plan before was dropped although there is room")
			}
		}
	})
}

func TestHistoryMoves(t *testing.T) {
	tp := func(p int32) plan.TopicPartition { return plan.TopicPartition{Topic: "t", Partition: p} }
	got := historyMoves([]plan.Move{
		{TopicPartition: tp(3), From: "a", To: "b"}, {TopicPartition: tp(1), From: "a", To: "b"}, {TopicPartition: tp(2), To: "b"},
	})
	want := []discovery.HistoryMove{
		{Topic: "t", To: "b", Partitions: []int32{2}}, {Topic: "t", From: "a", To: "b", Partitions: []int32{1, 3}},
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("%+v", got)
	}
	// One that is too large is kept as a number.
	h := withPlan(discovery.History{}, discovery.HistoryPlan{Plan: 7, Cause: "c", Moves: want}, 2)
	if shown := showHistory(h); len(shown) != 1 || shown[0].Omitted != 3 || shown[0].Plan != 7 || shown[0].Cause != "c" {
		t.Fatalf("%+v", shown)
	}
}
