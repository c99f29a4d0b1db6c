package consume

import (
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// A third of a topic was away for two minutes, and every pull that delivered of
// the rest looked as if all were well.
func TestAPullThatDeliversTellsOfPartitionsThatAreAway(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 3})
	var down atomic.Bool
	l.kafka.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		r := req.(*kmsg.FetchRequest)
		if !down.Load() || len(r.Topics) == 0 {
			return nil, nil, false
		}
		var refused []kmsg.FetchRequestTopicPartition
		rt := kmsg.NewFetchResponseTopic()
		rt.Topic, rt.TopicID = r.Topics[0].Topic, r.Topics[0].TopicID
		for _, p := range r.Topics[0].Partitions {
			if p.Partition == 0 {
				continue
			}
			rp := kmsg.NewFetchResponseTopicPartition()
			rp.Partition, rp.ErrorCode = p.Partition, kerr.NotLeaderForPartition.Code
			rt.Partitions = append(rt.Partitions, rp)
			refused = append(refused, p)
		}
		if len(refused) == 0 {
			return nil, nil, false // those that are well
		}
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		resp.Topics = append(resp.Topics, rt)
		return resp, nil, true
	})
	a := l.host("a")
	l.produce("views", 0, 0, 1)
	d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
	eventually(t, "owned", func() bool { return len(a.partitions("g", "views")) == 3 })
	a.ackAll("g", "views", d)
	eventually(t, "nothing away", func() bool { return a.pull(PullRequest{Group: "g", Topic: "views"}).Away == 0 })

	down.Store(true)
	eventually(t, "two away in an empty pull", func() bool { return a.pull(PullRequest{Group: "g", Topic: "views"}).Away == 2 })
	n := 1
	eventually(t, "two away in a pull that delivers", func() bool {
		l.produce("views", 0, n, 1)
		n++
		d := a.pullSome(PullRequest{Group: "g", Topic: "views", Wait: time.Second})
		a.ackAll("g", "views", d)
		return len(d.Messages) > 0 && d.Away == 2
	})
	if away := a.m.Away(); len(away) != 2 || away[0].Topic != "views" || away[0].Why == "" {
		t.Errorf("away: %+v", away)
	}
	st := a.stream(StreamRequest{Group: "g", Topic: "views", Window: 1})
	defer st.Close(0)
	eventually(t, "two away on a stream", func() bool {
		b, err := st.Next(t.Context(), 50*time.Millisecond)
		return err == nil && b.Away == 2
	})
	down.Store(false)
	eventually(t, "all are back", func() bool {
		return a.pull(PullRequest{Group: "g", Topic: "views"}).Away == 0 && len(a.m.Away()) == 0
	})
}
