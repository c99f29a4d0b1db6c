package publish

import (
	"context"
	"errors"
	"runtime"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// A message was written and the answer lost; then the topic's limit, its policy
// or a right was changed, and the broker refused the repeat. The caller was told
// that the message is not written, with 413, 400 or 403.
func TestARefusalAfterALostAnswerProvesNothing(t *testing.T) {
	for _, refusal := range []*kerr.Error{kerr.MessageTooLarge, kerr.InvalidTimestamp, kerr.InvalidRecord, kerr.TopicAuthorizationFailed} {
		t.Run(refusal.Message, func(t *testing.T) {
			r := newRig(t, nil)
			var requests atomic.Int32
			r.cluster.ControlKey(int16(kmsg.Produce), func(k kmsg.Request) (kmsg.Response, error, bool) {
				r.cluster.KeepControl()
				if requests.Add(1) == 1 {
					return nil, nil, false // it is written
				}
				req := k.(*kmsg.ProduceRequest)
				resp := req.ResponseKind().(*kmsg.ProduceResponse)
				rt, rp := kmsg.NewProduceResponseTopic(), kmsg.NewProduceResponseTopicPartition()
				rt.Topic, rt.TopicID = req.Topics[0].Topic, req.Topics[0].TopicID
				rp.Partition, rp.ErrorCode = req.Topics[0].Partitions[0].Partition, refusal.Code
				rt.Partitions = append(rt.Partitions, rp)
				resp.Topics = append(resp.Topics, rt)
				return resp, nil, true
			})
			request := r.request
			var lost atomic.Bool
			r.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
				resp, err := request(ack, broker, req)
				if !lost.Swap(true) {
					return nil, errors.New("the connection broke before the answer")
				}
				return resp, err
			}
			_, err := r.Publish(t.Context(), "one", Message{Value: []byte("v")}, Options{Timeout: 5 * time.Second})
			if codeOf(err) != api.CodeUnknownOutcome || len(r.read(t, "one")) != 1 {
				t.Errorf("%v with %d messages in the log, want %s", err, len(r.read(t, "one")), api.CodeUnknownOutcome)
			}
		})
	}
}

// What is derived from a request's context must not look at it from a goroutine
// of its own: that one may run when the request's memory serves the next one.
func TestWhatIsDerivedFromARequestNeedsNoGoroutine(t *testing.T) {
	u := &until{Context: context.Background(), deadline: time.Now().Add(time.Hour)}
	before := runtime.NumGoroutine()
	var ends []context.CancelFunc
	for range 100 {
		ctx, cancel := context.WithTimeout(u, time.Minute)
		if ctx.Err() != nil {
			t.Fatal(ctx.Err())
		}
		ends = append(ends, cancel)
	}
	if n := runtime.NumGoroutine(); n > before+10 {
		t.Errorf("%d goroutines for 100 contexts", n-before)
	}
	for _, end := range ends {
		end()
	}
	ctx, cancel := context.WithTimeout(u, time.Minute)
	defer cancel()
	u.end()
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Error("it does not end with the request")
	}
}
