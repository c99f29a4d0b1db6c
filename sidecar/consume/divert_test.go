package consume

import (
	"context"
	"encoding/binary"
	"hash/crc32"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// failing makes a group whose messages die at the second attempt.
func (h *host) failing(group string, c api.GroupConfig) {
	h.lab.t.Helper()
	two := 2
	c.MaxAttempts = &two
	if _, err := h.m.Configure(h.lab.t.Context(), group, c); err != nil {
		h.lab.t.Fatal(err)
	}
}

// failUntil nacks the message at offset 0 until stop.
func (h *host) failUntil(group, topic, why string, stop func() bool) {
	h.lab.t.Helper()
	eventually(h.lab.t, "the messages die", func() bool {
		d := h.pull(PullRequest{Group: group, Topic: topic, Max: 1, Wait: 20 * time.Millisecond})
		if len(d.Messages) > 0 && d.Messages[0].Offset > 0 {
			d.Return()
		} else if len(d.Messages) > 0 {
			if _, err := h.m.Nack(h.lab.t.Context(), group, topic, api.Receipts{Receipts: receiptsOf(d), Error: why}); err != nil {
				h.lab.t.Fatal(err)
			}
		}
		return stop()
	})
}

// letters are all that are among a group's dead letters from a topic.
func (h *host) letters(group, topic string) []api.DeadLetter {
	h.lab.t.Helper()
	var all []api.DeadLetter
	req := DeadRequest{Group: group, Topic: topic, Max: 2, All: true}
	for {
		d, err := h.m.Dead(h.lab.t.Context(), req)
		if err != nil {
			h.lab.t.Fatal(err)
		}
		if len(d.Letters) > 2 {
			h.lab.t.Fatalf("%d letters", len(d.Letters))
		}
		all = append(all, d.Letters...)
		if req.After = d.Next; req.After == "" {
			return all
		}
	}
}

func (h *host) position(group, topic string) int64 {
	h.lab.t.Helper()
	o, err := h.m.Offsets(h.lab.t.Context(), group, topic)
	if err != nil {
		h.lab.t.Fatal(err)
	}
	return o.Partitions[0].Position
}

// A message that failed as often as the group allows goes to the dead letters
// with all that it had, and those behind it are delivered.
func TestDeadLetter(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	ts := time.UnixMilli(1_700_000_000_000)
	err := l.prod.ProduceSync(t.Context(), &kgo.Record{
		Topic: "jobs", Key: []byte("k"), Value: []byte("poison"), Timestamp: ts, Headers: []kgo.RecordHeader{{Key: "trace", Value: []byte("\xff")}},
	}).FirstErr()
	if err != nil {
		t.Fatal(err)
	}
	l.produce("jobs", 0, 1, 2)
	a := l.host("a")
	a.failing("g", api.GroupConfig{})
	a.failUntil("g", "jobs", "no stock", func() bool { return a.counter("sidestream_consume_dead_letters_total") == 1 })
	d := a.pullSome(PullRequest{Group: "g", Topic: "jobs"})
	if offsetsOf(d.Messages) != "[1 2]" || d.Messages[0].Attempt > 2 {
		t.Fatalf("%+v", d.Messages)
	}
	a.ackAll("g", "jobs", d)
	if at := a.position("g", "jobs"); at != 3 {
		t.Fatalf("position %d", at)
	}
	ls := a.letters("g", "jobs")
	if len(ls) != 1 {
		t.Fatalf("%+v", ls)
	}
	got := ls[0]
	key, value := got.Message.Key, got.Message.Value
	if got.Reason != "max_attempts" || got.Group != "g" || got.Topic != "jobs" || got.Partition != 0 || got.Offset != 0 || got.Until != 1 ||
		got.Attempts != 2 || got.Timestamp != ts.UnixMilli() || time.Since(got.At) > time.Hour || got.LeftOut != 0 || got.Redriven {
		t.Errorf("%+v", got)
	}
	if got.Message.Topic != "dead.g" || *key != "k" || *value != "poison" || len(got.Message.Headers) != 1 || *got.Message.Headers[0].Value64 != "/w==" {
		t.Errorf("%+v", got.Message)
	}
	if got.Error != "no stock" {
		t.Errorf("error %q", got.Error)
	}
	if !strings.HasPrefix(got.ID, "g/jobs") || !strings.HasSuffix(got.ID, "/0/0") {
		t.Errorf("id %s", got.ID)
	}
	// Another group's letters are its own.
	if other := a.pullSome(PullRequest{Group: "h", Topic: "jobs"}); len(other.Messages) != 3 {
		t.Errorf("%+v", other)
	}
	if ls := a.letters("h", "jobs"); len(ls) != 0 {
		t.Errorf("%+v", ls)
	}
}

// A sidecar that dies after it wrote a letter and before it noted that leaves it
// to the next owner, whose letter has the same id.
func TestLetterWrittenTwiceHasOneID(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 1)
	a := l.host("a")
	a.failing("g", api.GroupConfig{})
	a.failUntil("g", "jobs", "", func() bool {
		a.interval.Store(int64(time.Hour)) // nothing of it reaches the others any more
		return a.counter("sidestream_consume_dead_letters_total") == 1
	})
	a.kill()
	b := l.host("b")
	b.failUntil("g", "jobs", "", func() bool { return b.counter("sidestream_consume_dead_letters_total") == 1 })
	ls := b.letters("g", "jobs")
	if len(ls) != 2 || ls[0].ID != ls[1].ID || ls[0].Message.ID == ls[1].Message.ID {
		t.Fatalf("%+v", ls)
	}
	eventually(t, "the position is behind it", func() bool { return b.position("g", "jobs") == 1 })
}

// While the letter cannot be written the message stays, pulls say so, and
// another partition goes on; as soon as it can be it is.
func TestDeadLetterBlocked(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 2})
	l.produce("jobs", 0, 0, 2)
	var forbidden atomic.Bool
	forbidden.Store(true)
	l.kafka.ControlKey(kmsg.CreateTopics.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		if !forbidden.Load() {
			return nil, nil, false
		}
		req := kreq.(*kmsg.CreateTopicsRequest)
		resp := req.ResponseKind().(*kmsg.CreateTopicsResponse)
		st := kmsg.NewCreateTopicsResponseTopic()
		st.Topic, st.ErrorCode = req.Topics[0].Topic, kerr.TopicAuthorizationFailed.Code
		resp.Topics = append(resp.Topics, st)
		return resp, nil, true
	})
	a := l.host("a")
	a.failing("g", api.GroupConfig{})
	req := PullRequest{Group: "g", Topic: "jobs"}
	a.failUntil("g", "jobs", "", func() bool { return a.counter("sidestream_consume_dead_letter_failures_total") > 0 })
	eventually(t, "dead_letter_blocked", func() bool {
		d := a.pull(req)
		if len(d.Messages) > 0 {
			t.Fatalf("delivered %s", offsetsOf(d.Messages))
		}
		return *d.Reason == api.ReasonDeadLetterBlocked
	})
	if at := a.position("g", "jobs"); at != 0 {
		t.Fatalf("position %d with the letter not written", at)
	}
	l.produce("jobs", 1, 10, 1)
	if d := a.pullSome(req); len(d.Messages) != 1 || d.Messages[0].Partition != 1 {
		t.Fatalf("%+v", d.Messages)
	}
	forbidden.Store(false)
	eventually(t, "the letter is written", func() bool { return a.counter("sidestream_consume_dead_letters_total") == 1 })
	eventually(t, "what follows comes", func() bool {
		d := a.pull(req)
		return len(d.Messages) == 1 && d.Messages[0].Offset == 1
	})
}

// A group that wants no letters has the message dropped and counted.
func TestDeadSkip(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 2)
	a := l.host("a")
	a.failing("g", api.GroupConfig{Dead: "skip"})
	a.failUntil("g", "jobs", "", func() bool { return a.counter("sidestream_consume_messages_skipped_total") > 0 })
	eventually(t, "skipped", func() bool { return a.position("g", "jobs") >= 1 })
	if _, err := l.host("b").up.Topic(t.Context(), "dead.g"); !isCode(err, api.CodeTopicNotFound) {
		t.Errorf("a topic of dead letters: %v", err)
	}
	if _, err := a.m.Dead(t.Context(), DeadRequest{Group: "g", Topic: "jobs"}); !isCode(err, api.CodeBadRequest) {
		t.Errorf("%v", err)
	}
}

// With dead=off a message comes again for ever.
func TestDeadOff(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 1)
	a := l.host("a")
	a.failing("g", api.GroupConfig{Dead: "off"})
	attempt := 0
	a.failUntil("g", "jobs", "", func() bool { attempt++; return attempt > 10 })
	d := a.pullSome(PullRequest{Group: "g", Topic: "jobs"})
	if d.Messages[0].Attempt < 3 {
		t.Fatalf("attempt %d", d.Messages[0].Attempt)
	}
	a.ackAll("g", "jobs", d)
}

// What nobody can read goes to the dead letters, and the rest is delivered.
func TestUndecodableGoesToTheDeadLetters(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		unreadable string
		letters    int
	}{"dead": {"", 1}, "skip": {"skip", 0}} {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			l := newLab(t, map[string]int32{"views": 1})
			l.produce("views", 0, 0, 2)
			records := append(recordAt(1), recordAt(1)...)
			at := l.produceRaw("views", 0, 2, records)
			l.produce("views", 0, 100, 3)
			a := l.host("a")
			if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{Unreadable: c.unreadable}); err != nil {
				t.Fatal(err)
			}
			var got []api.Message
			for len(got) < 5 {
				d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
				a.ackAll("g", "views", d)
				got = append(got, d.Messages...)
			}
			if offsetsOf(got) != "[0 1 4 5 6]" {
				t.Fatalf("delivered %s", offsetsOf(got))
			}
			if at := a.position("g", "views"); at != 7 {
				t.Fatalf("position %d", at)
			}
			ls := a.letters("g", "views")
			if len(ls) != c.letters {
				t.Fatalf("%+v", ls)
			}
			if c.letters == 0 {
				return
			}
			got1 := ls[0]
			raw, err := got1.Message.ValueBytes()
			if err != nil || got1.Reason != "undecodable" || got1.Offset != at || got1.Until != at+2 || got1.Attempts != 0 || got1.Error == "" {
				t.Fatalf("%+v, %v", got1, err)
			}
			if !strings.HasSuffix(string(raw), string(records)) || len(raw) != 61+len(records) {
				t.Errorf("the batch is not in its letter: %q", raw)
			}
		})
	}
}

// A message beyond max_message_bytes is not handed out; its letter has it all
// the same where the topic of dead letters takes it.
func TestOversizedGoesToTheDeadLetters(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	big := strings.Repeat("x", 5000)
	rs := []*kgo.Record{{Topic: "views", Value: []byte("a")}, {Topic: "views", Key: []byte("k"), Value: []byte(big)}, {Topic: "views", Value: []byte("b")}}
	if err := l.prod.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	a := l.host("a", func(c *Config) { c.MaxMessageBytes = 4096 })
	var got []api.Message
	for len(got) < 2 {
		d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
		a.ackAll("g", "views", d)
		got = append(got, d.Messages...)
	}
	if offsetsOf(got) != "[0 2]" {
		t.Fatalf("delivered %s", offsetsOf(got))
	}
	ls := a.letters("g", "views")
	if len(ls) != 1 || ls[0].Reason != "oversized" || ls[0].Offset != 1 || ls[0].Until != 2 || *ls[0].Message.Key != "k" || *ls[0].Message.Value != big {
		t.Fatalf("%d letters", len(ls))
	}
}

// With unreadable=stop the partition stands still, as without dead letters.
func TestUnreadableStop(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produceRaw("views", 0, 2, recordAt(0))
	l.produce("views", 0, 100, 1)
	a := l.host("a")
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{Unreadable: "stop"}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "corrupt_record", func() bool {
		return *a.pull(PullRequest{Group: "g", Topic: "views"}).Reason == api.ReasonCorruptRecord
	})
	time.Sleep(3 * tickEvery)
	if at := a.position("g", "views"); at != 0 {
		t.Fatalf("position %d", at)
	}
}

// A letter that its topic does not take goes without its value, and at last
// with nothing but what is said of the message.
func TestLetterThatDoesNotFit(t *testing.T) {
	t.Parallel()
	for name, c := range map[string]struct {
		key, value int
		left       int
	}{
		"a large value":         {10, 20_000, 20_000},
		"a large key and value": {20_000, 20_000, 40_000},
		"one that fits":         {10, 10, 0},
	} {
		t.Run(strings.ReplaceAll(name, " ", "-"), func(t *testing.T) {
			t.Parallel()
			l := newLab(t, map[string]int32{"jobs": 1})
			r := &kgo.Record{Topic: "jobs", Key: noise(c.key), Value: noise(c.value)}
			if err := l.prod.ProduceSync(t.Context(), r).FirstErr(); err != nil {
				t.Fatal(err)
			}
			a := l.host("a")
			limit := api.TopicSpec{Partitions: 1, Configs: map[string]string{"max.message.bytes": "4000"}}
			if _, err := a.up.CreateTopic(t.Context(), "trash", limit); err != nil {
				t.Fatal(err)
			}
			a.failing("g", api.GroupConfig{Dead: "trash"})
			a.failUntil("g", "jobs", "", func() bool { return a.position("g", "jobs") == 1 })
			ls := a.letters("g", "jobs")
			if len(ls) != 1 || ls[0].LeftOut != c.left || (ls[0].Message.Value == nil) != (c.left > 0) && ls[0].Message.Value64 == nil {
				t.Fatalf("%+v", ls)
			}
		})
	}
}

// noise is so many bytes that no codec shortens.
func noise(n int) []byte {
	b := make([]byte, n)
	x := uint32(1)
	for i := range b {
		x = x*1664525 + 1013904223
		b[i] = byte(x >> 24)
	}
	return b
}

// The brokers are away while a letter is to be written: the message stays.
func TestDeadLetterWithBrokersAway(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1, "dead.g": 1})
	l.produce("jobs", 0, 0, 1)
	a := l.host("a")
	a.failing("g", api.GroupConfig{})
	var away atomic.Bool
	away.Store(true)
	l.kafka.ControlKey(kmsg.Produce.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		if !away.Load() {
			return nil, nil, false
		}
		req := kreq.(*kmsg.ProduceRequest)
		resp := req.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range req.Topics {
			st := kmsg.NewProduceResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewProduceResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, kerr.PolicyViolation.Code
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	a.failUntil("g", "jobs", "", func() bool { return a.counter("sidestream_consume_dead_letter_failures_total") > 0 })
	if at := a.position("g", "jobs"); at != 0 {
		t.Fatalf("position %d", at)
	}
	// A release does not wait for it for ever.
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	away.Store(false)
	if err := a.m.Close(ctx); err != nil {
		t.Fatal(err)
	}
	b := l.host("b")
	b.failUntil("g", "jobs", "", func() bool { return b.position("g", "jobs") == 1 })
	if ls := b.letters("g", "jobs"); len(ls) != 1 {
		t.Fatalf("%+v", ls)
	}
}

// Damage that the brokers report without saying where it ends is waited out, and
// its end is looked for then.
func TestDamageIsPassedOver(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	for i := range 5 { // a batch each
		l.produce("views", 0, i, 1)
	}
	l.kafka.ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		if len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 || req.Topics[0].Topic != "views" && req.Version < 13 {
			return nil, nil, false
		}
		rp := req.Topics[0].Partitions[0]
		if rp.FetchOffset > 2 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		st, sp := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		st.Topic, st.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
		sp.Partition, sp.ErrorCode, sp.HighWatermark = rp.Partition, kerr.CorruptMessage.Code, -1
		st.Partitions = append(st.Partitions, sp)
		resp.Topics = append(resp.Topics, st)
		return resp, nil, true
	})
	a := l.host("a", func(c *Config) { c.DamageWait = 500 * time.Millisecond })
	d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
	if d.Messages[0].Offset != 3 {
		t.Fatalf("%s", offsetsOf(d.Messages))
	}
	a.ackAll("g", "views", d)
	l.kafka.ControlKey(kmsg.Fetch.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) { l.kafka.KeepControl(); return nil, nil, false })
	eventually(t, "counted", func() bool { return a.counter("sidestream_consume_dead_letters_total") == 1 })
	end, err := a.up.EndOffsets(t.Context(), "dead.g")
	if err != nil || end[0]+end[1]+end[2]+end[3] != 1 {
		t.Fatalf("%v, %v", end, err)
	}
}

// max_attempts holds for messages that are out when it is changed, and a message
// that is acknowledged while its letter cannot be written blocks nothing.
func TestDeadSettingsOfALiveGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 2)
	a := l.host("a", func(c *Config) { c.CreateDeadTopics = false })
	zero, one := 0, 1
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{MaxAttempts: &zero}); err != nil {
		t.Fatal(err)
	}
	req := PullRequest{Group: "g", Topic: "jobs", Max: 1}
	var last *Delivery
	for range 12 {
		last = a.pullSome(req)
		if _, err := a.m.Nack(t.Context(), "g", "jobs", api.Receipts{Receipts: receiptsOf(last)}); err != nil {
			t.Fatal(err)
		}
	}
	if last.Messages[0].Attempt < 10 {
		t.Fatalf("attempt %d", last.Messages[0].Attempt)
	}
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{MaxAttempts: &one}); err != nil {
		t.Fatal(err)
	}
	trouble := func() string { return a.m.Status().(Status).Groups[0].Partitions[0].Trouble }
	eventually(t, "trouble", func() bool { return strings.Contains(trouble(), "dead.g") })
	if d := a.pull(req); len(d.Messages) > 0 || *d.Reason != api.ReasonDeadLetterBlocked {
		t.Fatalf("%+v", d)
	}
	a.ack("g", "jobs", last.Messages[0].Receipt)
	if d := a.pullSome(req); d.Messages[0].Offset != 1 {
		t.Fatalf("%s", offsetsOf(d.Messages))
	}
	eventually(t, "nothing blocks", func() bool { return trouble() == "" })
}

// A disk that spoils where a batch says that it begins, which no checksum
// covers, made a group believe that it had read all offsets up to there.
func TestSpoiledOffsetHidesNothing(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 1)
	l.produce("views", 0, 1, 4) // so that the log ends at 5
	batch := func(base int64) []byte {
		rb := kmsg.RecordBatch{FirstOffset: base, Magic: 2, ProducerID: -1, ProducerEpoch: -1, FirstSequence: -1, NumRecords: 1, Records: recordAt(0)}
		raw := rb.AppendTo(nil)
		binary.BigEndian.PutUint32(raw[8:], uint32(len(raw)-12))
		binary.BigEndian.PutUint32(raw[17:], crc32.Checksum(raw[21:], crc32.MakeTable(crc32.Castagnoli)))
		return raw
	}
	lost := batch(2 + 1<<56)
	l.kafka.ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		req := kreq.(*kmsg.FetchRequest)
		if len(req.Topics) != 1 || len(req.Topics[0].Partitions) != 1 {
			return nil, nil, false
		}
		rp := req.Topics[0].Partitions[0]
		if req.Topics[0].Topic == "dead.g" || rp.FetchOffset >= 5 {
			return nil, nil, false
		}
		resp := req.ResponseKind().(*kmsg.FetchResponse)
		st, sp := kmsg.NewFetchResponseTopic(), kmsg.NewFetchResponseTopicPartition()
		st.Topic, st.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
		sp.Partition, sp.HighWatermark, sp.LastStableOffset = rp.Partition, 5, 5
		// A broker finds the batch by its header, so the spoiled one comes first
		// for all that lies behind it.
		for o := rp.FetchOffset; o < 2; o++ {
			sp.RecordBatches = append(sp.RecordBatches, batch(o)...)
		}
		sp.RecordBatches = append(sp.RecordBatches, lost...)
		for o := max(3, rp.FetchOffset); o < 5; o++ {
			sp.RecordBatches = append(sp.RecordBatches, batch(o)...)
		}
		st.Partitions = append(st.Partitions, sp)
		resp.Topics = append(resp.Topics, st)
		return resp, nil, true
	})
	a := l.host("a")
	var got []api.Message
	for len(got) < 4 {
		d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
		a.ackAll("g", "views", d)
		got = append(got, d.Messages...)
	}
	if offsetsOf(got) != "[0 1 3 4]" || a.position("g", "views") != 5 {
		t.Fatalf("delivered %s, position %d", offsetsOf(got), a.position("g", "views"))
	}
	eventually(t, "counted", func() bool { return a.counter("sidestream_consume_dead_letters_total") == 1 })
	ls := a.letters("g", "views")
	if len(ls) != 1 || ls[0].Offset != 2 || ls[0].Until != 3 {
		t.Fatalf("%+v", ls)
	}
	if raw, err := ls[0].Message.ValueBytes(); err != nil || string(raw) != string(lost) {
		t.Errorf("%q, %v", raw, err)
	}
}
