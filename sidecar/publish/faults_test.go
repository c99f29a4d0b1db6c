package publish

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// faults stand between a publisher and its brokers.
type faults struct {
	mu      sync.Mutex // guards rng and calm
	rng     *rand.Rand
	calm    bool
	through func(Ack, int32, kmsg.Request) (kmsg.Response, error)
}

func (f *faults) request(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
	f.mu.Lock()
	dice, calm := f.rng.IntN(100), f.calm
	f.mu.Unlock()
	if calm {
		return f.through(ack, broker, req)
	}
	switch {
	case dice < 15: // not a byte left
		return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
	case dice < 30: // written, and its answer lost
		if _, err := f.through(ack, broker, req); err != nil {
			return nil, err
		}
		return nil, errors.New("the connection was cut")
	case dice < 40: // lost before the broker had it, for all that we know
		req.AppendTo(nil)
		return nil, errors.New("the connection was cut")
	case dice < 50: // refused by who does not lead
		a := req.(*attempt)
		req.AppendTo(nil)
		return answerOf(a, kerr.NotLeaderForPartition.Code), nil
	case dice < 55: // written, and called unknown
		if _, err := f.through(ack, broker, req); err != nil {
			return nil, err
		}
		return answerOf(req.(*attempt), kerr.RequestTimedOut.Code), nil
	case dice < 60:
		time.Sleep(20 * time.Millisecond)
	}
	return f.through(ack, broker, req)
}

func answerOf(a *attempt, code int16) kmsg.Response {
	resp := kmsg.NewPtrProduceResponse()
	rt := kmsg.NewProduceResponseTopic()
	rp := kmsg.NewProduceResponseTopicPartition()
	rp.Partition, rp.ErrorCode, rp.BaseOffset = a.lane.partition, code, -1
	rt.Partitions = append(rt.Partitions, rp)
	resp.Topics = append(resp.Topics, rt)
	return resp
}

// Whatever happens between: what was answered with an offset is there, once;
// what was answered 503 is not; what is unknown is there once or not, and with
// ack=all never twice. Messages of one publisher and key keep their order.
func TestNoAnswerLies(t *testing.T) {
	for _, ack := range []Ack{AckAll, AckLeader} {
		t.Run(ack.String(), func(t *testing.T) { noAnswerLies(t, ack) })
	}
}

func noAnswerLies(t *testing.T, ack Ack) {
	r := newRig(t, nil, kfake.SeedTopics(3, "three"))
	f := &faults{rng: rand.New(rand.NewPCG(1, uint64(ack))), through: r.Publisher.request}
	r.Publisher.request = f.request
	type fate struct {
		at  string // partition/offset
		err *api.Error
	}
	var mu sync.Mutex
	fates := map[string]fate{} // by value
	var order []string         // of values, by publisher, as answered written
	var wg sync.WaitGroup
	for w := range 8 {
		wg.Go(func() {
			buf := make([]byte, 0, 100)
			for n := 0; n < 25; n++ {
				var ms []Message
				var names []string
				buf = buf[:0]
				for i := range 1 + (n+w)%4 {
					name := fmt.Sprintf("%d-%03d-%d", w, n, i)
					names = append(names, name)
					at := len(buf)
					buf = append(buf, name...)
					m := Message{Value: buf[at:len(buf):len(buf)]}
					if w%2 == 0 {
						m.Key = fmt.Appendf(nil, "key-%d", w)
					}
					ms = append(ms, m)
				}
				timeout := 50*time.Millisecond + time.Duration(n%3)*150*time.Millisecond
				results, err := r.PublishBatch(t.Context(), "three", ms, Options{Ack: ack, Timeout: timeout})
				for i := range buf { // the bytes are the caller's again
					buf[i] = '!'
				}
				mu.Lock()
				for i, name := range names {
					switch {
					case err != nil:
						fates[name] = fate{err: err.(*api.Error)}
					case results[i].Error != nil:
						fates[name] = fate{err: results[i].Error}
					default:
						fates[name] = fate{at: fmt.Sprintf("%d/%d", results[i].Partition, results[i].Offset)}
						order = append(order, name)
					}
				}
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	f.mu.Lock()
	f.calm = true
	f.mu.Unlock()
	for end := time.Now().Add(20 * time.Second); r.Buffered() > 0; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%d messages are still on their way", r.Buffered())
		}
	}

	there := map[string][]string{} // where each value is
	last := map[string]int{}       // by publisher with a key: where its last was
	for at, rec := range r.read(t, "three") {
		there[string(rec.Value)] = append(there[string(rec.Value)], at)
	}
	counts := map[api.Code]int{}
	for name, fa := range fates {
		got := there[name]
		delete(there, name)
		switch {
		case fa.err == nil:
			counts["written"]++
			if len(got) != 1 || got[0] != fa.at {
				t.Errorf("%s was answered to be at %s and is at %v", name, fa.at, got)
			}
		case fa.err.Code == api.CodeUnknownOutcome:
			counts[fa.err.Code]++
			if len(got) > 1 {
				t.Errorf("%s, whose outcome is unknown, is at %v", name, got)
			}
		default:
			counts[fa.err.Code]++
			if len(got) > 0 {
				t.Errorf("%s was answered %v and is at %v", name, fa.err, got)
			}
		}
	}
	for name, at := range there {
		t.Errorf("nobody published %q, which is at %v", name, at)
	}
	for _, name := range order {
		w, _, _ := strings.Cut(name, "-")
		var partition, offset int
		if _, err := fmt.Sscanf(fates[name].at, "%d/%d", &partition, &offset); err != nil {
			t.Fatal(err)
		}
		if (w[0]-'0')%2 == 0 {
			if before, ok := last[w]; ok && offset <= before {
				t.Errorf("%s is at offset %d, one of its key before it at %d", name, offset, before)
			}
			last[w] = offset
		}
	}
	t.Logf("%v", counts)
	if counts["written"] == 0 || counts[api.CodeUnknownOutcome] == 0 || ack == AckAll && counts[api.CodeBrokersUnavailable] == 0 {
		t.Errorf("the faults did not bring about every outcome: %v", counts)
	}
}

// One message that a topic does not take spoils no others of its batch.
func TestOneBadMessageSpoilsNoOthers(t *testing.T) {
	r := newRig(t, nil)
	through := r.Publisher.request
	r.Publisher.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
		a := req.(*attempt)
		req.AppendTo(nil)
		if bytes.Contains(*a.lane.b.buf, []byte("bad")) {
			return answerOf(a, kerr.InvalidRecord.Code), nil
		}
		return through(ack, broker, req)
	}
	ms := make([]Message, 20)
	for i := range ms {
		ms[i].Value = []byte("good")
	}
	ms[7].Value, ms[19].Value = []byte("bad"), []byte("bad")
	results, err := r.PublishBatch(t.Context(), "one", ms, Options{})
	if err != nil {
		t.Fatal(err)
	}
	offset := int64(0)
	for i, x := range results {
		if i == 7 || i == 19 {
			if x.Error == nil || x.Error.Code != api.CodeBadRecord {
				t.Errorf("%d: got %+v, want %s", i, x.Error, api.CodeBadRecord)
			}
			continue
		}
		if x.Error != nil || x.Offset != offset {
			t.Errorf("%d: got offset %d and %v, want %d", i, x.Offset, x.Error, offset)
		}
		offset++
	}
	if done, err := r.Publish(t.Context(), "one", Message{}, Options{}); err != nil || done.Offset != 18 {
		t.Errorf("the next one: %+v, %v", done, err)
	}
}

// Messages without a key pass over a partition to which nothing gets through,
// before the brokers say that its leader is away; those with a key do not.
func TestKeylessPassesOverAStuckPartition(t *testing.T) {
	r := newRig(t, nil)
	through := r.Publisher.request
	var heal atomic.Bool
	r.Publisher.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
		if req.(*attempt).lane.partition == 2 && !heal.Load() {
			return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
		}
		return through(ack, broker, req)
	}
	two := int32(2)
	waits := make(chan error, 1)
	go func() {
		_, err := r.Publish(t.Context(), "t", Message{Partition: &two}, Options{Timeout: 20 * time.Second})
		waits <- err
	}()
	top, err := r.up.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	for s := r.state(&top); s.stuck.Load() == 0; {
		time.Sleep(time.Millisecond)
	}
	ms := make([]Message, 5*runRecords)
	for range 3 {
		results, err := r.PublishBatch(t.Context(), "t", ms, Options{})
		if err != nil {
			t.Fatal(err)
		}
		for i, x := range results {
			if x.Error != nil || x.Partition == 2 {
				t.Fatalf("message %d went to partition %d, %v", i, x.Partition, x.Error)
			}
		}
	}
	heal.Store(true)
	if err := <-waits; err != nil {
		t.Errorf("the one for the stuck partition: %v", err)
	}
	seen := false
	for range 8 {
		done, err := r.Publish(t.Context(), "t", Message{Value: make([]byte, runBytes)}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		seen = seen || done.Partition == 2
	}
	if !seen {
		t.Error("the partition is passed over for ever")
	}
}

// A broker that has forgotten the producer's sequence numbers refuses them; the
// lane begins anew under another id.
func TestForgottenProducerBeginsAnew(t *testing.T) {
	for name, e := range map[string]*kerr.Error{"unknown": kerr.UnknownProducerID, "out of order": kerr.OutOfOrderSequenceNumber} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			if _, err := r.Publish(t.Context(), "one", Message{}, Options{}); err != nil {
				t.Fatal(err)
			}
			old := r.ids.now
			through := r.Publisher.request
			r.Publisher.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
				a := req.(*attempt)
				req.AppendTo(nil)
				if a.lane.b.fields.producer == old {
					return answerOf(a, e.Code), nil
				}
				return through(ack, broker, req)
			}
			if done, err := r.Publish(t.Context(), "one", Message{}, Options{}); err != nil || done.Offset != 1 {
				t.Errorf("got %+v, %v", done, err)
			}
		})
	}
}

// The batch is what Kafka's own reader reads, also at the edges of its numbers.
func TestRecordLengths(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		v := int64(rng.Uint64()) >> rng.IntN(64)
		if got, want := varintSize(v), len(binary.AppendVarint(nil, v)); got != want {
			t.Fatalf("varintSize(%d) = %d, it has %d bytes", v, got, want)
		}
		m := Message{Value: make([]byte, rng.IntN(300))}
		if rng.IntN(2) == 0 {
			m.Key = make([]byte, rng.IntN(100))
		}
		delta, n := int64(rng.Uint64())>>(16+rng.IntN(48)), rng.IntN(100_000)
		length := recordLength(&m, delta, n)
		b := appendRecord(nil, &m, length, delta, n)
		if _, head := binary.Varint(b); len(b)-head != length {
			t.Fatalf("recordLength says %d, it has %d", length, len(b)-head)
		}
	}
}

func TestSettingsOfTopics(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Topics = map[string]string{"orders": "key_field=/user/id compression=zstd:9", "plain": "compression=none"}
	cfg.Compression = "lz4:3"
	r := newRig(t, func(c *Config) { *c = cfg })
	if got := r.KeyField("orders"); got != "/user/id" {
		t.Errorf("key field %q", got)
	}
	s := r.settings.Load()
	if s.compressorOf("other") == nil || s.compressorOf("orders") == nil || s.compressorOf("plain") != nil {
		t.Error("a topic has not the compression of its own")
	}
	for _, wrong := range []string{"compression=zip", "compression=zstd:23", "compression=snappy:1", "compression=none:1", "key=x", "key_field="} {
		cfg.Topics = map[string]string{"orders": wrong}
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), "topics.orders") {
			t.Errorf("%s: %v", wrong, err)
		}
		if err := r.Configure(cfg); err == nil || r.KeyField("orders") != "/user/id" {
			t.Errorf("%s: it is taken over, %v", wrong, err)
		}
	}
	cfg.Topics = nil
	if err := r.Configure(cfg); err != nil || r.KeyField("orders") != "" {
		t.Errorf("taken away: %v, %q", err, r.KeyField("orders"))
	}
}

// What is compressed comes back as it was.
func TestCompression(t *testing.T) {
	for _, c := range []string{"none", "gzip", "gzip:9", "snappy", "lz4", "lz4:9", "zstd", "zstd:1", "zstd:22"} {
		t.Run(c, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) { cfg.Compression = c })
			ms := make([]Message, 100)
			for i := range ms {
				ms[i] = Message{Key: fmt.Appendf(nil, "k%d", i), Value: bytes.Repeat([]byte{'a' + byte(i%26)}, 200)}
			}
			results, err := r.PublishBatch(t.Context(), "one", ms, Options{})
			if err != nil {
				t.Fatal(err)
			}
			got := r.read(t, "one")
			for i, x := range results {
				if rec := got[fmt.Sprintf("0/%d", x.Offset)]; rec == nil || !bytes.Equal(rec.Value, ms[i].Value) || !bytes.Equal(rec.Key, ms[i].Key) {
					t.Fatalf("%d came back as %v", i, rec)
				}
			}
		})
	}
}

// A broker that is behind shows a topic's earlier id for a moment, after the topic
// was deleted and made anew. What was remembered of the topic was dropped twice,
// and its sequence numbers began at 0 again under the same producer id: the broker
// took the next message for a repeat of the first, and it was answered 200 and
// never written.
func TestATopicsEarlierIDShowsForAMoment(t *testing.T) {
	r := newRig(t, nil)
	publish := func(value string) api.Published {
		t.Helper()
		done, err := r.Publish(t.Context(), "one", Message{Value: []byte(value)}, Options{})
		if err != nil {
			t.Fatal(err)
		}
		return done
	}
	publish("first")
	before, err := r.up.Topic(t.Context(), "one")
	if err != nil {
		t.Fatal(err)
	}
	earlier := before
	earlier.UUID = "00000000-0000-0000-0000-00000000000e"
	r.state(&earlier)
	if done := publish("second"); done.Offset != 1 {
		t.Errorf("the second message is at offset %d", done.Offset)
	}
	if all := r.read(t, "one"); len(all) != 2 || string(all["0/1"].Value) != "second" {
		t.Errorf("the topic has %d records", len(all))
	}
}
