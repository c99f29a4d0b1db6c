package idempotency

import (
	"reflect"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"sidestream/sidecar/publish"
)

func anyFates(t *rapid.T) []fate {
	var fates []fate
	for range rapid.IntRange(1, 20).Draw(t, "runs") {
		f := fate{kind: kind(rapid.IntRange(0, 3).Draw(t, "kind"))}
		if f.kind == written || f.kind == spooled {
			f.partition = rapid.Int32Range(0, 5).Draw(t, "partition")
		}
		if f.kind == written {
			f.offset = rapid.Int64Range(-1, 1<<50).Draw(t, "offset")
		}
		for range rapid.IntRange(1, 5).Draw(t, "run") {
			if f.kind == spooled {
				f.spool = rapid.StringMatching(`abc-[0-9a-z]{0,3}`).Draw(t, "id")
			}
			fates = append(fates, f)
			if f.kind == written {
				f.offset++
			}
		}
	}
	return fates
}

func TestFatesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		fates := anyFates(t)
		b := appendFates(nil, fates)
		got, err := readFates(b, len(fates))
		if err != nil || !reflect.DeepEqual(got, fates) {
			t.Fatalf("%+v came back as %+v, %v", fates, got, err)
		}
		if _, err := readFates(b, len(fates)+1); err == nil {
			t.Fatal("one fate too few is not noticed")
		}
		if _, err := readFates(b, len(fates)-1); err == nil {
			t.Fatal("one fate too many is not noticed")
		}
		at := rapid.IntRange(0, len(b)-1).Draw(t, "damage")
		_, _ = readFates(b[:at], len(fates)) // does not panic
		b[at] ^= rapid.Byte().Draw(t, "with")
		_, _ = readFates(b, len(fates))
	})
}

// A large batch must not make its answer large.
func TestFatesAreSmall(t *testing.T) {
	var runs, keyed, spool []fate
	next := map[int32]int64{}
	for i := range 100_000 {
		p := int32(i/512) % 4
		runs = append(runs, fate{kind: written, partition: p, offset: 1e9 + next[p]})
		p = int32(i*2654435761>>7) % 64
		keyed = append(keyed, fate{kind: written, partition: p, offset: 1e9 + next[p+10]})
		next[p+10]++
		next[int32(i/512)%4]++
		spool = append(spool, fate{kind: spooled, partition: p, spool: "0123456789abcdef-" + string(rune('a'+i%26)) + "zz"})
	}
	for name, c := range map[string]struct {
		fates []fate
		most  int
	}{"without keys": {runs, 5000}, "with keys": {keyed, 500_000}, "in the spool": {spool, 900_000}} {
		if n := len(appendFates(nil, c.fates)); n > c.most {
			t.Errorf("%s: %d bytes, want at most %d", name, n, c.most)
		}
	}
}

func TestNotesComeBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := note{
			kind:  noteKind(rapid.IntRange(1, 3).Draw(t, "kind")),
			at:    moment{time.Duration(rapid.Int64Range(0, 1<<40).Draw(t, "age")) * time.Millisecond, rapid.Int64().Draw(t, "wall"), rapid.Int64().Draw(t, "up"), rapid.Uint64().Draw(t, "boot")},
			key:   keyDigest(rapid.String().Draw(t, "key")),
			fates: []byte{},
		}
		if n.kind == noteIntent {
			n.request, n.topic = keyDigest("r"), rapid.String().Draw(t, "topic")
			n.ack, n.batch = publish.Ack(rapid.IntRange(0, 2).Draw(t, "ack")), rapid.Bool().Draw(t, "batch")
			n.count, n.millis = rapid.IntRange(0, 1<<30).Draw(t, "count"), rapid.Int64().Draw(t, "millis")
			n.places = places{uuid: rapid.String().Draw(t, "uuid"), all: rapid.Bool().Draw(t, "all"), since: rapid.Int64().Draw(t, "since"), from: []place{}}
			for range rapid.IntRange(0, 4).Draw(t, "places") {
				n.places.from = append(n.places.from, place{rapid.Int32Range(0, 1<<30).Draw(t, "partition"), rapid.Int64Range(-1, 1<<60).Draw(t, "offset")})
			}
		}
		if n.kind != noteDropped {
			n.fates = append(n.fates, rapid.SliceOf(rapid.Byte()).Draw(t, "fates")...)
		}
		b := n.append(nil)
		got, err := readNote(b)
		if err != nil || !reflect.DeepEqual(got, n) {
			t.Fatalf("%+v came back as %+v, %v", n, got, err)
		}
		at := rapid.IntRange(0, len(b)-1).Draw(t, "damage")
		_, _ = readNote(b[:at]) // does not panic
		b[at] ^= rapid.Byte().Draw(t, "with")
		_, _ = readNote(b)
	})
}

func TestWhatMakesARequestTheSame(t *testing.T) {
	p0, p1 := int32(0), int32(1)
	base := func() publish.Message {
		return publish.Message{Key: []byte("k"), Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}}}
	}
	first := requestDigest("t", []publish.Message{base()}, publish.AckAll, false)
	for name, c := range map[string]struct {
		change func(*publish.Message)
		same   bool
	}{
		"nothing":        {func(*publish.Message) {}, true},
		"value":          {func(m *publish.Message) { m.Value = []byte("w") }, false},
		"no value":       {func(m *publish.Message) { m.Value = nil }, false},
		"key":            {func(m *publish.Message) { m.Key = nil }, false},
		"empty key":      {func(m *publish.Message) { m.Key = []byte{} }, false},
		"partition":      {func(m *publish.Message) { m.Partition = &p0 }, false},
		"ts":             {func(m *publish.Message) { m.Timestamp = time.UnixMilli(0) }, false},
		"header's value": {func(m *publish.Message) { m.Headers[0].Value = nil }, false},
		"header's name":  {func(m *publish.Message) { m.Headers[0].Key = "g" }, false},
		"more headers":   {func(m *publish.Message) { m.Headers = append(m.Headers, m.Headers[0]) }, false},
		"another trace": {func(m *publish.Message) {
			m.Headers = append(m.Headers, kgo.RecordHeader{Key: "Traceparent", Value: []byte("00-1")}, kgo.RecordHeader{Key: "tracestate"})
		}, true},
		"bytes that moved": {func(m *publish.Message) { m.Key, m.Value = []byte("kv"), []byte{} }, false},
		"a large value":    {func(m *publish.Message) { m.Value = make([]byte, 5000) }, false},
	} {
		m := base()
		c.change(&m)
		if got := requestDigest("t", []publish.Message{m}, publish.AckAll, false) == first; got != c.same {
			t.Errorf("%s: the same %v, want %v", name, got, c.same)
		}
	}
	for name, other := range map[string]digest{
		"topic": requestDigest("u", []publish.Message{base()}, publish.AckAll, false),
		"ack":   requestDigest("t", []publish.Message{base()}, publish.AckLeader, false),
		"batch": requestDigest("t", []publish.Message{base()}, publish.AckAll, true),
		"two":   requestDigest("t", []publish.Message{base(), base()}, publish.AckAll, false),
	} {
		if other == first {
			t.Errorf("another %s makes no other request", name)
		}
	}
	a, b := base(), base()
	a.Partition, b.Partition = &p0, &p1
	if requestDigest("t", []publish.Message{a}, 0, false) == requestDigest("t", []publish.Message{b}, 0, false) {
		t.Error("partitions 0 and 1 make the same request")
	}
}

func TestIDsAreOfOneHostAndRequest(t *testing.T) {
	k, r := keyDigest("k"), keyDigest("r")
	id := recordID("n", k, r)
	if len(id) != 20 || id != recordID("n", k, r) {
		t.Errorf("got %q", id)
	}
	if id == recordID("m", k, r) || id == recordID("n", r, r) || id == recordID("n", k, k) {
		t.Error("another host, key or request has the same id")
	}
	if idOf(id, 7, true) != id+"-7" || idOf(id, 0, false) != id {
		t.Error("ids of records")
	}
}

func TestTheClockOnlyGoesForward(t *testing.T) {
	last := moment{age: time.Hour, wall: 1_000_000, up: 5000, boot: 7}
	for name, c := range map[string]struct {
		now   moment
		away  time.Duration
		known bool
	}{
		"same start of the machine":              {moment{wall: 1_060_000, up: 65_000, boot: 7}, time.Minute, true},
		"the wall clock was set ahead meanwhile": {moment{wall: 900_000_000, up: 65_000, boot: 7}, time.Minute, true},
		"the time is not known":                  {moment{up: 65_000, boot: 7}, time.Minute, true},
		"another start of the machine":           {moment{wall: 1_060_000, up: 10, boot: 8}, time.Minute, true},
		"another start, and the clock went back": {moment{wall: 1, up: 10, boot: 8}, 0, true},
		"another start, and nobody knows":        {moment{up: 10, boot: 8}, 0, false},
		"what the machine does not tell":         {moment{wall: 1_060_000}, time.Minute, true},
	} {
		if got, known := away(last, c.now); got != c.away || known != c.known {
			t.Errorf("%s: %s away, known %v, want %s, %v", name, got, known, c.away, c.known)
		}
	}
	if got, known := away(moment{up: 5000, boot: 7}, moment{wall: 1_060_000, boot: 8}); got != 0 || !known {
		t.Errorf("from when nobody knew the time: %s, %v", got, known)
	}
	if c := newClock(moment{}, nil); c.base != 0 || c.now() < 0 {
		t.Errorf("a new one is at %s", c.base)
	}
	m := systemMoment(time.Now)
	if m.up <= 0 || m.boot == 0 {
		t.Errorf("this machine tells %+v", m)
	}
}

// A machine that was off for a day and starts without a clock that can be
// believed: the window waits for one. A key was forgotten at once when the clock
// was ahead, and its repeat written again.
func TestTheWindowWaitsForAWitness(t *testing.T) {
	const day = 24 * time.Hour
	stopped := time.Now().Add(-day)
	last := moment{age: time.Hour, wall: stopped.UnixMilli(), up: 5000, boot: 7}
	var folder time.Time
	c := newClock(last, func() time.Time { return folder })
	if got := c.now(); got < time.Hour || got > time.Hour+time.Minute {
		t.Errorf("while nobody knows it is at %s", got)
	}
	if m := c.moment(); m.wall != 0 {
		t.Errorf("what nobody knows is written down as %d", m.wall)
	}
	folder = stopped.Add(day)
	if got := c.now(); got < time.Hour+day || got > time.Hour+day+time.Minute {
		t.Errorf("once it is known it is at %s", got)
	}
	folder = stopped.Add(100 * day)
	if got := c.now(); got > time.Hour+day+time.Minute {
		t.Errorf("it is at %s after a jump", got)
	}
}
