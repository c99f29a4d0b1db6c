package spool

import (
	"bytes"
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

func TestASpooledMessageIsWritten(t *testing.T) {
	r := newRig(t, nil)
	at := time.UnixMilli(1234567890123)
	m := publish.Message{Key: []byte("k\x00\xff"), Value: []byte("v\x00\xfe"), Timestamp: at, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("1")}, {Key: "h", Value: nil}}}
	done, err := r.Publish(t.Context(), "t", m, publish.Options{Ack: publish.AckSpool})
	if err != nil {
		t.Fatal(err)
	}
	want := publish.PartitionOf(m.Key, 4)
	if done.Offset != -1 || done.Partition != want || done.Timestamp != at.UnixMilli() || done.Topic != "t" {
		t.Errorf("%+v", done)
	}
	r.settled()
	ev, err := r.Event(done.SpoolID)
	if err != nil || ev.State != api.SpoolWritten || ev.Offset != 0 || ev.Partition != want || ev.Topic != "t" {
		t.Errorf("%+v, %v", ev, err)
	}
	got := r.b.topics["t"].parts[want].recs[0]
	if !bytes.Equal(got.Key, m.Key) || !bytes.Equal(got.Value, m.Value) || !got.Timestamp.Equal(at) || len(got.Headers) != 3 ||
		got.Headers[1].Value != nil || idHeader(got) != done.SpoolID {
		t.Errorf("%+v", got)
	}
}

func TestTombstonesAndEmptyMessagesPassTheSpool(t *testing.T) {
	r := newRig(t, nil)
	p := int32(0)
	for _, m := range []publish.Message{{Key: []byte("k"), Partition: &p}, {Key: []byte{}, Value: []byte{}, Partition: &p}} {
		if _, err := r.Publish(t.Context(), "t", m, publish.Options{Ack: publish.AckSpool}); err != nil {
			t.Fatal(err)
		}
	}
	e, err := parseEntry(firstEntry(t, r.Spool, 0), true)
	if err != nil || e.events() != 1 {
		t.Fatalf("%+v, %v", e, err)
	}
	if err := e.each(-1, func(ev event) {
		if ev.value != nil || string(ev.key) != "k" {
			t.Errorf("%+v", ev)
		}
	}); err != nil {
		t.Error(err)
	}
	e, _ = parseEntry(firstEntry(t, r.Spool, e.next), true)
	_ = e.each(-1, func(ev event) {
		if ev.value == nil || ev.key == nil {
			t.Errorf("%+v", ev)
		}
	})
}

func firstEntry(t *testing.T, s *Spool, at int64) []byte {
	t.Helper()
	slice, err := s.journal.Read(at, 0, s.journal.EndOffset())
	if err != nil {
		t.Fatal(err)
	}
	defer slice.Release()
	b, err := slice.ReadAll()
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestABatchKeepsItsOrder(t *testing.T) {
	r := newRig(t, nil)
	ms := make([]publish.Message, 5000)
	for i := range ms {
		ms[i] = publish.Message{Key: fmt.Append(nil, i%7), Value: fmt.Append(nil, i)}
	}
	results, err := r.PublishBatch(t.Context(), "t", ms, publish.Options{Ack: publish.AckSpool})
	if err != nil {
		t.Fatal(err)
	}
	r.settled()
	ids := map[string]bool{}
	for i, x := range results {
		ev, err := r.Event(x.SpoolID)
		if err != nil || ev.State != api.SpoolWritten || ev.Partition != x.Partition || ids[x.SpoolID] {
			t.Fatalf("message %d: %+v, %v", i, ev, err)
		}
		ids[x.SpoolID] = true
		if got := r.b.values("t", int(ev.Partition))[ev.Offset]; got != string(ms[i].Value) {
			t.Fatalf("message %d: at its offset is %q", i, got)
		}
	}
	for p := range 4 {
		last := map[int]int{}
		for _, v := range r.b.values("t", p) {
			var i int
			_, _ = fmt.Sscan(v, &i)
			if i <= last[i%7] && last[i%7] > 0 {
				t.Fatalf("partition %d: %d after %d", p, i, last[i%7])
			}
			last[i%7] = i
		}
	}
}

// Messages without a key are spread over the partitions that can be written to.
func TestMessagesWithoutAKeyAreSpread(t *testing.T) {
	r := newRig(t, nil)
	r.b.set(func() { r.b.topics["t"].parts[2].away = true })
	seen := map[int32]int{}
	for range 60 {
		done, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("v")}, publish.Options{Ack: publish.AckSpool})
		if err != nil {
			t.Fatal(err)
		}
		seen[done.Partition]++
	}
	if seen[2] != 0 || len(seen) != 3 || slices.Min([]int{seen[0], seen[1], seen[3]}) < 10 {
		t.Errorf("%v", seen)
	}
}

func TestBrokersAway(t *testing.T) {
	r := newRig(t, nil)
	_, err := r.Publish(t.Context(), "nope", publish.Message{}, publish.Options{Ack: publish.AckSpool})
	if codeOf(err) != api.CodeTopicNotFound {
		t.Errorf("a topic that is not there: %v", err)
	}
	r.spool(0, "0")
	r.settled()
	r.b.set(func() { r.b.down = true })
	var ids []string
	for i := range 100 {
		ids = append(ids, r.spool(int32(i%4), fmt.Sprint(i+1)))
	}
	if _, err := r.Publish(t.Context(), "new", publish.Message{}, publish.Options{Ack: publish.AckSpool}); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("a topic that is not remembered: %v", err)
	}
	if ev, err := r.Event(ids[50]); err != nil || ev.State != api.SpoolPending || ev.Topic != "t" || ev.Partition != 2 || ev.Offset != -1 {
		t.Errorf("%+v, %v", ev, err)
	}
	r.restart() // with brokers still away
	ids = append(ids, r.spool(0, "101"))
	if st := r.Status(); st.Pending != 101 || st.Partitions != 4 {
		t.Errorf("%+v", st)
	}
	r.b.set(func() { r.b.down = false })
	r.settled()
	for p := range 4 {
		values := r.b.values("t", p)
		if !slices.IsSortedFunc(values, func(a, b string) int { return atoi(a) - atoi(b) }) {
			t.Errorf("partition %d: %v", p, values)
		}
	}
	if n := len(r.b.values("t", 0)) + len(r.b.values("t", 1)) + len(r.b.values("t", 2)) + len(r.b.values("t", 3)); n != 102 {
		t.Errorf("%d messages are written, want 102", n)
	}
	for _, id := range ids {
		if ev, err := r.Event(id); err != nil || ev.State != api.SpoolWritten {
			t.Errorf("%+v, %v", ev, err)
		}
	}
	nonce := r.nonce.of(1)
	for _, id := range []string{"", "x", nonce, nonce + "-0", nonce + "--5", nonce + "-zzzzzz", nonce + "-1 ", strings.ToUpper(ids[0]), nonce + "-01"} {
		if ev, err := r.Event(id); codeOf(err) != api.CodeNotFound {
			t.Errorf("%q: %+v, %v", id, ev, err)
		}
	}
}

func atoi(s string) (n int) {
	_, _ = fmt.Sscan(s, &n)
	return n
}

// A request whose answer was lost is not sent again when its records are there.
func TestALostAnswerWritesOnce(t *testing.T) {
	r := newRig(t, nil)
	lost := 0
	r.b.set(func() {
		r.b.lose = func() bool { lost++; return lost%2 == 1 }
	})
	for i := range 50 {
		r.spool(int32(i%2), fmt.Sprint(i))
	}
	r.settled()
	for p := range 2 {
		values := r.b.values("t", p)
		if len(values) != 25 || !slices.IsSortedFunc(values, func(a, b string) int { return atoi(a) - atoi(b) }) {
			t.Errorf("partition %d: %v", p, values)
		}
	}
	if lost == 0 || r.b.finds == 0 {
		t.Errorf("%d answers lost, looked %d times", lost, r.b.finds)
	}
}

// The edge that is documented: a request that a broker holds back for longer than
// the next process looks for it, and takes then, is there twice, with one id.
func TestARequestThatIsHeldBackIsThereTwice(t *testing.T) {
	r := newRig(t, nil)
	r.b.set(func() { r.b.hang = make(chan struct{}) })
	id := r.spool(0, "v")
	for end := time.Now().Add(10 * time.Second); r.Status().AwayPartitions == 0; time.Sleep(time.Millisecond) { // it was sent
		if time.Now().After(end) {
			t.Fatalf("%+v", r.Status())
		}
	}
	held := &kgo.Record{Topic: "t", Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "sidestream-id", Value: []byte(id)}}}
	r.close() // as good as killed: it knows no more than a kill leaves
	r.b.set(func() { r.b.hang = nil })
	r.open()
	r.settled()
	if r.b.finds == 0 {
		t.Error("it was not looked for")
	}
	(&sender{b: r.b}).Send([]*kgo.Record{held})
	recs := r.b.topics["t"].parts[0].recs
	if len(recs) != 2 || idHeader(recs[0]) != id || idHeader(recs[1]) != id {
		t.Errorf("%v", r.b.values("t", 0))
	}
}

// A request that arrives while it is looked for is found by the second look.
func TestARequestThatArrivesLate(t *testing.T) {
	r := newRig(t, func(c *Config) { c.LookAgain = 300 * time.Millisecond })
	r.b.set(func() { r.b.hang = make(chan struct{}) })
	id := r.spool(0, "v")
	for end := time.Now().Add(10 * time.Second); r.Status().AwayPartitions == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", r.Status())
		}
	}
	r.close()
	r.b.set(func() { r.b.hang = nil })
	r.open()
	for looked := 0; looked == 0; time.Sleep(time.Millisecond) {
		r.b.set(func() { looked = r.b.finds })
	}
	(&sender{b: r.b}).Send([]*kgo.Record{{Topic: "t", Value: []byte("v"), Headers: []kgo.RecordHeader{{Key: "sidestream-id", Value: []byte(id)}}}})
	r.settled()
	if got := r.b.values("t", 0); len(got) != 1 {
		t.Errorf("%v", got)
	}
}

// One partition's broker is away: the others go on, live messages for it are
// refused at once, and those for others pass.
func TestOnePartitionAway(t *testing.T) {
	r := newRig(t, nil)
	r.b.set(func() { r.b.topics["t"].parts[1].away = true })
	id := r.spool(1, "first")
	for i := range 20 {
		r.spool(0, fmt.Sprint(i))
	}
	for end := time.Now().Add(10 * time.Second); r.Status().Pending > 1 || r.Status().AwayPartitions == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", r.Status())
		}
	}
	p := int32(1)
	begun := time.Now()
	_, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("live"), Partition: &p}, publish.Options{Timeout: 10 * time.Second})
	if codeOf(err) != api.CodeBrokersUnavailable || !strings.Contains(err.Error(), "spool") || time.Since(begun) > 5*time.Second {
		t.Errorf("%v after %s", err, time.Since(begun))
	}
	zero := int32(0)
	if _, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("live"), Partition: &zero}, publish.Options{}); err != nil {
		t.Errorf("another partition: %v", err)
	}
	if _, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("live")}, publish.Options{}); err != nil {
		t.Errorf("without a key: %v", err)
	}
	if st := r.Status(); len(st.Away) != 1 || st.Away[0].Partition != 1 || st.Away[0].Pending != 1 || st.Away[0].Cause == "" || st.OldestSeconds <= 0 {
		t.Errorf("%+v", st)
	}
	r.b.set(func() { r.b.topics["t"].parts[1].away = false })
	r.settled()
	if ev, _ := r.Event(id); ev.State != api.SpoolWritten {
		t.Errorf("%+v", ev)
	}
	if _, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("live"), Partition: &p}, publish.Options{}); err != nil {
		t.Errorf("after it came back: %v", err)
	}
	if got := fmt.Sprint(r.b.values("t", 1)); got != "[first live]" {
		t.Error(got)
	}
}

// A live message with a key comes after what was spooled before it, and one
// without a key does not wait.
func TestLiveMessagesQueueBehindSpooledOnes(t *testing.T) {
	r := newRig(t, func(c *Config) { c.SendWait = 10 * time.Second })
	hang := make(chan struct{})
	r.b.set(func() { r.b.hang = hang })
	key := []byte("a")
	p := publish.PartitionOf(key, 4)
	for i := range 10 {
		r.spool(p, fmt.Sprint(i))
	}
	done := make(chan error, 1)
	go func() {
		_, err := r.Publish(context.Background(), "t", publish.Message{Key: key, Value: []byte("live")}, publish.Options{Timeout: 10 * time.Second})
		done <- err
	}()
	late := time.Now()
	_, err := r.PublishBatch(t.Context(), "t", []publish.Message{{Value: []byte("x"), Partition: &p}}, publish.Options{Timeout: 50 * time.Millisecond})
	if codeOf(err) != api.CodeBrokersUnavailable || !strings.Contains(err.Error(), "timeout 50ms") || time.Since(late) > 5*time.Second {
		t.Errorf("%v", err)
	}
	select {
	case err := <-done:
		t.Fatalf("did not wait: %v", err)
	default:
	}
	r.b.set(func() { r.b.hang = nil })
	close(hang)
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if got := fmt.Sprint(r.b.values("t", int(p))); got != "[0 1 2 3 4 5 6 7 8 9 live]" {
		t.Error(got)
	}
}

func TestFallback(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Fallback = true })
	r.spool(0, "0")
	r.settled()
	r.b.set(func() { r.b.down = true })
	m := publish.Message{Key: []byte("k"), Value: []byte("v")}
	if _, err := r.Publish(t.Context(), "t", m, publish.Options{}); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("a caller that does not allow it: %v", err)
	}
	done, err := r.Publish(t.Context(), "t", m, publish.Options{MaySpool: true})
	if err != nil || done.SpoolID == "" {
		t.Fatalf("%+v, %v", done, err)
	}
	results, err := r.PublishBatch(t.Context(), "t", []publish.Message{m, {Value: []byte("w")}}, publish.Options{MaySpool: true})
	if err != nil || results[0].SpoolID == "" || results[1].SpoolID == "" {
		t.Fatalf("%+v, %v", results, err)
	}
	r.b.set(func() { r.b.down = false })
	r.settled()
	if got := r.b.values("t", int(done.Partition)); len(got) < 2 {
		t.Errorf("%v", got)
	}

	off := newRig(t, nil)
	off.b.set(func() { off.b.down = true })
	if _, err := off.Publish(t.Context(), "t", m, publish.Options{MaySpool: true}); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("without the configuration: %v", err)
	}
}

// Of a batch for several partitions the spool takes what could not be written,
// except where a later message of the partition is written.
func TestFallbackOfPartOfABatch(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Fallback = true })
	r.spool(0, "0")
	r.settled()
	r.b.set(func() { r.b.topics["t"].parts[1].away = true })
	zero, one := int32(0), int32(1)
	results, err := r.PublishBatch(t.Context(), "t", []publish.Message{
		{Value: []byte("a"), Partition: &one}, {Value: []byte("b"), Partition: &zero}, {Value: []byte("c"), Partition: &one},
	}, publish.Options{MaySpool: true})
	if err != nil || results[0].SpoolID == "" || results[1].SpoolID != "" || results[1].Error != nil || results[2].SpoolID == "" {
		t.Fatalf("%+v, %v", results, err)
	}
	r.b.set(func() { r.b.topics["t"].parts[1].away = false })
	r.settled()
	if got := fmt.Sprint(r.b.values("t", 1)); got != "[a c]" {
		t.Error(got)
	}
	refused := []api.BatchResult{{Error: unavailable("")}, {Offset: 5}, {Error: unavailable("")}}
	got := r.takeRest(t.Context(), "t", []publish.Message{{Value: []byte("d"), Partition: &one}, {Value: []byte("e"), Partition: &one}, {Value: []byte("f"), Partition: &one}}, refused, publish.Options{MaySpool: true}, false)
	if got[0].Error == nil || got[1].Offset != 5 || got[2].SpoolID == "" {
		t.Errorf("%+v", got)
	}
}

func TestWhatCanNeverBeWrittenIsRejected(t *testing.T) {
	r := newRig(t, nil)
	r.b.set(func() {
		r.b.refuse = func(rec *kgo.Record) error {
			if strings.HasPrefix(string(rec.Value), "bad") {
				return kerr.InvalidRecord
			}
			return nil
		}
	})
	zero := int32(0)
	var ms []publish.Message
	for i := range 30 {
		v := fmt.Sprint("good", i)
		if i%10 == 3 {
			v = fmt.Sprint("bad", i)
		}
		ms = append(ms, publish.Message{Value: []byte(v), Key: []byte("\xff"), Partition: &zero, Headers: []kgo.RecordHeader{{Key: "h", Value: []byte("w")}}})
	}
	results, err := r.PublishBatch(t.Context(), "t", ms, publish.Options{Ack: publish.AckSpool})
	if err != nil {
		t.Fatal(err)
	}
	r.settled()
	values := r.b.values("t", 0)
	if len(values) != 27 || values[3] != "good4" {
		t.Errorf("%v", values)
	}
	for i, x := range results {
		ev, err := r.Event(x.SpoolID)
		if err != nil {
			t.Fatal(err)
		}
		if i%10 == 3 {
			if ev.State != api.SpoolRejected || ev.Error == nil || ev.Error.Code != api.CodeBadRecord || ev.Offset != -1 {
				t.Errorf("%+v, %v", ev, ev.Error)
			}
		} else if ev.State != api.SpoolWritten {
			t.Errorf("%+v", ev)
		}
	}
	lines := r.rejectLines()
	if len(lines) != 3 || *lines[0].Value != "bad3" || *lines[0].Key64 != "/w==" || lines[0].ID != results[3].SpoolID || lines[0].Topic != "t" ||
		lines[0].Error.Code != api.CodeBadRecord || len(lines[0].Headers) != 1 || *lines[0].Headers[0].Value != "w" {
		t.Errorf("%+v", lines)
	}
	// The file may be moved away at any time.
	if err := r.fs.Rename("spool/"+RejectsName, "spool/old"); err != nil {
		t.Fatal(err)
	}
	if ev, err := r.Event(results[3].SpoolID); err != nil || ev.State != api.SpoolRejected || ev.Error == nil {
		t.Errorf("%+v, %v", ev, err)
	}
}

// Topics that were never spooled for, only published to, are known in an outage:
// to those who ask for the spool, and to those who take it in place of a 503. So
// they are after a restart in the outage, and as they were last.
func TestPublishedTopicsAreRememberedForAnOutage(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Fallback = true })
	r.b.make("single", 3)
	r.b.make("batch", 5)
	r.b.make("failing", 2)
	r.b.set(func() {
		for _, p := range r.b.topics["failing"].parts {
			p.away = true
		}
	})
	m := publish.Message{Key: []byte("k"), Value: []byte("v")}
	if _, err := r.Publish(t.Context(), "single", m, publish.Options{}); err != nil {
		t.Fatal(err)
	}
	for _, topic := range []string{"batch", "failing"} {
		if _, err := r.PublishBatch(t.Context(), topic, []publish.Message{m, m}, publish.Options{}); err != nil {
			t.Fatal(err)
		}
	}
	remembered := func(topic string, partitions int32) func() bool {
		return func() bool { k, ok := r.memory.get(topic); return ok && k.Partitions == partitions }
	}
	r.until(remembered("single", 3))
	r.until(remembered("batch", 5))
	if _, ok := r.memory.get("failing"); ok {
		t.Error("a topic is remembered that took nothing")
	}
	r.b.make("batch", 6) // anew
	r.memory.mu.Lock()
	r.memory.topics["batch"].looked = time.Time{} // as if that were long ago
	r.memory.mu.Unlock()
	if _, err := r.Publish(t.Context(), "batch", m, publish.Options{}); err != nil {
		t.Fatal(err)
	}
	r.until(remembered("batch", 6))
	r.b.set(func() { r.b.down = true })
	r.restart()
	for topic, partitions := range map[string]int32{"single": 3, "batch": 6} {
		for _, o := range []publish.Options{{Ack: publish.AckSpool}, {MaySpool: true}} {
			done, err := r.Publish(t.Context(), topic, m, o)
			if err != nil || done.SpoolID == "" || done.Partition != publish.PartitionOf(m.Key, partitions) {
				t.Errorf("%s, %+v: %+v, %v", topic, o, done, err)
			}
		}
	}
	if _, err := r.Publish(t.Context(), "failing", m, publish.Options{Ack: publish.AckSpool}); codeOf(err) != api.CodeBrokersUnavailable {
		t.Errorf("a topic that nothing is known of: %v", err)
	}
	r.b.set(func() { r.b.down = false })
	r.settled()
}

func (r *rig) until(holds func() bool) {
	r.t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatal("it does not come about")
		}
	}
}

// A rejected message says what the topic wants, in the words of a direct post.
func TestRejectOfACompactedTopicAsksForAKey(t *testing.T) {
	r := newRig(t, nil)
	r.b.set(func() {
		r.b.refuse = func(rec *kgo.Record) error {
			if rec.Key == nil || string(rec.Value) == "odd" {
				return kerr.InvalidRecord
			}
			return nil
		}
		r.b.configs = map[string]map[string]string{"t": {"cleanup.policy": "compact,delete"}}
	})
	for value, want := range map[string]string{
		"without a key": publish.NeedsKey("t").Message,
		"odd":           "the broker refuses the message: INVALID_RECORD", // whatever is wrong with it, it is not that
	} {
		m := publish.Message{Value: []byte(value)}
		if value == "odd" {
			m.Key = []byte("k")
		}
		done, err := r.Publish(t.Context(), "t", m, publish.Options{Ack: publish.AckSpool})
		if err != nil {
			t.Fatal(err)
		}
		r.settled()
		ev, err := r.Event(done.SpoolID)
		if err != nil || ev.State != api.SpoolRejected || ev.Error.Code != api.CodeBadRecord || !strings.HasPrefix(ev.Error.Message, want) {
			t.Errorf("%s: %+v, %v, %v", value, ev, ev.Error, err)
		}
	}
}

func (r *rig) rejectLines() (lines []Rejected) {
	r.t.Helper()
	b, err := disk.ReadFile(r.fs, "spool/"+RejectsName)
	if err != nil {
		r.t.Fatal(err)
	}
	if err := ReadRejects(bytes.NewReader(b), func(x Rejected) error { lines = append(lines, x); return nil }); err != nil {
		r.t.Fatal(err)
	}
	return lines
}

// A topic that is deleted takes its spooled messages to the rejected ones, but
// only when that has been so for a while; one made anew under its name is another.
func TestDeletedTopics(t *testing.T) {
	for _, anew := range []bool{false, true} {
		r := newRig(t, nil)
		r.spool(0, "first")
		r.settled()
		r.b.set(func() { r.b.down = true })
		id := r.spool(0, "lost")
		gone := r.b.topics["t"]
		if anew {
			r.b.make("t", 4)
		} else {
			r.b.set(func() { delete(r.b.topics, "t") })
		}
		r.b.set(func() { r.b.down = false })
		time.Sleep(200 * time.Millisecond)
		if ev, err := r.Event(id); err != nil || ev.State != api.SpoolPending {
			t.Errorf("anew %v: at once: %+v, %v", anew, ev, err)
		}
		r.settled()
		if ev, err := r.Event(id); err != nil || ev.State != api.SpoolRejected || ev.Error.Code != api.CodeTopicNotFound {
			t.Errorf("anew %v: %+v, %v", anew, ev, err)
		}
		if lines := r.rejectLines(); len(lines) != 1 || *lines[0].Value != "lost" {
			t.Errorf("%+v", lines)
		}
		if len(gone.parts[0].recs) != 1 {
			t.Error("it was written all the same")
		}
	}
}

func TestSizesAndPartitionsAreChecked(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxMessageSize = 100 })
	nine := int32(9)
	for _, tt := range []struct {
		m    publish.Message
		one  api.Code
		many api.Code
	}{
		{publish.Message{Value: make([]byte, 101)}, api.CodeMessageTooLarge, api.CodeMessageTooLarge},
		{publish.Message{Partition: &nine}, api.CodePartitionNotFound, api.CodeBadRecord},
	} {
		if _, err := r.Publish(t.Context(), "t", tt.m, publish.Options{Ack: publish.AckSpool}); codeOf(err) != tt.one {
			t.Errorf("%v, want %s", err, tt.one)
		}
		_, err := r.PublishBatch(t.Context(), "t", []publish.Message{{}, tt.m}, publish.Options{Ack: publish.AckSpool})
		if codeOf(err) != tt.many || asError(err).Line != 2 {
			t.Errorf("%v, want %s of line 2", err, tt.many)
		}
	}
	if n := r.Status().Pending; n != 0 {
		t.Errorf("%d messages were taken", n)
	}
}

// A partition that always has something to send is as old as what waits, not as
// its first message was.
func TestAPartitionThatIsNeverIdleDoesNotAge(t *testing.T) {
	b := newBrokers(1)
	s, err := Open(DefaultConfig(), Deps{FS: disk.NewMem(), Dir: "spool", Next: &live{b: b}, Brokers: b, Sender: b.sender()})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = s.Close(t.Context()) }()
	if _, err := s.Publish(t.Context(), "t", publish.Message{Value: []byte("v")}, publish.Options{Ack: publish.AckSpool}); err != nil {
		t.Fatal(err)
	}
	raw := firstEntry(t, s, 0)
	e, err := parseEntry(raw, true)
	if err != nil {
		t.Fatal(err)
	}
	l := s.lanes[e.key]
	l.oldest = time.Now().Add(-time.Hour) // of one that was written meanwhile
	s.mu.Lock()
	s.give(l, e, raw)
	s.mu.Unlock()
	if at, any := s.oldest(); !any || time.Since(at) > time.Minute {
		t.Errorf("%v, %v", at, any)
	}
}

// Once the spool knows that nobody takes a topic's messages, those without a key
// are taken at once, where the publisher would try for its whole time.
func TestFallbackDoesNotTryAgainAndAgain(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Fallback = true })
	r.spool(0, "0")
	r.settled()
	r.b.set(func() { r.b.down = true })
	entered := 0
	o := publish.Options{MaySpool: true, Entered: func() { entered++ }}
	m := publish.Message{Value: []byte("v")}
	if done, err := r.Publish(t.Context(), "t", m, o); err != nil || done.SpoolID == "" {
		t.Fatalf("%+v, %v", done, err)
	}
	for end := time.Now().Add(10 * time.Second); r.Status().AwayPartitions == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", r.Status())
		}
	}
	before := r.live.calls
	for range 10 {
		if done, err := r.Publish(t.Context(), "t", m, o); err != nil || done.SpoolID == "" {
			t.Fatalf("%+v, %v", done, err)
		}
	}
	if r.live.calls > before+9 { // a partition that has just got its first message is not known as away yet
		t.Errorf("the brokers were tried %d times", r.live.calls-before)
	}
	if entered != 11 {
		t.Errorf("told %d times of 11 that the messages have their places", entered)
	}
	r.b.set(func() { r.b.down = false })
	r.settled()
	if _, err := r.Publish(t.Context(), "t", m, o); err != nil || r.live.calls == before {
		t.Errorf("%v", err)
	}
}
