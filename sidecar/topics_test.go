package sidecar

import (
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// The same PUT with configs was 201 and then 409, so a deployment that makes
// its topics at each start failed at the second. Now it is 200 when the topic
// is as asked, and the 409 says what differs.
func TestPutTopicWithConfigsTwice(t *testing.T) {
	r := newRig(t, nil)
	body := `{"partitions":2,"configs":{"retention.ms":"86400000","max.message.bytes":"2000"}}`
	into[api.Topic](t, r.do("PUT", "/topics/c", body), 201)
	if again := into[api.Topic](t, r.do("PUT", "/topics/c", body), 200); again.Configs["retention.ms"] != "86400000" {
		t.Errorf("%+v", again)
	}
	into[api.Topic](t, r.do("PUT", "/topics/c", `{"configs":{"retention.ms":"86400000"}}`), 200) // what is not asked for does not matter
	into[api.Topic](t, r.do("PUT", "/topics/one", `{"configs":{"cleanup.policy":"delete"}}`), 200)

	a := r.do("PUT", "/topics/c", `{"partitions":3,"replication":2,"configs":{"max.message.bytes":"2000","retention.ms":"1","no.such":"x"}}`)
	for _, part := range []string{"2 partitions (3 were asked for)", "1 replicas (2 were asked for)", "retention.ms=86400000 (1 was asked for)", "no.such"} {
		if a.status != 409 || a.code() != api.CodeTopicExists || !strings.Contains(string(a.body), part) {
			t.Errorf("got %s, want 409 with %q", a, part)
		}
	}
	if strings.Contains(string(a.body), "max.message.bytes") {
		t.Errorf("what agrees is named: %s", a)
	}
	// What was set shows, defaults do not.
	if got := into[api.Topic](t, r.do("GET", "/topics/c", ""), 200); len(got.Configs) != 2 || got.Configs["retention.ms"] != "86400000" {
		t.Errorf("%+v", got.Configs)
	}
}

// A topic that had just been made was shown with start and end -1, which means
// that its leaders are away: its brokers announce leaders a little before they
// serve.
func TestPutTopicTellsItsBounds(t *testing.T) {
	r := newRig(t, nil)
	var asked atomic.Int32
	r.cluster.ControlKey(int16(kmsg.ListOffsets), func(kreq kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		if asked.Add(1) > 3 {
			return nil, nil, false
		}
		req := kreq.(*kmsg.ListOffsetsRequest)
		resp := req.ResponseKind().(*kmsg.ListOffsetsResponse)
		for _, rt := range req.Topics {
			st := kmsg.NewListOffsetsResponseTopic()
			st.Topic = rt.Topic
			for _, rp := range rt.Partitions {
				sp := kmsg.NewListOffsetsResponseTopicPartition()
				sp.Partition, sp.ErrorCode = rp.Partition, kerr.ReplicaNotAvailable.Code
				st.Partitions = append(st.Partitions, sp)
			}
			resp.Topics = append(resp.Topics, st)
		}
		return resp, nil, true
	})
	made := into[api.Topic](t, r.do("PUT", "/topics/fresh", ""), 201)
	if len(made.Partitions) != 4 || slices.ContainsFunc(made.Partitions, func(p api.TopicPartition) bool { return p.Start != 0 || p.End != 0 }) {
		t.Errorf("%+v", made)
	}
}

// A topic of Kafka's own, __consumer_offsets for example, was made empty and with our defaults by whoever misdirected a
// message or a pull to it, also at Apache Kafka's brokers before their own had. By every way in which a name alone makes a
// topic it is 404 now; PUT makes it.
func TestInternalTopicsAreNotMadeByNamingThem(t *testing.T) {
	r := newRig(t, func(c *Config) { c.AutoCreateTopics = true })
	for _, x := range []struct {
		what, path, body string
		headers          []string
	}{
		{"a message", "/topics/__made", "x", nil},
		{"a batch", "/topics/__made/batch", `{"value":"x"}`, nil},
		{"a spooled message", "/topics/__made?ack=spool", "x", nil},
		{"a message with a key of its own", "/topics/__made", "x", []string{"Idempotency-Key: " + `"a"`}},
		{"a pull", "/groups/g/topics/__made/pull", "", nil},
	} {
		if a := r.do("POST", x.path, x.body, x.headers...); a.status != 404 || a.code() != api.CodeTopicNotFound {
			t.Errorf("%s: got %s, want 404 topic_not_found", x.what, a)
		}
		if a := r.do("POST", strings.Replace(x.path, "__", "_"+strings.Map(func(r rune) rune {
			if r >= 'a' && r <= 'z' {
				return r
			}
			return '-'
		}, x.what), 1), x.body, x.headers...); a.status >= 300 {
			t.Errorf("%s for another topic: got %s", x.what, a)
		}
	}
	into[api.Topic](t, r.do("PUT", "/topics/__made", ""), 201)
}
