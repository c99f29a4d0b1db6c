package publish

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// saying has the brokers of a rig answer each produce request with a code and
// words until the words are nil, and appends nothing.
func saying(r rig, code int16) (words *atomic.Pointer[string]) {
	words = &atomic.Pointer[string]{}
	through := r.Publisher.request
	r.Publisher.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
		say := words.Load()
		if say == nil {
			return through(ack, broker, req)
		}
		req.AppendTo(nil)
		resp := answerOf(req.(*attempt), code)
		resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorMessage = say
		return resp, nil
	}
	return words
}

// A broker whose disk was full answered error 56 with its reason at once, and the
// publisher was told after 10 s that no broker had answered in time, as if the
// message might be written. What a broker says is told, and where it says that
// nothing was appended, that is 503.
func TestWhatABrokerSaidIsTold(t *testing.T) {
	const full = "commitlog: no space left on the disk"
	for _, ack := range []Ack{AckAll, AckLeader} {
		for _, c := range []struct {
			words string
			want  api.Code
		}{
			{"not appended: " + full, api.CodeBrokersUnavailable},
			{full, api.CodeUnknownOutcome},
		} {
			r := newRig(t, nil)
			say := saying(r, kerr.KafkaStorageError.Code)
			say.Store(&c.words)
			_, err := r.Publish(t.Context(), "one", Message{Value: []byte("v")}, Options{Ack: ack, Timeout: 300 * time.Millisecond})
			if codeOf(err) != c.want || !strings.Contains(err.Error(), full) || !strings.Contains(err.Error(), "KAFKA_STORAGE_ERROR") || strings.Contains(err.Error(), "not appended: ") {
				t.Errorf("ack=%s, %q: got %v, want %s with its words", ack, c.words, err, c.want)
			}
			if away, n := r.Away(); n != 1 || away[0].Topic != "one" || !strings.Contains(away[0].Cause, full) {
				t.Errorf("ack=%s, %q: away: %+v", ack, c.words, away)
			}
			if got := r.Cause("one", 0); !strings.Contains(got, full) {
				t.Errorf("ack=%s, %q: cause %q", ack, c.words, got)
			}
		}
	}
}

// That nothing was appended this time says nothing of an attempt before.
func TestNotAppendedAfterAnUnheardAttemptIsUnknown(t *testing.T) {
	r := newRig(t, nil)
	through := r.Publisher.request
	var n atomic.Int32
	r.Publisher.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
		if n.Add(1) == 1 {
			if _, err := through(ack, broker, req); err != nil {
				return nil, err
			}
			return answerOf(req.(*attempt), kerr.RequestTimedOut.Code), nil
		}
		resp := answerOf(req.(*attempt), kerr.KafkaStorageError.Code)
		resp.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorMessage = new("not appended: no room")
		return resp, nil
	}
	_, err := r.Publish(t.Context(), "one", Message{Value: []byte("v")}, Options{Timeout: 300 * time.Millisecond})
	if codeOf(err) != api.CodeUnknownOutcome || !strings.Contains(err.Error(), "no room") {
		t.Errorf("got %v, want unknown_outcome with the last words", err)
	}
}

// A trouble has one line in the log when it begins and one when it ends, with what
// it has cost, however many messages and partitions it takes in.
func TestTroublesAreLoggedOnce(t *testing.T) {
	r := newRig(t, nil)
	core, logs := observer.New(zap.InfoLevel)
	r.Publisher.troubles.log = zap.New(core)
	say := saying(r, kerr.KafkaStorageError.Code)
	say.Store(new("not appended: no room"))
	ms := []Message{{Key: []byte("a"), Value: []byte("1")}, {Key: []byte("b"), Value: []byte("2")}, {Key: []byte("c"), Value: []byte("3")}, {Key: []byte("d"), Value: []byte("4")}}
	parts := map[int32]bool{}
	for range 3 {
		results, err := r.PublishBatch(t.Context(), "t", ms, Options{Timeout: 100 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		for _, res := range results {
			parts[res.Partition] = true
			if res.Error == nil || res.Error.Code != api.CodeBrokersUnavailable {
				t.Errorf("%+v", res)
			}
		}
	}
	all := logs.All()
	if len(all) != 1 || all[0].Level != zap.WarnLevel || !strings.Contains(all[0].ContextMap()["cause"].(string), "no room") {
		t.Fatalf("logged while it lasts: %+v", all)
	}
	say.Store(nil)
	if _, err := r.PublishBatch(t.Context(), "t", ms, Options{}); err != nil {
		t.Fatal(err)
	}
	all = logs.All()
	if len(all) != 2 {
		t.Fatalf("logged in all: %+v", all)
	}
	if end := all[1].ContextMap(); end["not_written"] != int64(12) || end["unknown"] != int64(0) || end["partitions"] != int64(len(parts)) {
		t.Errorf("the end says %v, want 12 messages of %d partitions", end, len(parts))
	}
	if away, n := r.Away(); n != 0 || len(away) != 0 {
		t.Errorf("still away: %+v", away)
	}
}

// What a topic refuses about a record is told in the broker's words (KIP-467).
func TestWordsAboutARecord(t *testing.T) {
	rp := kmsg.NewProduceResponseTopicPartition()
	rp.ErrorMessage = new("one or more records have been rejected")
	rec := kmsg.NewProduceResponseTopicPartitionErrorRecord()
	rec.ErrorMessage = new("timestamp is out of range\nby far")
	rp.ErrorRecords = append(rp.ErrorRecords, rec)
	err := upstream.Said(kerr.InvalidTimestamp.Code, upstream.Words(&rp))
	if got := outcome(err, "t"); got.Code != api.CodeBadRecord || !strings.HasSuffix(got.Message, "INVALID_TIMESTAMP: one or more records have been rejected: timestamp is out of range by far") {
		t.Errorf("%v", got)
	}
}
