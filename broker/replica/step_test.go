package replica

import (
	"reflect"
	"testing"
	"time"
)

// one is a leader of three in epoch 1 with records of it up to 10, synced.
func leaderOfThree(t *testing.T) *State {
	t.Helper()
	s := New(1, "a", Config{MinISR: 2, Lag: 10 * time.Second, Retry: time.Second}, Durable{Promised: NoEpoch, Noted: NoEpoch}, 0, 0, nil, 0)
	s.Step(0, Told{Slot: slotOfThree(), Folders: []string{"a", "b", "c"}, Fit: All(3)}, nil)
	s.Step(0, Appended{10}, nil)
	s.Step(0, SyncedTo{10}, nil)
	return s
}

func slotOfThree() Slot {
	return Slot{Leader: 1, Epoch: 1, Version: 4, Replicas: []Broker{1, 2, 3}, ISR: All(3)}
}

func reportOf(from Broker, folder string, synced int64) Report {
	return Report{From: from, Folder: folder, Epoch: 1, Stream: 7, Open: true, End: synced, LastEpoch: 1, Synced: synced, Noted: 1}
}

func TestTheHighWatermarkIsTheLeastSyncedEnd(t *testing.T) {
	s := leaderOfThree(t)
	for _, c := range []struct {
		report Report
		want   int64
	}{
		{reportOf(2, "b", 8), 0}, // 3 has not reported in this epoch
		{reportOf(3, "c", 6), 6},
		{reportOf(3, "c", 9), 8},
		{reportOf(2, "b", 10), 9},
	} {
		s.Step(0, c.report, nil)
		if s.HW != c.want {
			t.Errorf("after %+v: high watermark %d, want %d", c.report, s.HW, c.want)
		}
	}
}

func TestWhoHasNotNotedTheEpochDoesNotCount(t *testing.T) {
	s := leaderOfThree(t)
	s.Step(0, reportOf(2, "b", 10), nil)
	late := reportOf(3, "c", 10)
	late.Noted = 0
	s.Step(0, late, nil)
	if s.HW != 0 {
		t.Errorf("high watermark %d by a report of who has not noted the epoch", s.HW)
	}
}

// Each must be refused, and change nothing.
func TestReportsThatAreRefused(t *testing.T) {
	for name, change := range map[string]func(*Report){
		"of another epoch":        func(r *Report) { r.Epoch = 0 },
		"of another folder":       func(r *Report) { r.Folder = "z" },
		"of no replica":           func(r *Report) { r.From = 9 },
		"of itself":               func(r *Report) { r.From = 1 },
		"on a stream that is not": func(r *Report) { r.Open, r.Stream = false, 99 },
	} {
		s := leaderOfThree(t)
		r := reportOf(2, "b", 10)
		change(&r)
		before := *s
		got := s.Step(0, r, nil)
		if want := []Effect{Refuse{r.From, r.Stream}}; !reflect.DeepEqual(got, want) {
			t.Errorf("%s: %+v, want %+v", name, got, want)
		}
		if s.HW != before.HW || s.Pending != nil {
			t.Errorf("%s: it counted", name)
		}
	}
}

func TestWhereLogsPart(t *testing.T) {
	// The leader's log: epoch 1 from 0, epoch 3 from 5, up to 10.
	leader := &State{Self: 1, Start: 2, End: 10, Epochs: []Epoch{{1, 2}, {3, 5}}}
	for _, c := range []struct {
		name       string
		start, end int64
		last       int32
		want       Diverging
		differs    bool
	}{
		{"the same", 0, 10, 3, Diverging{}, false},
		{"behind, in the newest epoch", 0, 7, 3, Diverging{}, false},
		{"behind, in an older one", 0, 4, 1, Diverging{}, false},
		{"further in an older epoch", 0, 8, 1, Diverging{At: 1, End: 5}, true},
		{"an epoch that the leader does not have", 0, 8, 2, Diverging{At: 1, End: 5}, true},
		{"a newer epoch", 0, 12, 4, Diverging{At: 3, End: 10}, true},
		{"longer", 0, 12, 3, Diverging{At: 3, End: 10}, true},
		{"before the leader's start", 0, 1, 1, Diverging{At: NoEpoch, End: 2, Reset: true}, true},
		{"older than anything here", 0, 4, 0, Diverging{At: NoEpoch, End: 2, Reset: true}, true},
		{"empty", 2, 2, NoEpoch, Diverging{}, false},
		{"emptied further up", 6, 6, NoEpoch, Diverging{}, false},
	} {
		got, differs := leader.differs(Report{Start: c.start, End: c.end, LastEpoch: c.last})
		if differs != c.differs || differs && (got.At != c.want.At || got.End != c.want.End || got.Reset != c.want.Reset) {
			t.Errorf("%s: %+v %v, want %+v %v", c.name, got, differs, c.want, c.differs)
		}
	}
}

// A shrink counts once it is written, a growth from the moment in which it is
// asked for, and only a newer version of the slot settles either.
func TestWhatIsAskedForAndNotSettled(t *testing.T) {
	s := leaderOfThree(t)
	s.Step(0, reportOf(2, "b", 10), nil)
	s.Step(0, reportOf(3, "c", 6), nil)
	effects := s.Step(0, Gone{3}, nil)
	if len(effects) != 1 || effects[0].(Ask).Change.ISR != SetOf(0, 1) {
		t.Fatalf("%+v", effects)
	}
	if s.HW != 6 {
		t.Errorf("high watermark %d before the shrink was written", s.HW)
	}
	same := Told{Slot: slotOfThree(), Folders: []string{"a", "b", "c"}, Fit: All(3)}
	s.Step(0, same, nil)
	if s.Pending == nil {
		t.Error("a slot of the same version settled it")
	}
	if again := s.Step(2*time.Second, Tick{}, nil); len(again) != 1 {
		t.Errorf("it was not asked for again: %+v", again)
	}
	newer := same
	newer.Slot.Version, newer.Slot.ISR = 5, SetOf(0, 1)
	s.Step(0, newer, nil)
	if s.Pending != nil || s.HW != 10 {
		t.Errorf("after it was written: pending %+v, high watermark %d", s.Pending, s.HW)
	}

	back := reportOf(3, "c", 10)
	if grown := s.Step(0, back, nil); len(grown) != 2 || grown[1].(Ask).Change.ISR != All(3) {
		t.Fatalf("%+v", grown)
	}
	s.Step(0, Appended{12}, nil)
	s.Step(0, SyncedTo{12}, nil)
	ack := reportOf(2, "b", 12)
	s.Step(0, ack, nil)
	if s.HW != 10 {
		t.Errorf("high watermark %d without the member that is being taken in", s.HW)
	}
}

// A folder under a known id that is another one has reported nothing.
func TestReportsOfAReplacedFolderAreForgotten(t *testing.T) {
	s := leaderOfThree(t)
	s.Step(0, reportOf(2, "b", 10), nil)
	s.Step(0, reportOf(3, "c", 4), nil)
	s.Step(0, Told{Slot: slotOfThree(), Folders: []string{"a", "b2", "c"}, Fit: All(3)}, nil)
	s.Step(0, reportOf(3, "c", 10), nil)
	if s.HW != 4 {
		t.Errorf("high watermark %d by what another folder had reported", s.HW)
	}
}

func TestOldNewsAreIgnored(t *testing.T) {
	s := leaderOfThree(t)
	for name, told := range map[string]Slot{
		"an older epoch":      {Leader: 2, Epoch: 0, Version: 9, Replicas: []Broker{1, 2, 3}, ISR: All(3)},
		"an older version":    {Leader: 1, Epoch: 1, Version: 3, Replicas: []Broker{1, 2, 3}, ISR: SetOf(0)},
		"no leader, no epoch": {Leader: NoBroker, Epoch: 1, Version: 5, Replicas: []Broker{1, 2, 3}, ISR: All(3)},
	} {
		if effects := s.Step(0, Told{Slot: told, Folders: []string{"a", "b", "c"}, Fit: All(3)}, nil); len(effects) != 0 || s.Role != Leader || s.Slot.Version != 4 {
			t.Errorf("%s: %+v, now %+v", name, effects, s.Slot)
		}
	}
	s.Generation = 2
	newer := Slot{Generation: 1, Leader: 2, Epoch: 5, Version: 9, Replicas: []Broker{1, 2, 3}, ISR: All(3)}
	if effects := s.Step(0, Told{Slot: newer, Folders: []string{"a", "b", "c"}, Fit: All(3)}, nil); len(effects) != 0 {
		t.Errorf("an older generation: %+v", effects)
	}
}

// What has to be kept is written before anything follows from it.
func TestPromisesComeFirst(t *testing.T) {
	s := New(2, "b", Config{MinISR: 2, Retry: time.Second}, Durable{Promised: NoEpoch, Noted: NoEpoch}, 0, 0, nil, 0)
	effects := s.Step(0, Told{Slot: slotOfThree(), Folders: []string{"a", "b", "c"}, Fit: All(3)}, nil)
	if len(effects) != 2 {
		t.Fatalf("%+v", effects)
	}
	if p, ok := effects[0].(Persist); !ok || p.Promised != 1 || p.Noted != NoEpoch {
		t.Errorf("first %+v", effects[0])
	}
	if _, ok := effects[1].(Open); !ok {
		t.Errorf("then %+v", effects[1])
	}
}

func TestALeaderThatIsCutOffKnowsWhetherItLeads(t *testing.T) {
	s := leaderOfThree(t)
	now := time.Minute
	if !s.Knows(now, true) {
		t.Error("a proven leader does not know it")
	}
	if s.Knows(now, false) {
		t.Error("without a session and without reports it says that it leads")
	}
	s.Step(now, reportOf(2, "b", 10), nil)
	if !s.Knows(now+2*time.Second, false) {
		t.Error("with a majority of its ISR behind it, it does not")
	}
	if s.Knows(now+4*time.Second, false) {
		t.Error("reports do not grow old")
	}
}

func TestReadableAfterAnElection(t *testing.T) {
	s := New(1, "a", Config{MinISR: 2, Retry: time.Second}, Durable{Promised: 0, Noted: 0}, 0, 10, []Epoch{{0, 0}}, 0)
	s.Step(0, Told{Slot: slotOfThree(), Folders: []string{"a", "b", "c"}, Fit: All(3)}, nil)
	if _, ok := s.Readable(); ok {
		t.Error("a new leader shows an end that it does not know")
	}
	for i, b := range []Broker{2, 3} {
		r := reportOf(b, string(rune('b'+i)), 10)
		r.LastEpoch = 0
		s.Step(0, r, nil)
	}
	if end, ok := s.Readable(); !ok || end != 10 {
		t.Errorf("readable to %d, %v", end, ok)
	}
}
