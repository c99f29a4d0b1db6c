package consume

import (
	"errors"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
)

func TestSeekOfALiveGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 4})
	for p := range int32(4) {
		l.produce("views", p, 0, 10)
	}
	a, b := l.host("a"), l.host("b")
	drain(t, "g", "views", 40, a, b)
	l.produce("views", 0, 10, 1)
	out := a.pull(PullRequest{Group: "g", Topic: "views", Lease: time.Minute, Wait: 100 * time.Millisecond})
	if len(out.Messages) == 0 {
		out = b.pullSome(PullRequest{Group: "g", Topic: "views", Lease: time.Minute})
	}
	s, err := b.m.Seek(t.Context(), "g", "views", api.SeekRequest{To: "earliest"})
	if err != nil || s.SeekEpoch != 1 || len(s.Offsets) != 4 || s.Offsets[2] != 0 {
		t.Fatalf("seek %+v %v", s, err)
	}
	for _, h := range []*host{a, b} {
		if r := h.ack("g", "views", receiptsOf(out)...); r.OK != 0 || r.Results[0].Error.Code != api.CodeLeaseLost {
			t.Fatalf("ack of before the seek: %+v", r)
		}
	}
	sum := drain(t, "g", "views", 41, a, b)
	if r := sum.repeated(); len(r) > 0 {
		t.Fatalf("delivered twice after the seek: %v", r)
	}
	o, err := a.m.Offsets(t.Context(), "g", "views")
	if err != nil || o.SeekEpoch != 1 {
		t.Fatalf("%+v %v", o, err)
	}
	// Exactly, and of one partition only.
	if _, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{Offsets: map[string]int64{"3": 8}}); err != nil {
		t.Fatal(err)
	}
	sum = drain(t, "g", "views", 2, a, b)
	if len(sum.order[3]) != 2 || sum.order[3][0] != 8 {
		t.Fatalf("%v", sum.order)
	}
	// A partition has one name: of "0" and "00" either could win.
	for _, name := range []string{"00", "+0", "-1", "x", "99"} {
		if _, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{Offsets: map[string]int64{name: 0}}); err == nil {
			t.Errorf("partition %q is taken", name)
		}
	}
	// To the end: nothing is left.
	l.produce("views", 1, 10, 5)
	if _, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{To: "latest"}); err != nil {
		t.Fatal(err)
	}
	for _, h := range []*host{a, b} {
		if d := h.pull(PullRequest{Group: "g", Topic: "views", Wait: 100 * time.Millisecond}); len(d.Messages) > 0 {
			t.Fatalf("after a seek to the end: %s", offsetsOf(d.Messages))
		}
	}
}

func TestSeekOfAnIdleGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	for p := range int32(2) {
		l.produce("views", p, 0, 10)
	}
	a := l.host("a", func(c *Config) { c.LeaveAfter = 200 * time.Millisecond })
	drain(t, "g", "views", 20, a)
	eventually(t, "a has left", func() bool { return a.m.lookup("g") == nil })
	// The second asks for one partition: what the first asked of the other stands.
	if _, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{To: "earliest"}); err != nil {
		t.Fatal(err)
	}
	if s, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{Offsets: map[string]int64{"1": 7}}); err != nil || s.SeekEpoch != 2 {
		t.Fatalf("%+v %v", s, err)
	}
	sum := drain(t, "g", "views", 13, a)
	if len(sum.order[0]) != 10 || len(sum.order[1]) != 3 || sum.order[1][0] != 7 {
		t.Fatalf("%v", sum.order)
	}
}

func TestSeekErrors(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	a := l.host("a")
	for _, c := range []struct {
		group, topic string
		req          api.SeekRequest
		code         api.Code
	}{
		{"nobody", "views", api.SeekRequest{To: "earliest"}, api.CodeGroupNotFound},
		{"g", "nothing", api.SeekRequest{To: "earliest"}, api.CodeTopicNotFound},
		{"g", "views", api.SeekRequest{}, api.CodeBadRequest},
		{"g", "views", api.SeekRequest{To: "yesterday"}, api.CodeBadRequest},
		{"g", "views", api.SeekRequest{Offsets: map[string]int64{"0": 5}}, api.CodeBadRequest},
		{"g", "views", api.SeekRequest{Offsets: map[string]int64{"9": 0}}, api.CodePartitionNotFound},
		{"g", "views", api.SeekRequest{Offsets: map[string]int64{"x": 0}}, api.CodePartitionNotFound},
		{"g", "a/b", api.SeekRequest{To: "earliest"}, api.CodeBadRequest},
	} {
		if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{}); err != nil {
			t.Fatal(err)
		}
		if _, err := a.m.Seek(t.Context(), c.group, c.topic, c.req); !errors.Is(err, &api.Error{Code: c.code}) {
			t.Errorf("seek %s %s %+v: %v, want %s", c.group, c.topic, c.req, err, c.code)
		}
	}
}

func TestStartAt(t *testing.T) {
	pos := func(uuid string, epoch uint64, low int64) offsets.Position {
		return offsets.Position{Topic: uuid, SeekEpoch: epoch, Low: low, HandOut: low}
	}
	seek := func(epoch uint64, uuid, to string, at map[int32]int64) *discovery.Seek {
		return &discovery.Seek{Epoch: epoch, UUID: uuid, To: to, Offsets: at}
	}
	for _, c := range []struct {
		name  string
		seek  *discovery.Seek
		known []offsets.Position
		epoch uint64
		low   int64
		begin bool
	}{
		{name: "nothing known", begin: true},
		{name: "the two stores are united", known: []offsets.Position{pos("u", 0, 5), pos("u", 0, 7)}, low: 7},
		{name: "another topic's is dropped", known: []offsets.Position{pos("v", 3, 5)}, begin: true},
		{name: "a seek not applied yet", seek: seek(1, "u", "earliest", map[int32]int64{0: 2}), known: []offsets.Position{pos("u", 0, 5)}, epoch: 1, low: 2},
		{name: "a seek applied", seek: seek(1, "u", "earliest", map[int32]int64{0: 2}), known: []offsets.Position{pos("u", 1, 4), pos("u", 0, 9)}, epoch: 1, low: 4},
		{name: "a seek of other partitions", seek: seek(2, "u", "", map[int32]int64{1: 2}), known: []offsets.Position{pos("u", 1, 4)}, epoch: 2, low: 4},
		{name: "a seek of other partitions, nothing known", seek: seek(2, "u", "", map[int32]int64{1: 2}), epoch: 2, begin: true},
		{name: "a seek of the topic before this one", seek: seek(2, "v", "earliest", map[int32]int64{0: 9}), epoch: 2, begin: true},
		{name: "the store was restored from a backup", seek: seek(1, "u", "earliest", map[int32]int64{0: 2}), known: []offsets.Position{pos("u", 3, 8)}, epoch: 3, low: 8},
		{name: "the group was deleted", seek: seek(1, "u", seekToBegin, nil), known: []offsets.Position{pos("u", 0, 8)}, epoch: 1, begin: true},
		{name: "brokers began to give UUIDs", known: []offsets.Position{pos("", 0, 8)}, low: 8},
	} {
		p, begin := startAt("u", 0, c.seek, c.known)
		if p.Topic != "u" || p.SeekEpoch != c.epoch || p.Low != c.low || begin != c.begin {
			t.Errorf("%s: %+v, begin %v", c.name, p, begin)
		}
	}
}
