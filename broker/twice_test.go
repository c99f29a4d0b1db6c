package broker_test

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record/recordtest"
)

// A question about one topic a hundred thousand times fits into a request of 300 kB. Each was answered, which with many
// partitions took gigabytes: 30,000 times 100 partitions were 240 MB.
func TestAQuestionIsAnsweredOnce(t *testing.T) {
	w := start(t)
	id := w.topic("t", 100, nil)
	w.topic("u", 1, nil)
	r := w.dial()
	req := kmsg.NewPtrMetadataRequest()
	req.Version = 12
	for range 10_000 {
		for _, name := range []string{"t", "u", "nowhere"} {
			topic := kmsg.NewMetadataRequestTopic()
			topic.Topic = &name
			req.Topics = append(req.Topics, topic)
		}
		topic := kmsg.NewMetadataRequestTopic()
		topic.TopicID = id
		req.Topics = append(req.Topics, topic)
	}
	got := ask[*kmsg.MetadataResponse](r, req)
	var names []string
	for _, t := range got.Topics {
		names = append(names, *t.Topic)
	}
	if want := []string{"t", "u", "nowhere", "t"}; !slices.Equal(names, want) {
		t.Errorf("%d topics, want %v", len(names), want)
	}

	configs := kmsg.NewPtrDescribeConfigsRequest()
	configs.Version, configs.IncludeDocumentation = 4, true
	for _, asked := range [][]string{{"retention.ms"}, {"segment.ms"}, {"retention.ms"}} {
		for range 5000 {
			rr := kmsg.NewDescribeConfigsRequestResource()
			rr.ResourceType, rr.ResourceName, rr.ConfigNames = kmsg.ConfigResourceTypeTopic, "t", asked
			configs.Resources = append(configs.Resources, rr)
		}
	}
	if got := ask[*kmsg.DescribeConfigsResponse](r, configs).Resources; len(got) != 1 || len(got[0].Configs) != 2 {
		t.Errorf("%d answers, want one with both configs", len(got))
	}

	groups := kmsg.NewPtrDescribeGroupsRequest()
	groups.Groups = slices.Repeat([]string{"a", "b"}, 1000)
	if got := ask[*kmsg.DescribeGroupsResponse](r, groups).Groups; len(got) != 2 {
		t.Errorf("%d groups, want 2", len(got))
	}
	find := kmsg.NewPtrFindCoordinatorRequest()
	find.Version, find.CoordinatorKeys = 4, slices.Repeat([]string{"a", "b"}, 1000)
	if got := ask[*kmsg.FindCoordinatorResponse](r, find).Coordinators; len(got) != 2 {
		t.Errorf("%d coordinators, want 2", len(got))
	}
	offsets := kmsg.NewPtrOffsetFetchRequest()
	offsets.Version = 8
	for _, name := range []string{"a", "b", "a"} {
		g := kmsg.NewOffsetFetchRequestGroup()
		g.Group = name
		offsets.Groups = append(offsets.Groups, g)
	}
	if got := ask[*kmsg.OffsetFetchResponse](r, offsets).Groups; len(got) != 2 || got[0].ErrorCode != 42 || got[1].ErrorCode != 0 {
		t.Errorf("%+v, want a refused and b", got)
	}
	list := kmsg.NewPtrListOffsetsRequest()
	list.Version = 7
	lt := kmsg.NewListOffsetsRequestTopic()
	lt.Topic = "t"
	for _, p := range []int32{0, 1, 0} {
		lp := kmsg.NewListOffsetsRequestTopicPartition()
		lp.Partition, lp.Timestamp, lp.CurrentLeaderEpoch = p, -1, -1
		lt.Partitions = append(lt.Partitions, lp)
	}
	list.Topics = append(list.Topics, lt)
	if got := ask[*kmsg.ListOffsetsResponse](r, list).Topics[0].Partitions; got[0].ErrorCode != 42 || got[1].ErrorCode != 0 || got[2].ErrorCode != 42 {
		t.Errorf("%+v, want 42 for what is asked twice", got)
	}
}

// A change that is asked for twice was made, and the second answer, which clients keep, said that it cannot be: a topic
// was deleted and was told not to be there. Of a config that was named twice the last was taken without a word.
func TestAChangeThatIsAskedForTwiceIsRefused(t *testing.T) {
	w := start(t)
	id := w.topic("t", 1, nil)
	w.topic("u", 1, nil)
	r := w.dial()
	name, other := "t", "u"
	for _, topics := range [][]kmsg.DeleteTopicsRequestTopic{
		{{Topic: &name}, {Topic: &name}},
		{{Topic: &name}, {TopicID: id}},
		{{TopicID: id}, {TopicID: id}},
		{{Topic: &name, TopicID: id}},
		{{Topic: &other, TopicID: id}},
	} {
		req := kmsg.NewPtrDeleteTopicsRequest()
		req.Version, req.TimeoutMillis, req.Topics = 6, 5000, topics
		got := ask[*kmsg.DeleteTopicsResponse](r, req)
		if len(got.Topics) != 1 || got.Topics[0].ErrorCode != 42 || got.Topics[0].ErrorMessage == nil {
			t.Errorf("%+v, want one refusal", got.Topics)
		}
	}
	if w.cluster.View().Topics["t"] == nil {
		t.Fatal("it was deleted")
	}

	more := kmsg.NewPtrCreatePartitionsRequest()
	more.Version = 3
	for _, n := range []int32{3, 5} {
		rt := kmsg.NewCreatePartitionsRequestTopic()
		rt.Topic, rt.Count = "t", n
		more.Topics = append(more.Topics, rt)
	}
	if got := ask[*kmsg.CreatePartitionsResponse](r, more).Topics; len(got) != 1 || got[0].ErrorCode != 42 || got[0].ErrorMessage == nil {
		t.Errorf("%+v, want one refusal", got)
	}
	if n := len(w.cluster.View().Topics["t"].Partitions); n != 1 {
		t.Errorf("it has %d partitions now", n)
	}

	create := kmsg.NewPtrCreateTopicsRequest()
	create.Version = 7
	topic := kmsg.NewCreateTopicsRequestTopic()
	topic.Topic, topic.NumPartitions, topic.ReplicationFactor = "new", 1, 1
	for _, v := range []string{"86400000", "1000"} {
		c := kmsg.NewCreateTopicsRequestTopicConfig()
		c.Name, c.Value = "retention.ms", &v
		topic.Configs = append(topic.Configs, c)
	}
	create.Topics = append(create.Topics, topic)
	if got := ask[*kmsg.CreateTopicsResponse](r, create).Topics; got[0].ErrorCode != 42 || !strings.Contains(*got[0].ErrorMessage, "retention.ms") {
		t.Errorf("%+v, want a refusal that names the config", got)
	}

	groups := kmsg.NewPtrDeleteGroupsRequest()
	ask[*kmsg.OffsetCommitResponse](r, commitReq(9, "g", "t", commit{0, 1, -1, nil}))
	groups.Groups = []string{"g", "g"}
	if got := ask[*kmsg.DeleteGroupsResponse](r, groups).Groups; len(got) != 1 || got[0].ErrorCode != 0 {
		t.Errorf("%+v, want the group deleted", got)
	}
}

// A null list where the protocol has none decodes like an empty one. For AlterConfigs that is all the difference: it took
// every config of the topic back to its default.
func TestANullListOfConfigsChangesNothing(t *testing.T) {
	w := start(t)
	w.topic("t", 1, map[string]string{"retention.ms": "1000"})
	for version := int16(0); version <= 2; version++ {
		req := kmsg.NewPtrAlterConfigsRequest()
		req.Version = version
		res := kmsg.NewAlterConfigsRequestResource()
		res.ResourceType, res.ResourceName = kmsg.ConfigResourceTypeTopic, "t"
		req.Resources = append(req.Resources, res)
		r := w.dial()
		frame := r.frame(req)
		at := len(frame) - 5 // the list of four bytes, and validate only
		if version == 2 {
			at = len(frame) - 4 // of one byte, the tags of the resource, validate only, tags
			frame[at] = 0
		} else {
			copy(frame[at:], "\xff\xff\xff\xff")
		}
		if _, err := r.Write(frame); err != nil {
			t.Fatal(err)
		}
		r.expectClosed()
		if v := w.cluster.View().Topics["t"].Configs["retention.ms"]; v != "1000" {
			t.Errorf("version %d: retention.ms is %q now", version, v)
		}
		// An empty one is what it says.
		req.ValidateOnly = true
		if got := ask[*kmsg.AlterConfigsResponse](w.dial(), req); got.Resources[0].ErrorCode != 0 {
			t.Errorf("%+v", got)
		}
	}
}

// Clients look for Kafka's own topics whether they are there or not. Auto-creation made them: empty ones, with the
// broker's defaults, in which a tool then looked for the groups of a cluster.
func TestInternalTopicsAreNotMadeByAsking(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.AutoCreateTopics = true })
	r := w.dial()
	ask1 := func(name string) kmsg.MetadataResponseTopic {
		req := kmsg.NewPtrMetadataRequest()
		req.Version, req.AllowAutoTopicCreation = 9, true
		topic := kmsg.NewMetadataRequestTopic()
		topic.Topic = &name
		req.Topics = append(req.Topics, topic)
		return ask[*kmsg.MetadataResponse](r, req).Topics[0]
	}
	for name, want := range map[string]int16{"__consumer_offsets": 3, "__transaction_state": 3, "__": 3, "_one": 0, "plain": 0} {
		if got := ask1(name); got.ErrorCode != want || (w.cluster.View().Topics[name] != nil) != (want == 0) {
			t.Errorf("%s: error %d, want %d", name, got.ErrorCode, want)
		}
	}
	// On purpose it is a topic like any other (Cruise Control keeps one).
	if _, err := w.admin().CreateTopic(t.Context(), 1, 1, nil, "__CruiseControlMetrics"); err != nil {
		t.Fatal(err)
	}
	if got := ask1("__CruiseControlMetrics"); got.ErrorCode != 0 {
		t.Errorf("%+v", got)
	}
	if got := r.put("__CruiseControlMetrics", recordtest.Batch(recordtest.Spec{})); got.ErrorCode != 0 {
		t.Errorf("%+v", got)
	}
}

// What a config is, in its own words, for the consoles that show it.
func TestEveryConfigIsDocumented(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	for _, kind := range []kmsg.ConfigResourceType{kmsg.ConfigResourceTypeTopic, kmsg.ConfigResourceTypeBroker} {
		for _, include := range []bool{true, false} {
			req := kmsg.NewPtrDescribeConfigsRequest()
			req.Version, req.IncludeDocumentation = 3, include
			rr := kmsg.NewDescribeConfigsRequestResource()
			rr.ResourceType, rr.ResourceName = kind, "1"
			if kind == kmsg.ConfigResourceTypeTopic {
				rr.ResourceName = "t"
			}
			req.Resources = append(req.Resources, rr)
			got := ask[*kmsg.DescribeConfigsResponse](r, req).Resources[0]
			if got.ErrorCode != 0 || len(got.Configs) < 10 {
				t.Fatal(errors.New("no configs"))
			}
			for _, c := range got.Configs {
				if has := c.Documentation != nil && *c.Documentation != ""; has != include {
					t.Errorf("%s has documentation: %v, want %v", c.Name, has, include)
				}
			}
		}
	}
}
