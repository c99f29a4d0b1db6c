package sdk

import (
	"fmt"
	"maps"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sidestream/sdk/api"
)

// check holds what is true of lanes at all times.
func (l *lanes) check(t *rapid.T) {
	available, waits := 0, 0
	for id, ln := range l.lanes {
		if ln.id != id {
			t.Fatalf("lane %v under %v", ln.id, id)
		}
		if may := ln.running == 0 && len(ln.returning) == 0 && len(ln.waiting) > 0; may != ln.ready {
			t.Fatalf("lane %+v: may go on: %v", ln, may)
		}
		if len(ln.waiting)+ln.running+len(ln.returning) == 0 {
			t.Fatalf("lane %v is empty", id)
		}
		if ln.ready {
			available += len(ln.waiting)
			if !slices.Contains(l.ready, ln) {
				t.Fatalf("lane %v is ready and not in the list", id)
			}
		}
		for i, h := range ln.waiting {
			waits++
			if h.state != waiting || h.lane != ln || l.held[h.message.ID] != h || i > 0 && ln.waiting[i-1].message.Offset >= h.message.Offset {
				t.Fatalf("lane %v: %+v waits at %d", id, h, i)
			}
		}
	}
	if available != l.available {
		t.Fatalf("%d are available, counted %d", available, l.available)
	}
	running := map[laneID]int{}
	for id, h := range l.held {
		switch {
		case h.message.ID != id:
			t.Fatalf("%s under %s", h.message.ID, id)
		case h.state == waiting:
			waits--
		case h.state == running0:
			running[h.lane.id]++
		}
	}
	if waits != 0 {
		t.Fatalf("%d more wait in lanes than are held", waits)
	}
	for id, n := range running {
		if l.lanes[id] == nil || l.lanes[id].running != n {
			t.Fatalf("%d of lane %v run, and it says otherwise", n, id)
		}
	}
}

// running0 is the state, where a variable has its name.
const running0 = running

// TestPropertyLanes: whatever is delivered, handled, lost and given back, a
// message is in one handler at most, no lane goes on beside a handler or while
// some of it is on its way back, and in the end all is handled.
func TestPropertyLanes(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := newLanes()
		l.order = rapid.SampledFrom([]string{orderPartition, orderKey, orderNone, ""}).Draw(t, "order")
		now := time.Unix(1000, 0)
		receipt := 0
		deliver := func(partition, offset, attempt int, lease time.Duration) {
			receipt++
			m := api.Message{ID: fmt.Sprint(partition, "/", offset), Topic: "t", Partition: int32(partition), Offset: int64(offset),
				Attempt: attempt, Receipt: fmt.Sprint("r", receipt), LeaseUntil: new(now.Add(lease))}
			switch offset % 3 {
			case 0:
				m.Key = new("a")
			case 1:
				m.Key64 = new("a")
			}
			l.add(m, now)
		}
		in := func(s state) (hs []*held) {
			for _, id := range slices.Sorted(maps.Keys(l.held)) {
				if h := l.held[id]; h.state == s {
					hs = append(hs, h)
				}
			}
			return hs
		}
		one := func(s state) *held {
			hs := in(s)
			if len(hs) == 0 {
				return nil
			}
			return rapid.SampledFrom(hs).Draw(t, "held")
		}
		take := func(n int) []*held {
			before := map[laneID]int{}
			for id, ln := range l.lanes {
				before[id] = ln.running + len(ln.returning)
			}
			taken, expired := l.take(n, now)
			for i, h := range taken {
				if h.lease > 0 && now.After(h.until) || before[h.lane.id] > 0 || h.state != running {
					t.Fatalf("%+v was taken, of a lane with %d at work", h, before[h.lane.id])
				}
				if i > 0 && taken[i-1].lane == h.lane && taken[i-1].message.Offset >= h.message.Offset {
					t.Fatalf("%s was taken after %s", h.message.ID, taken[i-1].message.ID)
				}
			}
			if len(taken) > n || n > 0 && len(taken) == 0 && len(expired) == 0 && l.available > 0 {
				t.Fatalf("%d of %d taken, %d are available", len(taken), n, l.available)
			}
			return taken
		}
		for range rapid.IntRange(1, 80).Draw(t, "steps") {
			switch rapid.SampledFrom([]string{"deliver", "deliver", "deliver", "take", "take", "handled", "failed", "lose", "settled", "unacked", "returned", "wait", "give up"}).Draw(t, "do") {
			case "deliver":
				deliver(rapid.IntRange(0, 1).Draw(t, "partition"), rapid.IntRange(0, 9).Draw(t, "offset"),
					rapid.IntRange(1, 2).Draw(t, "attempt"), time.Duration(rapid.IntRange(1, 30).Draw(t, "lease"))*time.Second)
			case "take":
				take(rapid.IntRange(0, 4).Draw(t, "n"))
			case "handled":
				if h := one(running); h != nil {
					l.handled(h)
				}
			case "failed":
				if h := one(running); h != nil {
					for _, d := range l.failed(h) {
						if d.lane != h.lane || d.state != returning {
							t.Fatalf("%s failed, and %+v goes back", h.message.ID, d)
						}
					}
				}
			case "lose":
				if h := one(waiting); h != nil {
					l.lose(h, h.message.Receipt)
				}
				if h := one(running); h != nil {
					l.lose(h, h.message.Receipt)
				}
			case "settled":
				if h := one(acking); h != nil {
					l.settled(h)
				}
			case "unacked":
				if h := one(acking); h != nil && l.unacked(h) && h.again != nil {
					t.Fatalf("%+v is acknowledged under which lease?", h)
				}
			case "returned":
				if h := one(returning); h != nil {
					l.returned(h)
				}
			case "wait":
				now = now.Add(time.Duration(rapid.IntRange(1, 20).Draw(t, "seconds")) * time.Second)
			case "give up":
				if rapid.IntRange(0, 5).Draw(t, "rarely") == 0 {
					l.giveUp()
				}
			}
			l.check(t)
		}
		for rounds := 0; len(l.held) > 0; rounds++ {
			if rounds > 100 {
				t.Fatalf("no end: %+v", l)
			}
			take(10)
			for _, h := range in(running) {
				l.handled(h)
			}
			for _, h := range in(acking) {
				l.settled(h)
			}
			for _, h := range in(returning) {
				l.returned(h) // once more in the next round, where that is asked for
			}
			l.check(t)
		}
		if len(l.lanes) > 0 || l.available != 0 {
			t.Fatalf("left: %+v", l)
		}
	})
}

// What is delivered once more, by what is going on with it.
func TestDeliveredOnceMore(t *testing.T) {
	now := time.Unix(1000, 0)
	message := func(attempt int, receipt string) api.Message {
		return api.Message{ID: "t/0/0", Topic: "t", Attempt: attempt, Receipt: receipt, LeaseUntil: new(now.Add(time.Minute))}
	}
	for name, c := range map[string]struct {
		before  func(l *lanes, h *held)
		attempt int
		receipt string // that counts now
		again   bool
		repeat  bool // the ack that was refused is said again
	}{
		"waiting":             {func(*lanes, *held) {}, 2, "new", false, false},
		"in a handler":        {func(l *lanes, _ *held) { l.take(1, now) }, 2, "new", false, false},
		"in a handler, anew":  {func(l *lanes, _ *held) { l.take(1, now) }, 1, "old", true, false},
		"being acknowledged":  {func(l *lanes, h *held) { l.take(1, now); l.handled(h) }, 2, "old", true, true},
		"acknowledged, anew":  {func(l *lanes, h *held) { l.take(1, now); l.handled(h) }, 1, "old", true, false},
		"being given back":    {func(l *lanes, h *held) { l.take(1, now); l.failed(h) }, 2, "old", true, false},
		"anew, and once more": {func(l *lanes, _ *held) { l.take(1, now); l.add(message(1, "other"), now) }, 2, "old", true, false},
	} {
		t.Run(name, func(t *testing.T) {
			l := newLanes()
			l.add(message(1, "old"), now)
			h := l.held["t/0/0"]
			c.before(&l, h)
			l.add(message(c.attempt, "new"), now)
			if h.message.Receipt != c.receipt || (h.again != nil) != c.again {
				t.Fatalf("%+v", h)
			}
			if c.again && !slices.Equal(h.receipts(), []string{"new"}) {
				t.Errorf("extends %v", h.receipts())
			}
			if h.state == running {
				l.handled(h)
			}
			if h.state == acking {
				if repeat := l.unacked(h); repeat != c.repeat || repeat && h.message.Receipt != "new" || !repeat && c.again && h.state != waiting {
					t.Errorf("repeat %v, %+v", repeat, h)
				}
			}
		})
	}
}

// What has come again while it was on its way back goes back once more when a
// message before it fails: it comes again after that.
func TestRecalled(t *testing.T) {
	now := time.Unix(1000, 0)
	l := newLanes()
	deliver := func(offset int64, attempt int, receipt string) *held {
		id := fmt.Sprint("t/0/", offset)
		l.add(api.Message{ID: id, Topic: "t", Offset: offset, Attempt: attempt, Receipt: receipt}, now)
		return l.held[id]
	}
	three, six := deliver(3, 1, "3a"), deliver(6, 1, "6a")
	l.take(1, now)
	if dropped := l.longest(); !slices.Equal(dropped, []*held{six}) {
		t.Fatalf("%+v", dropped)
	}
	deliver(3, 2, "3b") // under a new lease
	deliver(6, 2, "6b")
	l.failed(three)
	l.returned(three)
	if !l.returned(six) || six.message.Receipt != "6b" || l.available != 0 {
		t.Fatalf("%+v, %d available", six, l.available)
	}
	if l.returned(six) || len(l.held) != 0 || len(l.lanes) != 0 {
		t.Fatalf("%+v", l)
	}
	// Unless it has come yet again.
	three, six = deliver(3, 3, "3c"), deliver(6, 3, "6c")
	l.take(1, now)
	l.longest()
	deliver(6, 4, "6d")
	l.failed(three)
	deliver(3, 4, "3e")
	deliver(6, 5, "6e")
	if l.returned(six) || l.returned(three) || l.available != 2 {
		t.Fatalf("%+v", l)
	}
	if taken, _ := l.take(2, now); taken[0] != three || taken[1] != six {
		t.Fatalf("%+v", taken)
	}
}
