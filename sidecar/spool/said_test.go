package spool

import (
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"sidestream/sidecar/publish"
)

// A broker whose disk is full says so at once and again and again; the spool said
// for as long that it did not answer, and the log said nothing at all.
func TestTheCauseIsWhatTheBrokerSaid(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	h := newLoggedHost(t, func(c *Config) { c.SendWait = 100 * time.Millisecond }, zap.New(core))
	var full atomic.Bool
	full.Store(true)
	h.cluster.ControlKey(kmsg.Produce.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		h.cluster.KeepControl()
		if !full.Load() {
			return nil, nil, false
		}
		in := req.(*kmsg.ProduceRequest)
		resp := in.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range in.Topics {
			out := kmsg.NewProduceResponseTopic()
			out.Topic, out.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				p := kmsg.NewProduceResponseTopicPartition()
				p.Partition, p.ErrorCode, p.ErrorMessage, p.BaseOffset = rp.Partition, kerr.KafkaStorageError.Code, new("not appended: no space left on /data"), -1
				out.Partitions = append(out.Partitions, p)
			}
			resp.Topics = append(resp.Topics, out)
		}
		return resp, nil, true
	})
	for _, value := range []string{"a", "b"} {
		if _, err := h.Publish(t.Context(), "one", publish.Message{Value: []byte(value)}, publish.Options{Ack: publish.AckSpool}); err != nil {
			t.Fatal(err)
		}
	}
	want := "KAFKA_STORAGE_ERROR: no space left on /data"
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		st := h.Status()
		if len(st.Away) == 1 && strings.Contains(st.Away[0].Cause, want) && logs.Len() > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("away: %+v, logged %+v", st.Away, logs.All())
		}
	}
	full.Store(false)
	h.values(t, 2)
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if st := h.Status(); len(st.Away) == 0 && logs.FilterMessage("spooled messages make way again").Len() == 1 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("away: %+v, logged %+v", h.Status().Away, logs.All())
		}
	}
	warned := logs.FilterMessage("spooled messages make no way").All()
	if len(warned) != 1 || warned[0].Level != zap.WarnLevel || !strings.Contains(warned[0].ContextMap()["cause"].(string), want) {
		t.Errorf("logged %+v", logs.All())
	}
}
