package consume

import (
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// gauge is a gauge's sum over its labels.
func (h *host) gauge(name string) (sum float64) {
	h.lab.t.Helper()
	families, err := h.registry.Gather()
	if err != nil {
		h.lab.t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.GetMetric() {
				sum += m.GetGauge().GetValue()
			}
		}
	}
	return sum
}

// A partition whose leader is away counted with a lag of 0, so that the group
// looked well just when it was not.
func TestLagThatIsNotKnown(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "views"}
	l.produce("views", 0, 0, 3)
	a.ackAll("g", "views", a.pullSome(req))
	eventually(t, "owned", func() bool { return len(a.partitions("g", "views")) == 2 })

	var away atomic.Bool
	away.Store(true)
	l.kafka.ControlKey(kmsg.ListOffsets.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		if !away.Load() {
			return nil, nil, false
		}
		r := kreq.(*kmsg.ListOffsetsRequest)
		resp := r.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, rt := range r.Topics {
			st := kmsg.NewListOffsetsResponseTopic()
			st.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				sp := kmsg.NewListOffsetsResponseTopicPartition()
				sp.Partition = rp.Partition
				if rp.Timestamp == -1 {
					sp.Offset = 5
				}
				if rp.Partition == 1 {
					sp.ErrorCode = kerr.TopicAuthorizationFailed.Code // what the client does not try again
				}
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	l.kafka.ControlKey(kmsg.Fetch.Int16(), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		if !away.Load() {
			return nil, nil, false
		}
		r := kreq.(*kmsg.FetchRequest)
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		for _, rt := range r.Topics {
			st := kmsg.NewFetchResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewFetchResponseTopicPartition()
				sp.Partition, sp.HighWatermark, sp.LastStableOffset = rp.Partition, rp.FetchOffset, -1
				if rp.Partition == 1 {
					sp.ErrorCode = kerr.NotLeaderForPartition.Code
				}
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	o, err := a.m.Offsets(t.Context(), "g", "views")
	if err != nil {
		t.Fatal(err)
	}
	if p := o.Partitions; p[0].Lag != 2 || p[1].Lag != -1 || p[1].End != -1 || o.Lag != 2 || !o.Partial {
		t.Errorf("%+v", o)
	}
	const unknown = "sidestream_consume_lag_unknown_partitions"
	eventually(t, "told by the metrics", func() bool { return a.gauge(unknown) == 1 })
	away.Store(false)
	eventually(t, "known again", func() bool { return a.gauge(unknown) == 0 })
	if o, err = a.m.Offsets(t.Context(), "g", "views"); err != nil || o.Partial || o.Lag != 0 {
		t.Errorf("%+v, %v", o, err)
	}
}
