package sidecar

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// spooled waits for what becomes of a spooled message.
func (r *rig) spooled(id string) (ev api.SpoolEvent) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		a := r.do("GET", "/spool/"+id, "")
		ev = api.SpoolEvent{}
		if a.status != 200 || json.Unmarshal(a.body, &ev) != nil {
			r.t.Fatalf("%s: %v", id, a)
		}
		if ev.State != api.SpoolPending {
			return ev
		}
	}
	r.t.Fatalf("%+v", ev)
	return ev
}

func TestSpoolOverHTTP(t *testing.T) {
	r := newRig(t, nil)
	a := r.do("POST", "/topics/one?ack=spool&key=k", "hello")
	var done api.Published
	if err := json.Unmarshal(a.body, &done); err != nil || a.status != http.StatusAccepted || done.SpoolID == "" || done.Offset != -1 {
		t.Fatalf("%v", a)
	}
	ev := r.spooled(done.SpoolID)
	if ev.State != api.SpoolWritten || ev.Topic != "one" || ev.Offset != 0 {
		t.Errorf("%+v", ev)
	}
	if got := r.do("GET", "/topics/one/partitions/0/messages?offset=0", ""); !strings.Contains(string(got.body), "hello") || !strings.Contains(string(got.body), done.SpoolID) {
		t.Errorf("%v", got)
	}
	a = r.do("POST", "/topics/t/batch?ack=spool&lines=1", "a\nb\nc\n")
	var batch api.BatchPublished
	if err := json.Unmarshal(a.body, &batch); err != nil || a.status != http.StatusAccepted || batch.Spooled != 3 || batch.Written != 0 {
		t.Fatalf("%v", a)
	}
	for _, x := range batch.Results {
		if ev := r.spooled(x.SpoolID); ev.State != api.SpoolWritten || ev.Partition != x.Partition {
			t.Errorf("%+v", ev)
		}
	}
	if a := r.do("POST", "/topics/nope?ack=spool", "x"); a.code() != api.CodeTopicNotFound {
		t.Errorf("%v", a)
	}
	if a := r.do("GET", "/spool", ""); a.status != 200 || !strings.Contains(string(a.body), `"pending":0`) {
		t.Errorf("%v", a)
	}
	if a := r.do("GET", "/metrics", ""); !strings.Contains(string(a.body), "sidestream_spool_accepted_records_total 4") {
		t.Error("the metrics lack the messages")
	}
}

// What was answered 202 while the brokers were away is written after restarts of
// the sidecar, and messages of callers who allow it go the same way.
func TestSpoolWhileBrokersAreAway(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Spool.Fallback = true })
	if a := r.do("POST", "/topics/one?ack=spool", "0"); a.status != http.StatusAccepted {
		t.Fatalf("%v", a)
	}
	for end := time.Now().Add(10 * time.Second); r.sidecar.spool.Status().Pending > 0 && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	there := r.cfg.Kafka.Bootstrap
	r.cfg.Kafka.Bootstrap = []string{"127.0.0.1:1"}
	r.start()
	var ids []string
	for i := range 3 {
		a := r.do("POST", "/topics/one?ack=spool", fmt.Sprint(i+1))
		var done api.Published
		if json.Unmarshal(a.body, &done) != nil || a.status != http.StatusAccepted {
			t.Fatalf("%v", a)
		}
		ids = append(ids, done.SpoolID)
	}
	if a := r.do("POST", "/topics/one?key=k&timeout=2s", "4"); a.code() != api.CodeBrokersUnavailable {
		t.Errorf("%v", a)
	}
	a := r.do("POST", "/topics/one?key=k&timeout=2s", "4", "Prefer: foo, respond-async;x=1")
	if a.status != http.StatusAccepted {
		t.Errorf("%v", a)
	}
	if a := r.do("GET", "/spool/"+ids[1], ""); !strings.Contains(string(a.body), `"pending"`) {
		t.Errorf("%v", a)
	}
	if a := r.do("GET", "/status", ""); !strings.Contains(a.compact(), `"pending":4`) {
		t.Errorf("%v", a)
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.cfg.Kafka.Bootstrap = there
	r.start()
	for i, id := range ids {
		if ev := r.spooled(id); ev.State != api.SpoolWritten || ev.Offset != int64(i+1) {
			t.Errorf("%+v", ev)
		}
	}
	got := r.do("POST", "/topics/one?key=k", "5") // behind the one that fell back
	var done api.Published
	if json.Unmarshal(got.body, &done) != nil || done.Offset != 5 {
		t.Errorf("%v", got)
	}
}

// spoolKeyed takes a message into the spool whose key belongs to a partition.
func (r *rig) spoolKeyed(topic string, partition, partitions int32, value string) (id string) {
	r.t.Helper()
	for i := 0; ; i++ {
		key := fmt.Sprint("k", i)
		if publish.PartitionOf([]byte(key), partitions) != partition {
			continue
		}
		a := r.do("POST", "/topics/"+topic+"?ack=spool&key="+key, value)
		var done api.Published
		if json.Unmarshal(a.body, &done) != nil || a.status != http.StatusAccepted || done.Partition != partition {
			r.t.Fatalf("%v", a)
		}
		return done.SpoolID
	}
}

// A topic is deleted and made anew under its name, with more partitions, and then
// gets more of them: what is spooled for the new ones is written, without a
// restart, and messages that are sent at once come behind it.
func TestSpoolForATopicMadeAnew(t *testing.T) {
	r := newRig(t, nil)
	r.do("PUT", "/topics/va", `{"partitions":1}`)
	written := func(id string, partition int32, offset int64) {
		t.Helper()
		if ev := r.spooled(id); ev.State != api.SpoolWritten || ev.Partition != partition || ev.Offset != offset {
			t.Fatalf("%+v", ev)
		}
	}
	written(r.spoolKeyed("va", 0, 1, "a"), 0, 0)
	admin := r.sidecar.up.Admin()
	if _, err := admin.DeleteTopic(t.Context(), "va"); err != nil {
		t.Fatal(err)
	}
	r.until("deleted", func() bool { return r.do("GET", "/topics/va", "").status == 404 })
	r.do("PUT", "/topics/va", `{"partitions":4}`)
	r.until("made anew", func() bool { return strings.Contains(string(r.do("GET", "/topics/va", "").body), `"partition":3`) })
	written(r.spoolKeyed("va", 2, 4, "b"), 2, 0)
	written(r.spoolKeyed("va", 0, 4, "c"), 0, 0)
	if _, err := admin.CreatePartitions(t.Context(), 4, "va"); err != nil {
		t.Fatal(err)
	}
	r.until("more partitions", func() bool { return strings.Contains(string(r.do("GET", "/topics/va", "").body), `"partition":7`) })
	written(r.spoolKeyed("va", 6, 8, "d"), 6, 0)
	into[api.Published](t, r.do("POST", "/topics/va?partition=6&key=k&timeout=5s", "e"), 200)
	written(r.spoolKeyed("va", 6, 8, "f"), 6, 2)
}

// A topic that had only ordinary posts so far is taken into the spool in the
// first outage.
func TestSpoolKnowsTopicsOfOrdinaryPosts(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Spool.Fallback = true })
	into[api.Published](t, r.do("POST", "/topics/t?key=a", "1"), 200)
	r.until("remembered", func() bool {
		b, _ := os.ReadFile(filepath.Join(r.cfg.DataDir, "spool", "topics.json"))
		return strings.Contains(string(b), `"name":"t"`)
	})
	r.cluster.Close()
	for _, c := range []struct{ path, header string }{{"/topics/t?ack=spool&key=a", "X: x"}, {"/topics/t?key=a&timeout=3s", "Prefer: respond-async"}} {
		if a := r.do("POST", c.path, "2", c.header); a.status != http.StatusAccepted {
			t.Errorf("%s: %v", c.path, a)
		}
	}
}
