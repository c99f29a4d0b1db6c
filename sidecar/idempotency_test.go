package sidecar

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"slices"
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

// A repeat gets the id of the same spooled message: at once, after it is written,
// and after a crash between the spool's sync and the note of its answer, while it
// waits and once it is written.
func TestRepeatIntoTheSpool(t *testing.T) {
	r := newRig(t, nil)
	into[api.Published](t, r.do("POST", "/topics/one?ack=spool", "0"), 202) // the topic is known from then on
	for end := time.Now().Add(20 * time.Second); r.sidecar.spool.Status().Pending > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	there := r.cfg.Kafka.Bootstrap
	r.cfg.Kafka.Bootstrap = []string{"127.0.0.1:1"} // the brokers are away
	r.start()
	first := r.do("POST", "/topics/one?ack=spool", "1", withKey+"k")
	done := into[api.Published](t, first, 202)
	lines := `{"value":"2"}` + "\n" + `{"value":"3","key":"x"}`
	batch := r.do("POST", "/topics/one/batch?ack=spool", lines, withKey+"b")
	into[api.BatchPublished](t, batch, 202)
	again := r.do("POST", "/topics/one?ack=spool", "1", withKey+"k")
	if again.status != 202 || string(again.body) != string(first.body) || again.header.Get(api.HeaderIdempotencyReplayed) != "true" {
		t.Errorf("at once: %s, want %s", again, first)
	}
	whole, cut := t.TempDir(), t.TempDir()
	for _, dir := range []string{whole, cut} {
		if err := os.CopyFS(dir, os.DirFS(r.cfg.DataDir)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	// The journal as a crash may leave it: the intents without the fates.
	loseFates(t, cut+"/idempotency/00000000000000000000.log", 1, 3)

	r.cfg.DataDir = cut
	r.start()
	lost := r.do("POST", "/topics/one?ack=spool", "1", withKey+"k")
	if got := into[api.Published](t, lost, 202); got != done || lost.header.Get(api.HeaderIdempotencyReplayed) != "true" {
		t.Errorf("after a crash: %s, want %s", lost, first)
	}
	if got := r.do("POST", "/topics/one/batch?ack=spool", lines, withKey+"b"); got.status != 202 || string(got.body) != string(batch.body) {
		t.Errorf("after a crash: %s, want %s", got, batch)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}

	r.cfg.DataDir, r.cfg.Kafka.Bootstrap = whole, there
	r.start()
	if ev := r.spooled(done.SpoolID); ev.State != api.SpoolWritten {
		t.Fatalf("%+v", ev)
	}
	for _, x := range []struct{ path, body, key, want string }{
		{"/topics/one?ack=spool", "1", "k", string(first.body)},
		{"/topics/one/batch?ack=spool", lines, "b", string(batch.body)},
	} {
		if got := r.do("POST", x.path, x.body, withKey+x.key); got.status != 202 || string(got.body) != x.want {
			t.Errorf("once it is written: %s, want %s", got, x.want)
		}
	}
	if ms := r.peek("one", 0); len(ms) != 4 {
		t.Errorf("%d records, want 4", len(ms))
	}
}

// loseFates takes batches out of a journal, by number, and all that follow the
// last of them; the others are numbered anew.
func loseFates(t *testing.T, name string, lost ...int) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var kept []byte
	n, next := 0, uint64(0)
	for len(b) > 0 {
		size := 12 + int(binary.BigEndian.Uint32(b[8:])) // Kafka protocol guide, RecordBatch
		if !slices.Contains(lost, n) {
			binary.BigEndian.PutUint64(b, next)
			kept = append(kept, b[:size]...)
			next++
		}
		b = b[size:]
		n++
	}
	if n != lost[len(lost)-1]+1 {
		t.Fatalf("the journal has %d notes", n)
	}
	if err := os.WriteFile(name, kept, 0o600); err != nil {
		t.Fatal(err)
	}
}
