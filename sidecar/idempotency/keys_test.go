package idempotency

import (
	"context"
	"reflect"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

func quick(_ *publish.Message, o *publish.Options) { o.Timeout = 50 * time.Millisecond }

func TestARepeatGetsTheFirstAnswer(t *testing.T) {
	r := newRig(t, nil)
	first, again, err := r.post("k")
	if err != nil || again {
		t.Fatalf("%+v, %v, %v", first, again, err)
	}
	for name, before := range map[string]func(){"at once": func() {}, "after a stop": r.restart, "after a crash": func() { r.crash(1) }} {
		before()
		got, again, err := r.post("k")
		if err != nil || !again || got != first {
			t.Errorf("%s: %+v, replayed %v, %v; want %+v", name, got, again, err, first)
		}
	}
	if r.world.requests() != 1 || r.world.total() != 1 {
		t.Errorf("%d requests were passed on, %d records written; want one", r.world.requests(), r.world.total())
	}
	if _, again, err := r.post("k2"); err != nil || again || r.world.total() != 2 {
		t.Errorf("another key: replayed %v, %v", again, err)
	}
}

func TestWithoutAKeyNothingIsRemembered(t *testing.T) {
	r := newRig(t, nil)
	for range 2 {
		if _, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("v")}, publish.Options{Landed: func([]api.BatchResult) {}}); err != nil {
			t.Fatal(err)
		}
		if _, err := r.PublishBatch(t.Context(), "t", []publish.Message{{}}, publish.Options{Landed: func([]api.BatchResult) {}}); err != nil {
			t.Fatal(err)
		}
	}
	if n := r.world.copies()[""]; n != 4 || r.Status().Keys != 0 {
		t.Errorf("%d records without an id, %d keys; want 4 and none", n, r.Status().Keys)
	}
}

func TestAnotherRequestUnderTheKeyIsAConflict(t *testing.T) {
	r := newRig(t, nil)
	if _, _, err := r.post("k"); err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*publish.Message, *publish.Options){
		"value": func(m *publish.Message, _ *publish.Options) { m.Value = []byte("w") },
		"ack":   func(_ *publish.Message, o *publish.Options) { o.Ack = publish.AckLeader },
	} {
		if _, _, err := r.post("k", change); !isCode(err, api.CodeIdempotencyConflict) {
			t.Errorf("another %s: %v", name, err)
		}
	}
	if _, _, err := r.batch("k", 1); !isCode(err, api.CodeIdempotencyConflict) {
		t.Errorf("a batch: %v", err)
	}
	if r.world.total() != 1 {
		t.Errorf("%d records", r.world.total())
	}
	if _, _, err := r.post(string(make([]byte, 256))); !isCode(err, api.CodeBadRequest) {
		t.Errorf("a long key: %v", err)
	}
}

// What is not written for certain is sent by the repeat, whatever the repeat is.
func TestWhatIsAbsentIsSentAgain(t *testing.T) {
	r := newRig(t, nil)
	r.world.next(absent503, refused422)
	if _, _, err := r.post("k"); !isCode(err, api.CodeBrokersUnavailable) {
		t.Fatalf("got %v", err)
	}
	if _, _, err := r.post("k"); !isCode(err, api.CodeBadRecord) {
		t.Fatalf("got %v", err)
	}
	if s := r.Status(); s.Keys != 0 || s.Bytes != 0 || s.Open != 0 {
		t.Errorf("remembered: %+v", s)
	}
	other := func(m *publish.Message, _ *publish.Options) { m.Value = []byte("other") }
	if _, again, err := r.post("k", other); err != nil || again || r.world.total() != 1 {
		t.Errorf("replayed %v, %v, %d records", again, err, r.world.total())
	}
}

// A repeat learns the fate of the same record: it waits while that is on its
// way, and never sends a second.
func TestTheRepeatOfAnUnknownOutcome(t *testing.T) {
	for name, c := range map[string]struct {
		first  plan
		lands  bool // before the repeat
		again  bool // the repeat's answer is the first one's
		passed int
	}{
		"it lands before":          {landsWritten, true, true, 1},
		"it lands meanwhile":       {landsWritten, false, true, 1},
		"it turns out to be away":  {landsAbsent, true, false, 2},
		"it is given up meanwhile": {landsAbsent, false, false, 2},
		"nobody tells, written":    {lostWritten, true, true, 1},
		"nobody tells, lost":       {lostAbsent, true, false, 2},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.world.next(c.first)
			if _, _, err := r.post("k"); !isCode(err, api.CodeUnknownOutcome) {
				t.Fatalf("got %v", err)
			}
			if c.lands {
				r.world.land()
			} else {
				if _, _, err := r.post("k", quick); !isCode(err, api.CodeUnknownOutcome) || r.world.requests() != 1 {
					t.Fatalf("while it is on its way: %v, %d passed on", err, r.world.requests())
				}
				time.AfterFunc(20*time.Millisecond, r.world.land)
			}
			done, again, err := r.post("k")
			if err != nil || again != c.again || r.world.requests() != c.passed || r.world.total() != 1 {
				t.Fatalf("%+v, replayed %v, %v; %d passed on, %d records", done, again, err, r.world.requests(), r.world.total())
			}
			if got := r.world.logs[done.Partition]; len(got) != int(done.Offset)+1 {
				t.Errorf("answered %+v, the partition has %v", done, got)
			}
			if later, again, err := r.post("k"); err != nil || !again || later != done {
				t.Errorf("then %+v, replayed %v, %v; want %+v", later, again, err, done)
			}
		})
	}
}

// Where the promise ends: a broker that holds a request back for longer than two
// looks take, answers meanwhile, and writes it then. Both copies have the same id,
// so a reader can tell.
func TestTheEdge(t *testing.T) {
	r := newRig(t, nil)
	r.world.next(stalls)
	if _, _, err := r.post("k"); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	done, again, err := r.post("k")
	if err != nil || again {
		t.Fatalf("%+v, replayed %v, %v", done, again, err)
	}
	r.world.land()
	copies := r.world.copies()
	if len(copies) != 1 || r.world.total() != 2 {
		t.Errorf("%v, want one id twice", copies)
	}
	if got, again, err := r.post("k"); err != nil || !again || got != done {
		t.Errorf("%+v, replayed %v, %v; want %+v", got, again, err, done)
	}
}

// What nobody asks for again is settled all the same.
func TestTheBackgroundSettles(t *testing.T) {
	r := newRig(t, nil)
	r.world.next(lostWritten, lostAbsent, landsWritten)
	for _, key := range []string{"b", "c", "a"} {
		if _, _, err := r.post(key); !isCode(err, api.CodeUnknownOutcome) {
			t.Fatalf("got %v", err)
		}
	}
	for deadline := time.Now().Add(10 * time.Second); r.Status().Open > 1; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still open: %+v", r.Status())
		}
	}
	r.world.land()
	for deadline := time.Now().Add(10 * time.Second); r.Status().Open > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("still open: %+v", r.Status())
		}
	}
	if s := r.Status(); s.Keys != 2 {
		t.Errorf("%+v, want the two that are written", s)
	}
}

// While brokers are away nothing can be known, so nothing is sent.
func TestBrokersAwayLeaveItOpen(t *testing.T) {
	r := newRig(t, nil)
	r.world.next(lostWritten)
	r.world.mu.Lock()
	r.world.after = func() { r.world.away, r.world.after = true, nil }
	r.world.mu.Unlock()
	if _, _, err := r.post("k"); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	r.crash(3)
	if _, _, err := r.post("k"); !isCode(err, api.CodeUnknownOutcome) || !strings.Contains(err.Error(), "could not be found out yet: brokers_unavailable: ") {
		t.Errorf("got %v, want unknown_outcome with why", err)
	}
	r.world.mu.Lock()
	r.world.away = false
	r.world.mu.Unlock()
	if done, again, err := r.post("k"); err != nil || !again || done.Offset != 0 || r.world.total() != 1 {
		t.Errorf("%+v, replayed %v, %v, %d records", done, again, err, r.world.total())
	}
}

// A message without a key may be in any partition, so all of them must answer.
func TestOnePartitionAway(t *testing.T) {
	r := newRig(t, nil)
	r.world.mu.Lock()
	r.world.bad = map[int32]bool{1: true}
	r.world.mu.Unlock()
	r.world.next(lostAbsent, lostAbsent)
	if _, _, err := r.post("k"); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	to := func(p int32) func(*publish.Message, *publish.Options) {
		return func(m *publish.Message, _ *publish.Options) { m.Partition = &p }
	}
	if _, _, err := r.post("k2", to(2)); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	r.crash(8)
	if _, _, err := r.post("k", quick); !isCode(err, api.CodeUnknownOutcome) {
		t.Errorf("got %v", err)
	}
	if done, _, err := r.post("k2", to(2)); err != nil || done.Partition != 2 {
		t.Errorf("one that can only be elsewhere: %+v, %v", done, err)
	}
	r.world.mu.Lock()
	r.world.bad = nil
	r.world.mu.Unlock()
	if _, _, err := r.post("k"); err != nil || r.world.total() != 2 {
		t.Errorf("%v, %d records", err, r.world.total())
	}
}

// One look is not enough, whichever of the two it is.
func TestOneLookIsNotEnough(t *testing.T) {
	for n, sent := range map[int]bool{0: true, 1: false, 2: false} {
		r := newRig(t, func(_ *Config, d *Deps) { d.quiet = 20 * time.Millisecond })
		s := search{k: r.Keys, topic: "t", ids: map[string]target{}}
		j := &job{e: &entry{places: places{uuid: "u", from: []place{{1, 0}}}, count: 1}, fates: make([]fate, 1)}
		s.jobs = []*job{j}
		s.begin()
		r.world.mu.Lock()
		r.world.flaky = n
		r.world.mu.Unlock()
		if err := s.look(t.Context()); err != nil {
			t.Fatal(err)
		}
		if absent := j.fates[0].kind == absent; absent != sent {
			t.Errorf("with %d looks that failed it is absent: %v, want %v", n, absent, sent)
		}
	}
}

// Brokers that have just been started may deny a topic that is there, so one is
// gone only when they have denied it for long; then its records are too.
func TestATopicThatIsGone(t *testing.T) {
	r := newRig(t, func(_ *Config, d *Deps) { d.gone = time.Hour })
	if _, _, err := r.post("settled"); err != nil {
		t.Fatal(err)
	}
	r.world.next(lostWritten)
	r.world.mu.Lock()
	r.world.after = func() { r.world.gone = true }
	r.world.mu.Unlock()
	if _, _, err := r.post("open"); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	r.crash(5)
	if _, again, err := r.post("settled"); err != nil || !again {
		t.Errorf("settled: replayed %v, %v", again, err)
	}
	if _, _, err := r.post("fresh"); !isCode(err, api.CodeTopicNotFound) {
		t.Errorf("fresh: %v", err)
	}
	for range 2 {
		if _, _, err := r.post("open"); !isCode(err, api.CodeUnknownOutcome) {
			t.Errorf("open: %v", err)
		}
	}
	r.world.mu.Lock()
	r.world.after, r.world.gone = nil, false
	r.world.mu.Unlock()
	if _, again, err := r.post("open"); err != nil || !again || r.world.total() != 2 {
		t.Errorf("there again: replayed %v, %v, %d records", again, err, r.world.total())
	}

	r.world.next(lostWritten)
	r.world.mu.Lock()
	r.world.after = func() { r.world.gone = true }
	r.world.mu.Unlock()
	if _, _, err := r.post("deleted"); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	r.deps.gone = time.Nanosecond
	r.crash(5)
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		_, _, err := r.post("deleted")
		if isCode(err, api.CodeTopicNotFound) {
			break
		}
		if !isCode(err, api.CodeUnknownOutcome) || time.Now().After(deadline) {
			t.Fatalf("deleted: %v", err)
		}
	}
	// Made anew under its name it is another topic, without the record.
	r.world.mu.Lock()
	r.world.after, r.world.gone, r.world.uuid, r.world.logs = nil, false, "v", make([][]string, 2)
	r.world.mu.Unlock()
	if _, again, err := r.post("deleted"); err != nil || again || r.world.total() != 1 {
		t.Errorf("made anew: replayed %v, %v, %d records", again, err, r.world.total())
	}
}

// Where retention has removed what must be read, nothing is certain, so nothing
// is sent.
func TestRetentionBeforeTheLook(t *testing.T) {
	r := newRig(t, nil)
	r.world.next(lostAbsent)
	r.world.mu.Lock()
	r.world.after = func() { r.world.away, r.world.after = true, nil }
	r.world.mu.Unlock()
	if _, _, err := r.post("k"); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatalf("got %v", err)
	}
	r.world.mu.Lock()
	for p := range r.world.logs {
		r.world.logs[p], r.world.starts[p] = append(r.world.logs[p], "x", "y"), 1
	}
	r.world.mu.Unlock()
	r.crash(3)
	r.world.mu.Lock()
	r.world.away = false
	r.world.mu.Unlock()
	if _, _, err := r.post("k", quick); !isCode(err, api.CodeUnknownOutcome) {
		t.Errorf("got %v", err)
	}
}

func TestRepeatsThatRace(t *testing.T) {
	r := newRig(t, nil)
	r.world.next(absent503, landsWritten)
	var wg sync.WaitGroup
	var mu sync.Mutex
	answers := map[api.Published]int{}
	codes := map[api.Code]int{}
	for range 16 {
		wg.Go(func() {
			done, _, err := r.post("k", func(_ *publish.Message, o *publish.Options) { o.Timeout = 2 * time.Second })
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				codes[err.(*api.Error).Code]++
				return
			}
			answers[done]++
		})
	}
	unheard := func() bool { // once it is told so: what lands before is heard
		mu.Lock()
		defer mu.Unlock()
		return codes[api.CodeUnknownOutcome] > 0
	}
	for !unheard() {
		time.Sleep(time.Millisecond)
	}
	r.world.land()
	wg.Wait()
	if len(answers) != 1 || codes[api.CodeBrokersUnavailable] != 1 || codes[api.CodeUnknownOutcome] != 1 || r.world.total() != 1 {
		t.Errorf("answers %v, errors %v, %d records", answers, codes, r.world.total())
	}
}

func TestBatches(t *testing.T) {
	r := newRig(t, nil)
	first, again, err := r.batch("k", 50)
	if err != nil || again {
		t.Fatalf("replayed %v, %v", again, err)
	}
	r.crash(9)
	got, again, err := r.batch("k", 50)
	if err != nil || !again || !reflect.DeepEqual(got, first) || r.world.total() != 50 {
		t.Errorf("replayed %v, %v: %+v; want %+v", again, err, got, first)
	}
	if _, _, err := r.batch("k", 49); !isCode(err, api.CodeIdempotencyConflict) {
		t.Errorf("one less: %v", err)
	}
	r.world.next(refused422)
	if _, _, err := r.batch("bad", 3); !isCode(err, api.CodeBadRecord) || err.(*api.Error).Line != 1 {
		t.Errorf("got %v", err)
	}
	if results, _, err := r.batch("none", 0); err != nil || len(results) != 0 {
		t.Errorf("an empty one: %v, %v", results, err)
	}
}

// partly is a publisher that fails some messages of each batch.
type partly struct {
	*world
	fail func(call, i int) *api.Error
}

func (p *partly) PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error) {
	call := p.requests()
	landed := o.Landed
	o.Landed = func([]api.BatchResult) {}
	defer landed(nil)
	var good []publish.Message
	results := make([]api.BatchResult, len(ms))
	for i, m := range ms {
		if results[i].Error = p.fail(call, i); results[i].Error == nil {
			good = append(good, m)
		}
	}
	done, err := p.world.PublishBatch(ctx, topic, good, o)
	for i := range results {
		if results[i].Error == nil {
			results[i], done = done[0], done[1:]
		}
	}
	return results, err
}

// The repeat of a batch of which some is written sends the rest and no more.
func TestTheRestOfABatch(t *testing.T) {
	r := newRig(t, nil)
	bad := api.NewError(api.CodeMessageTooLarge, "large")
	r.Keys.next = &partly{r.world, func(call, i int) *api.Error {
		switch {
		case call == 0 && i%3 == 1:
			return errAway
		case call == 0 && i%3 == 2:
			return bad
		case call == 1 && i == 1: // the second of those sent again
			return bad
		}
		return nil
	}}
	first, _, err := r.batch("k", 9)
	if err != nil || r.world.total() != 3 || first[1].Error == nil || first[2].Error != bad {
		t.Fatalf("%+v, %v, %d records", first, err, r.world.total())
	}
	r.crash(2)
	r.Keys.next = &partly{r.world, r.world.failSecond}
	second, again, err := r.batch("k", 9)
	if err != nil || again || r.world.total() != 8 || second[2].Error == nil || second[1].Error != nil {
		t.Fatalf("%+v, replayed %v, %v, %d records", second, again, err, r.world.total())
	}
	for i := 0; i < 9; i += 3 {
		if second[i] != first[i] {
			t.Errorf("message %d is at %+v, and was at %+v", i, second[i], first[i])
		}
	}
	third, again, err := r.batch("k", 9)
	if err != nil || again || r.world.total() != 9 || third[2].Error != nil {
		t.Fatalf("%+v, replayed %v, %v, %d records", third, again, err, r.world.total())
	}
	fourth, again, err := r.batch("k", 9)
	if err != nil || !again || !reflect.DeepEqual(third, fourth) {
		t.Errorf("%+v, replayed %v, %v", fourth, again, err)
	}
	for id, n := range r.world.copies() {
		if n != 1 {
			t.Errorf("%s is there %d times", id, n)
		}
	}
}

func (w *world) failSecond(call, i int) *api.Error {
	if call == 1 && i == 1 {
		return api.NewError(api.CodeMessageTooLarge, "large")
	}
	return nil
}

func TestTheSpoolsAnswerComesAgain(t *testing.T) {
	r := newRig(t, nil)
	spool := func(_ *publish.Message, o *publish.Options) { o.Ack = publish.AckSpool }
	r.world.next(intoSpool)
	first, _, err := r.post("k", spool)
	if err != nil || first.SpoolID == "" {
		t.Fatalf("%+v, %v", first, err)
	}
	r.world.mu.Lock()
	for id := range r.world.held { // it was sent on
		r.world.logs[1] = append(r.world.logs[1], id)
		delete(r.world.held, id)
	}
	r.world.mu.Unlock()
	r.crash(4)
	if got, again, err := r.post("k", spool); err != nil || !again || got != first {
		t.Errorf("%+v, replayed %v, %v; want %+v", got, again, err, first)
	}
	// A crash after the spool had it and before that was noted.
	unnoted := func(key string, change ...func(*publish.Message, *publish.Options)) {
		t.Helper()
		r.world.next(lostSpooled)
		r.world.mu.Lock()
		r.world.away, r.world.silent = false, true
		r.world.after = func() { r.world.away, r.world.after = true, nil }
		r.world.mu.Unlock()
		if _, _, err := r.post(key, change...); !isCode(err, api.CodeUnknownOutcome) {
			t.Fatalf("got %v", err)
		}
		r.world.mu.Lock()
		r.world.silent = false
		r.world.mu.Unlock()
		r.crash(4)
	}
	unnoted("k2", spool)
	if got, again, err := r.post("k2", spool); err != nil || !again || got.SpoolID != "spool-0" || got.Partition != 1 {
		t.Errorf("%+v, replayed %v, %v", got, again, err)
	}
	// One that took the place of brokers that were away.
	unnoted("k3")
	if got, again, err := r.post("k3"); err != nil || !again || got.SpoolID != "spool-1" {
		t.Errorf("%+v, replayed %v, %v", got, again, err)
	}
}
