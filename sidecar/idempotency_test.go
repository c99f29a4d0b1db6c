package sidecar

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

const withKey = "Idempotency-Key: "

// idsOf are the ids of the records of a partition.
func (r *rig) idsOf(topic string, partition int) (ids []string) {
	for _, m := range r.peek(topic, partition) {
		for _, h := range m.Headers {
			if h.Name == upstream.HeaderID {
				ids = append(ids, *h.Value)
			}
		}
	}
	return ids
}

func TestIdempotencyKey(t *testing.T) {
	r := newRig(t, nil)
	first := r.do("POST", "/topics/t?key=k", "hi", withKey+"order 17")
	if done := into[api.Published](t, first, 200); done.Offset != 0 || first.header.Get(api.HeaderIdempotencyReplayed) != "" {
		t.Fatalf("%s %v", first, first.header)
	}
	again := r.do("POST", "/topics/t?key=k&timeout=3s", "hi", withKey+"order 17", "traceparent: 00-1-2-01")
	if again.status != 200 || string(again.body) != string(first.body) || again.header.Get(api.HeaderIdempotencyReplayed) != "true" {
		t.Errorf("%s %v, want %s", again, again.header, first)
	}
	for name, a := range map[string]answer{
		"body":  r.do("POST", "/topics/t?key=k", "ho", withKey+"order 17"),
		"topic": r.do("POST", "/topics/one?key=k", "hi", withKey+"order 17"),
		"key":   r.do("POST", "/topics/t", "hi", withKey+"order 17"),
		"ack":   r.do("POST", "/topics/t?key=k&ack=leader", "hi", withKey+"order 17"),
		"batch": r.do("POST", "/topics/t/batch", `{"value":"hi","key":"k"}`, withKey+"order 17"),
	} {
		if a.status != 409 || a.code() != api.CodeIdempotencyConflict || a.header.Get(api.HeaderIdempotencyReplayed) != "" {
			t.Errorf("another %s: %s", name, a)
		}
	}
	for _, wrong := range []string{withKey, withKey + strings.Repeat("k", 256)} {
		if a := r.do("POST", "/topics/t", "hi", wrong); a.code() != api.CodeBadRequest {
			t.Errorf("%.40q: %s", wrong, a)
		}
	}
	if a := r.do("POST", "/topics/t", "hi", withKey+"a", withKey+"b"); a.code() != api.CodeBadRequest {
		t.Errorf("two keys: %s", a)
	}
	if a := r.do("POST", "/topics/nope", "hi", withKey+"a"); a.code() != api.CodeTopicNotFound {
		t.Errorf("unknown topic: %s", a)
	}

	lines := `{"value":"a","key":"x"}` + "\n" + `{"value":"b"}` + "\n" + `{"value":"c","partition":3}`
	batch := r.do("POST", "/topics/t/batch", lines, withKey+"batch")
	if got := into[api.BatchPublished](t, batch, 200); got.Written != 3 {
		t.Fatalf("%+v", got)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	array := "[" + strings.ReplaceAll(lines, "\n", ",") + "]" // the same messages
	if a := r.do("POST", "/topics/t/batch", array, withKey+"batch"); a.status != 200 || string(a.body) != string(batch.body) || a.header.Get(api.HeaderIdempotencyReplayed) != "true" {
		t.Errorf("%s %v, want %s", a, a.header, batch)
	}
	ids := map[string]bool{}
	for p := range 4 {
		for _, id := range r.idsOf("t", p) {
			if ids[id] {
				t.Errorf("%s is there twice", id)
			}
			ids[id] = true
		}
	}
	if len(ids) != 4 {
		t.Errorf("%d records, want 4: %v", len(ids), ids)
	}
	if st := into[Status](t, r.do("GET", "/status", ""), 200); st.Idempotency.Keys != 2 || st.Idempotency.Open != 0 {
		t.Errorf("status: %+v", st.Idempotency)
	}
}

// The answer is lost on the way: the repeat learns where the record is, and the
// broker has it once.
func TestRepeatAfter504(t *testing.T) {
	for _, ack := range []string{"all", "leader"} {
		t.Run(ack, func(t *testing.T) {
			r := newRig(t, nil)
			into[api.Published](t, r.do("POST", "/topics/one?ack="+ack, "first"), 200)
			hold, held := make(chan struct{}), make(chan struct{}, 1)
			r.cluster.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
				held <- struct{}{}
				<-hold
				return nil, nil, false
			})
			path := "/topics/one?ack=" + ack + "&timeout="
			if a := r.do("POST", path+"300ms", "second", withKey+"k"); a.status != 504 {
				t.Fatalf("got %s", a)
			}
			<-held
			if a := r.do("POST", path+"300ms", "second", withKey+"k"); a.status != 504 {
				t.Fatalf("got %s", a)
			}
			close(hold)
			a := r.do("POST", path+"20s", "second", withKey+"k")
			if done := into[api.Published](t, a, 200); done.Offset != 1 || a.header.Get(api.HeaderIdempotencyReplayed) != "true" {
				t.Errorf("%s %v", a, a.header)
			}
			if n := len(r.peek("one", 0)); n != 2 {
				t.Errorf("%d records", n)
			}
		})
	}
}

// With ack=leader a connection that ends leaves the fate to be looked for.
func TestRepeatAfterALostConnection(t *testing.T) {
	r := newRig(t, nil)
	into[api.Published](t, r.do("POST", "/topics/one?ack=leader", "first"), 200)
	r.cluster.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		return nil, errors.New("cut the connection"), true
	})
	if a := r.do("POST", "/topics/one?ack=leader", "second", withKey+"k"); a.status != 504 {
		t.Fatalf("got %s", a)
	}
	a := r.do("POST", "/topics/one?ack=leader", "second", withKey+"k")
	if done := into[api.Published](t, a, 200); done.Offset != 1 || a.header.Get(api.HeaderIdempotencyReplayed) != "" {
		t.Errorf("%s %v", a, a.header)
	}
	if n := len(r.peek("one", 0)); n != 2 {
		t.Errorf("%d records", n)
	}
}

// A sidecar that is killed while a request is on its way leaves its folder as it
// was then. The next one must find out what became of the request.
func TestRepeatAfterAKill(t *testing.T) {
	for name, written := range map[string]bool{"it was written": true, "it was not": false} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			into[api.Published](t, r.do("POST", "/topics/one", "first"), 200)
			hold, held := make(chan struct{}), make(chan struct{}, 1)
			var first, cut atomic.Bool
			r.cluster.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
				r.cluster.KeepControl()
				if !first.Swap(true) {
					held <- struct{}{}
					<-hold
				}
				if cut.Load() {
					return nil, errors.New("cut the connection"), true
				}
				return nil, nil, false
			})
			answered := make(chan answer, 1)
			go func() { answered <- r.do("POST", "/topics/one?timeout=1s", "second", withKey+"k") }()
			<-held
			folder := t.TempDir()
			if err := os.CopyFS(folder, os.DirFS(r.cfg.DataDir)); err != nil {
				t.Fatal(err)
			}
			cut.Store(!written)
			close(hold)
			<-answered // nobody got it
			r.cfg.DrainTimeout = 100 * time.Millisecond
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
			cut.Store(false)
			r.cfg.DataDir, r.cfg.DrainTimeout = folder, 5*time.Second
			r.start()
			a := r.do("POST", "/topics/one", "second", withKey+"k")
			done := into[api.Published](t, a, 200)
			replayed := a.header.Get(api.HeaderIdempotencyReplayed) == "true"
			if done.Offset != 1 || replayed != written {
				t.Errorf("%s, replayed %v", a, replayed)
			}
			if ms := r.peek("one", 0); len(ms) != 2 || ms[1].Timestamp != done.Timestamp {
				t.Errorf("%d records, answered %s", len(ms), a)
			}
			if got := r.do("GET", "/metrics", ""); !strings.Contains(string(got.body), fmt.Sprintf(`sidestream_idempotency_settled_records_total{fate="%s"} 1`, map[bool]string{true: "written", false: "absent"}[written])) {
				t.Error("the metrics do not tell it")
			}
		})
	}
}
