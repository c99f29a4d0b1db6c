package consume

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// bury writes letters of messages first … first+n-1 of a topic straight to a
// group's dead letters.
func (h *host) bury(group, topic string, first, n int, change ...func(*letter)) {
	h.lab.t.Helper()
	var ds []draft
	for i := first; i < first+n; i++ {
		l := letter{
			id: letterID(group, topic, "", 0, int64(i)), reason: "max_attempts", group: group, topic: topic,
			offset: int64(i), until: int64(i) + 1, attempts: 2, at: time.Now(), millis: 1000,
		}
		for _, f := range change {
			f(&l)
		}
		ds = append(ds, draft{l, &kgo.Record{Key: fmt.Appendf(nil, "k%d", i), Value: fmt.Append(nil, i), Headers: []kgo.RecordHeader{{Key: "own", Value: []byte("1")}}}})
	}
	errs, err := h.m.writeLetters(h.lab.t.Context(), deadTopic(group), topic, ds)
	if err != nil {
		h.lab.t.Fatal(err)
	}
	for _, e := range errs {
		if e != nil {
			h.lab.t.Fatal(e)
		}
	}
}

// group makes a group.
func (h *host) group(name string) {
	h.lab.t.Helper()
	if _, err := h.m.Configure(h.lab.t.Context(), name, api.GroupConfig{}); err != nil {
		h.lab.t.Fatal(err)
	}
}

func (h *host) redrive(group, topic string, req api.RedriveRequest) api.Redriven {
	h.lab.t.Helper()
	r, err := h.m.Redrive(h.lab.t.Context(), group, topic, req)
	if err != nil {
		h.lab.t.Fatal(err)
	}
	return r
}

// values are the values of a topic's partition 0, sorted, and how many have the
// header of a message that was brought back.
func (h *host) values(topic string) (values []string, marked int) {
	h.lab.t.Helper()
	rs, _, _, err := h.up.Peek(h.lab.t.Context(), topic, 0, 0, 1000, 1<<20)
	if err != nil {
		h.lab.t.Fatal(err)
	}
	for _, r := range rs {
		values = append(values, string(r.Value))
		for _, head := range r.Headers {
			if strings.HasPrefix(head.Key, "sidestream-dead-") {
				h.lab.t.Errorf("header %s came back", head.Key)
			}
			if head.Key == headerRedriven {
				marked++
			}
		}
	}
	slices.Sort(values)
	return values, marked
}

// outstanding are the ids of the letters that were not brought back, sorted.
func (h *host) outstanding(group, topic string) (ids []string) {
	for _, l := range h.letters(group, topic) {
		if !l.Redriven {
			ids = append(ids, l.ID)
		}
	}
	slices.Sort(ids)
	return ids
}

func TestRedrive(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1, "others": 1})
	a := l.host("a")
	a.group("g")
	if r := a.redrive("g", "jobs", api.RedriveRequest{}); r.Redriven != 0 || r.Topic != "dead.g" {
		t.Fatalf("of nothing: %+v", r)
	}
	a.bury("g", "jobs", 0, 5)
	a.bury("g", "others", 10, 3)
	a.bury("g", "jobs", 2, 1) // a copy, of a sidecar that died in between
	// As many as were asked for, each once however often it is repeated.
	first := a.redrive("g", "jobs", api.RedriveRequest{Max: 2})
	if first.Redriven != 2 || first.Next == "" || first.Error != nil {
		t.Fatalf("%+v", first)
	}
	if got, marked := a.values("jobs"); len(got) != 2 || marked != 2 {
		t.Fatalf("%v, %d marked", got, marked)
	}
	if n := len(a.outstanding("g", "jobs")); n < 3 || n > 4 {
		t.Fatalf("%d letters are left", n)
	}
	total, copies := first.Redriven, first.Copies
	for next := first.Next; next != ""; {
		r := a.redrive("g", "jobs", api.RedriveRequest{Max: 2, After: next})
		total, copies, next = total+r.Redriven, copies+r.Copies, r.Next
	}
	got, _ := a.values("jobs")
	if total != 5 || copies > 1 || !slices.Equal(got, []string{"0", "1", "2", "3", "4"}) {
		t.Fatalf("%d redriven, %d copies: %v", total, copies, got)
	}
	if ids := a.outstanding("g", "jobs"); len(ids) > 0 {
		t.Fatalf("left: %v", ids)
	}
	if ls, err := a.m.Dead(t.Context(), DeadRequest{Group: "g", Topic: "jobs"}); err != nil || len(ls.Letters) > 0 {
		t.Fatalf("shown: %+v, %v", ls, err)
	}
	for range 2 {
		if r := a.redrive("g", "jobs", api.RedriveRequest{}); r.Redriven != 0 || r.Next != "" {
			t.Fatalf("again: %+v", r)
		}
	}
	// Those of the other topic are untouched; another sidecar sees the same.
	b := l.host("b")
	if ids := b.outstanding("g", "others"); len(ids) != 3 {
		t.Fatalf("left: %v", ids)
	}
	if r := b.redrive("g", "jobs", api.RedriveRequest{}); r.Redriven != 0 {
		t.Fatalf("%+v", r)
	}
}

func TestRedriveFilters(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1, "elsewhere": 1})
	a := l.host("a")
	a.group("g")
	a.bury("g", "jobs", 0, 4)
	a.bury("g", "jobs", 4, 1, func(l *letter) { l.reason = kindOversized })
	a.bury("g", "jobs", 5, 1, func(l *letter) { l.reason = kindUndecodable })
	one := letterID("g", "jobs", "", 0, 2)
	if r := a.redrive("g", "jobs", api.RedriveRequest{IDs: []string{one}, To: "elsewhere"}); r.Redriven != 1 {
		t.Fatalf("%+v", r)
	}
	if got, _ := a.values("elsewhere"); !slices.Equal(got, []string{"2"}) {
		t.Fatalf("%v", got)
	}
	if r := a.redrive("g", "jobs", api.RedriveRequest{Reason: kindOversized}); r.Redriven != 1 {
		t.Fatalf("%+v", r)
	}
	// What nobody can read stays and is told of, until it is discarded.
	for range 2 {
		r := a.redrive("g", "jobs", api.RedriveRequest{Reason: kindUndecodable})
		if r.Redriven != 0 || len(r.Kept) != 1 || r.Kept[0].Error.Code != api.CodeBadRecord {
			t.Fatalf("%+v", r)
		}
	}
	if r := a.redrive("g", "jobs", api.RedriveRequest{Reason: kindUndecodable, Discard: true}); r.Redriven != 1 || len(r.Kept) != 0 {
		t.Fatalf("%+v", r)
	}
	if r := a.redrive("g", "jobs", api.RedriveRequest{}); r.Redriven != 3 || r.Next != "" {
		t.Fatalf("%+v", r)
	}
	if got, _ := a.values("jobs"); !slices.Equal(got, []string{"0", "1", "3", "4"}) {
		t.Fatalf("%v", got)
	}
	for name, req := range map[string]api.RedriveRequest{
		"too many":     {Max: MaxRedrive + 1},
		"below":        {Max: -1},
		"ids":          {IDs: make([]string, maxRedriveIDs+1)},
		"cursor":       {After: "x"},
		"into itself":  {To: "dead.g"},
		"a bad target": {To: "a b"},
		"a bad source": {Dead: "a b"},
	} {
		if _, err := a.m.Redrive(t.Context(), "g", "jobs", req); !isCode(err, api.CodeBadRequest) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if _, err := a.m.Redrive(t.Context(), "nobody", "jobs", api.RedriveRequest{}); !isCode(err, api.CodeGroupNotFound) {
		t.Errorf("%v", err)
	}
	a.bury("g", "gone", 0, 1)
	if _, err := a.m.Redrive(t.Context(), "g", "gone", api.RedriveRequest{}); !isCode(err, api.CodeTopicNotFound) {
		t.Errorf("%v", err)
	}
}

// A redrive that dies after it wrote a batch and before it noted that brings it
// back once more, no less, and each message says which letter it is of.
func TestRedriveInterrupted(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	a := l.host("a")
	a.group("g")
	a.bury("g", "jobs", 0, 3)
	ctx, cut := context.WithCancel(t.Context())
	defer cut()
	l.kafka.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		a.store.SetCut(true) // what is written now cannot be noted
		return nil, nil, false
	})
	if r, err := a.m.Redrive(ctx, "g", "jobs", api.RedriveRequest{}); err == nil && r.Error == nil {
		t.Fatalf("%+v", r)
	}
	a.kill()
	b := l.host("b")
	eventually(t, "the dead one's lock ends", func() bool {
		r, err := b.m.Redrive(t.Context(), "g", "jobs", api.RedriveRequest{})
		if err != nil && !isCode(err, api.CodeConflict) {
			t.Fatal(err)
		}
		return err == nil && r.Redriven == 3
	})
	got, marked := b.values("jobs")
	if !slices.Equal(slices.Compact(slices.Clone(got)), []string{"0", "1", "2"}) || marked != len(got) {
		t.Fatalf("%v, %d marked", got, marked)
	}
	if ids := b.outstanding("g", "jobs"); len(ids) > 0 {
		t.Fatalf("left: %v", ids)
	}
}

// One at a time: two would bring the same letters back.
func TestRedriveAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	a, b := l.host("a"), l.host("b")
	a.group("g")
	a.bury("g", "jobs", 0, 1)
	lock, err := a.m.lockRedrive(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	for _, h := range []*host{a, b} {
		if _, err := h.m.Redrive(t.Context(), "g", "jobs", api.RedriveRequest{}); !isCode(err, api.CodeConflict) {
			t.Errorf("%s: %v", h.id, err)
		}
	}
	lock.release()
	if r := b.redrive("g", "jobs", api.RedriveRequest{}); r.Redriven != 1 {
		t.Fatalf("%+v", r)
	}
	if es, err := l.store.List(t.Context(), discovery.KeyRedriving("g")); err != nil || len(es) > 0 {
		t.Fatalf("the lock is left behind: %v, %v", es, err)
	}
}

// What was written before an error is told, and what was not stays.
func TestRedriveStopsAtAnError(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	a := l.host("a")
	a.group("g")
	a.bury("g", "jobs", 0, redriveBatch+10)
	writes := 0
	l.kafka.ControlKey(kmsg.Produce.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		if writes++; writes == 1 {
			return nil, nil, false
		}
		req := kreq.(*kmsg.ProduceRequest)
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range req.Topics {
			st := kmsg.NewProduceResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewProduceResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, kerr.TopicAuthorizationFailed.Code
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	r := a.redrive("g", "jobs", api.RedriveRequest{Max: 1000})
	got, _ := a.values("jobs")
	if r.Error == nil || r.Error.Code != api.CodeForbidden || r.Redriven == 0 || r.Redriven != len(got) || r.Next == "" {
		t.Fatalf("%+v; %d are there", r, len(got))
	}
	if left := len(a.outstanding("g", "jobs")); left != redriveBatch+10-len(got) {
		t.Fatalf("%d are left, %d were written", left, len(got))
	}
}

// What did not fit into its letter is read where it was.
func TestRedriveOfWhatWasLeftOut(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	a := l.host("a")
	a.group("g")
	big := noise(20_000)
	if err := l.prod.ProduceSync(t.Context(), &kgo.Record{Topic: "jobs", Key: []byte("k"), Value: big, Timestamp: time.UnixMilli(5000)}).FirstErr(); err != nil {
		t.Fatal(err)
	}
	if _, err := a.up.CreateTopic(t.Context(), "dead.g", api.TopicSpec{Partitions: 1, Configs: map[string]string{"max.message.bytes": "4000"}}); err != nil {
		t.Fatal(err)
	}
	write := func(offset, millis int64) {
		t.Helper()
		x := letter{id: letterID("g", "jobs", "", 0, offset), reason: "max_attempts", group: "g", topic: "jobs", offset: offset, until: offset + 1, at: time.Now(), millis: millis}
		if errs, err := a.m.writeLetters(t.Context(), "dead.g", "jobs", []draft{{x, &kgo.Record{Key: []byte("k"), Value: big}}}); err != nil || errs[0] != nil {
			t.Fatal(errs, err)
		}
	}
	write(0, 5000)
	write(7, 5000) // retention has removed it meanwhile
	r := a.redrive("g", "jobs", api.RedriveRequest{})
	if r.Redriven != 1 || len(r.Kept) != 1 || r.Kept[0].Error.Code != api.CodeMessageTooLarge {
		t.Fatalf("%+v", r)
	}
	rs, _, _, err := a.up.Peek(t.Context(), "jobs", 0, 1, 10, 1<<20)
	if err != nil || len(rs) != 1 || string(rs[0].Value) != string(big) || string(rs[0].Key) != "k" {
		t.Fatalf("%d, %v", len(rs), err)
	}
}
