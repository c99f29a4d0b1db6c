package consume

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"
	"go.uber.org/zap/zaptest/observer"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// A sidecar logged dozens of lines a minute in an outage: one for each
// partition, group and try. It is one line when it begins, one for each reason,
// and one with counts when it ends.
func TestOutageIsLoggedOnce(t *testing.T) {
	core, logs := observer.New(zap.InfoLevel)
	u := newOutage(zap.New(core))
	for try := range 10 {
		for p := range 100 {
			// As the store's client says it, with another URL each time.
			u.fails(fmt.Sprint("g/t/", p), "take partitions", fmt.Errorf("lock: %w: GET /v1/kv/%d/%d", discovery.ErrUnavailable, p, try))
		}
	}
	u.fails("g/t/0", "read partitions", &api.Error{Code: api.CodeBrokersUnavailable, Message: "no broker"})
	for i := range 1000 {
		u.fails("g/t/0", "read partitions", errors.New(fmt.Sprint("from port ", i)))
	}
	if n := logs.FilterLevelExact(zap.WarnLevel).Len(); n != maxReasons {
		t.Errorf("%d warnings", n)
	}
	for p := range 100 {
		if n := logs.FilterLevelExact(zap.InfoLevel).Len(); n != 0 {
			t.Fatalf("it ended with %d parts that fail still", 100-p)
		}
		u.works(fmt.Sprint("g/t/", p))
		u.works("another")
	}
	end := logs.FilterLevelExact(zap.InfoLevel).All()
	if len(end) != 1 || end[0].ContextMap()["parts"] != int64(100) || end[0].ContextMap()["failures"] != int64(2001) {
		t.Errorf("the end: %v", end)
	}
	u.fails("g/t/1", "take partitions", discovery.ErrUnavailable)
	if n := logs.FilterLevelExact(zap.WarnLevel).Len(); n != maxReasons+1 {
		t.Errorf("the next outage is not told: %d warnings", n)
	}
}

// The same with real partitions that cannot be read.
func TestBrokersOutageIsLoggedOnce(t *testing.T) {
	t.Parallel()
	const partitions = 12
	l := newLab(t, map[string]int32{"views": partitions})
	core, logs := observer.New(zap.InfoLevel)
	l.log = zap.New(core)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "views", AutoAck: true}
	a.pull(req)
	eventually(t, "all owned", func() bool { return len(a.partitions("g", "views")) == partitions })
	before := logs.FilterLevelExact(zap.WarnLevel).Len()
	l.kafka.ControlKey(int16(kmsg.Fetch), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		resp := kreq.ResponseKind().(*kmsg.FetchResponse)
		for _, rt := range kreq.(*kmsg.FetchRequest).Topics {
			st := kmsg.NewFetchResponseTopic()
			st.Topic, st.TopicID = rt.Topic, rt.TopicID
			for _, rp := range rt.Partitions {
				sp := kmsg.NewFetchResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, kerr.NotLeaderForPartition.Code
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	trouble := func() (n int) {
		for _, s := range a.m.lookup("g").all() {
			for _, o := range s.list() {
				if o.view(time.Now()).trouble != "" {
					n++
				}
			}
		}
		return n
	}
	eventually(t, "none can be read", func() bool { return trouble() == partitions })
	time.Sleep(500 * time.Millisecond) // several tries of each
	if n := logs.FilterLevelExact(zap.WarnLevel).Len() - before; n != 1 {
		t.Errorf("%d warnings for %d partitions: %v", n, partitions, logs.FilterLevelExact(zap.WarnLevel).All()[before:])
	}
}
