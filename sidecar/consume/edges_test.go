package consume

import (
	"errors"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"github.com/twmb/franz-go/pkg/kversion"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

func wantCode(t *testing.T, err error, code api.Code) {
	t.Helper()
	if !errors.Is(err, &api.Error{Code: code}) {
		t.Fatalf("error %v, want %s", err, code)
	}
}

func TestUnknownTopicMakesNoGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"hello": 1})
	a := l.host("a")
	start := time.Now()
	_, err := a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "nothing", Wait: deadline})
	wantCode(t, err, api.CodeTopicNotFound)
	if took := time.Since(start); took > deadline/2 {
		t.Fatalf("said after %s", took)
	}
	if gs, err := a.m.Groups(t.Context()); err != nil || len(gs.Groups) > 0 {
		t.Fatalf("groups %v %v", gs, err)
	}
	_, err = a.m.Group(t.Context(), "g")
	wantCode(t, err, api.CodeGroupNotFound)
}

func TestPullChecksItsRequest(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"hello": 1})
	a := l.host("a")
	for _, req := range []PullRequest{
		{Group: "", Topic: "hello"},
		{Group: "a/b", Topic: "hello"},
		{Group: "g", Topic: ".."},
		{Group: "g", Topic: "hello", Max: -1},
		{Group: "g", Topic: "hello", Max: 1 << 20},
		{Group: "g", Topic: "hello", Wait: -1},
		{Group: "g", Topic: "hello", Lease: time.Millisecond},
		{Group: "g", Topic: "hello", From: "yesterday"},
	} {
		_, err := a.m.Pull(t.Context(), req)
		if !errors.Is(err, &api.Error{Code: api.CodeBadRequest}) {
			t.Errorf("%+v: %v", req, err)
		}
	}
}

func TestFrom(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	l.produce("views", 0, 0, 5)
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "late", Topic: "views", From: "latest"}
	a.pull(req)
	eventually(t, "owned", func() bool { return len(a.partitions("late", "views")) == 2 })
	l.produce("views", 0, 5, 1)
	if got := offsetsOf(a.pullSome(req).Messages); got != "[5]" {
		t.Fatalf("from=latest: %s", got)
	}
	// The beginning was fixed for all partitions by the first: whoever comes
	// later misses nothing.
	b.pull(req)
	eventually(t, "one each", func() bool { return len(b.partitions("late", "views")) == 1 })
	l.produce("views", b.partitions("late", "views")[0], 9, 1)
	b.pullSome(PullRequest{Group: "late", Topic: "views"})

	_, err := b.m.Pull(t.Context(), PullRequest{Group: "late", Topic: "views", From: "earliest"})
	wantCode(t, err, api.CodeGroupConfig)
	if !strings.Contains(err.Error(), "latest") {
		t.Fatalf("the error does not say what the group has: %v", err)
	}
	// Changed by another sidecar: seen at once.
	if _, err := a.m.Configure(t.Context(), "late", api.GroupConfig{From: "earliest"}); err != nil {
		t.Fatal(err)
	}
	b.pull(PullRequest{Group: "late", Topic: "views", From: "earliest"})

	// By time.
	at := time.Now().Add(time.Hour)
	rs := []*kgo.Record{{Topic: "views", Partition: 1, Value: []byte("future"), Timestamp: at}}
	if err := l.prod.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
		t.Fatal(err)
	}
	d := a.pullSome(PullRequest{Group: "timed", Topic: "views", From: at.Add(-time.Minute).UTC().Format(time.RFC3339)})
	if len(d.Messages) != 1 || *d.Messages[0].Value != "future" {
		t.Fatalf("%+v", d.Messages)
	}
}

func TestConfigure(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	a := l.host("a")
	zero, most := 0, 1001
	for _, c := range []api.GroupConfig{
		{Order: "chaos"}, {Lease: "soon"}, {Lease: "1ms"}, {MaxAttempts: &most},
		{Exclusive: "very"}, {From: "never"}, {Dead: "dead g"}, {Unreadable: "mend"},
	} {
		_, err := a.m.Configure(t.Context(), "g", c)
		if !errors.Is(err, &api.Error{Code: api.CodeBadRequest}) {
			t.Errorf("%+v: %v", c, err)
		}
	}
	g, err := a.m.Configure(t.Context(), "g", api.GroupConfig{})
	if err != nil || *g.Config.MaxAttempts != 10 || g.Config.Dead != "dead.g" || g.Config.Unreadable != "dead" {
		t.Fatalf("%+v %v", g, err)
	}
	g, err = a.m.Configure(t.Context(), "g", api.GroupConfig{Order: "partition", Lease: "5s", MaxAttempts: &zero, Exclusive: "strict", From: "latest", Dead: "skip", Unreadable: "stop"})
	if err != nil || *g.Config.MaxAttempts != 0 || g.Config.Dead != "skip" || g.Config.Unreadable != "stop" {
		t.Fatalf("%+v %v", g, err)
	}
	if g.Config.Lease != "5s" || g.Config.Exclusive != "strict" || g.Config.From != "latest" {
		t.Fatalf("%+v %v", g, err)
	}
	// What is left out stays.
	g, err = a.m.Configure(t.Context(), "g", api.GroupConfig{Lease: "6s"})
	if err != nil || g.Config.Lease != "6s" || g.Config.Exclusive != "strict" || g.Config.From != "latest" || g.Config.Order != "partition" {
		t.Fatalf("%+v %v", g, err)
	}
	l.produce("views", 0, 0, 1)
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{From: "earliest"}); err != nil {
		t.Fatal(err)
	}
	d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
	if left := time.Until(*d.Messages[0].LeaseUntil); left > 7*time.Second {
		t.Fatalf("lease of %s", left)
	}
}

func TestNoPartition(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "g", Topic: "views"}
	if d := a.pull(req); *d.Reason != api.ReasonRebalancing && *d.Reason != api.ReasonAtEnd {
		t.Fatalf("first pull: %v", *d.Reason)
	}
	eventually(t, "owned", func() bool { return len(a.partitions("g", "views")) == 1 })
	eventually(t, "no_partition at b", func() bool { return *b.pull(req).Reason == api.ReasonNoPartition })
}

func TestLeavesWhenNobodyPulls(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1, "other": 1})
	l.produce("views", 0, 0, 1)
	a := l.host("a", func(c *Config) { c.LeaveAfter = 300 * time.Millisecond })
	d := a.pullSome(PullRequest{Group: "g", Topic: "views", Lease: 2 * time.Second})
	a.pull(PullRequest{Group: "g", Topic: "other"})
	topics := func() string { return strings.Join(a.m.lookup("g").topics(), " ") }
	eventually(t, "one topic is left", func() bool { return topics() == "views" })
	a.ackAll("g", "views", d) // a lease was out until now, so it stayed
	eventually(t, "left", func() bool { return a.m.lookup("g") == nil })
	g, err := a.m.Group(t.Context(), "g")
	if err != nil || len(g.Members) > 0 || g.Planner != "" || g.Owners[0].Owner != "" {
		t.Fatalf("%+v %v", g, err)
	}
	// And joins again.
	l.produce("views", 0, 1, 1)
	if got := offsetsOf(a.pullSome(PullRequest{Group: "g", Topic: "views"}).Messages); got != "[1]" {
		t.Fatal(got)
	}
}

// In an outage of the store a group that was idle for leave_after was left, and
// could not be joined again: its pulls answered "rebalancing" until the store
// was back, though the sidecar had owned everything. Also within the first
// seconds of the outage, when the session still counts as proven.
func TestStaysWhileTheStoreIsAway(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1, "other": 1})
	a := l.host("a", func(c *Config) { c.LeaveAfter = 300 * time.Millisecond })
	a.pull(PullRequest{Group: "g", Topic: "views"})
	a.pull(PullRequest{Group: "g", Topic: "other"})
	both := func() bool { return len(a.partitions("g", "views")) == 1 && len(a.partitions("g", "other")) == 1 }
	eventually(t, "owned", func() bool {
		a.pull(PullRequest{Group: "g", Topic: "views"})
		a.pull(PullRequest{Group: "g", Topic: "other"})
		return both()
	})
	l.store.SetDown(true)
	if a.session().Ownership() != discovery.Proven {
		t.Fatal("the session is to count as proven for a while")
	}
	time.Sleep(900 * time.Millisecond) // three times as long as a topic is kept without a pull
	l.produce("views", 0, 0, 1)
	l.produce("other", 0, 0, 1)
	for _, topic := range []string{"views", "other"} {
		if got := offsetsOf(a.pullSome(PullRequest{Group: "g", Topic: topic, AutoAck: true}).Messages); got != "[0]" {
			t.Fatalf("%s: %s", topic, got)
		}
	}
	if !both() {
		t.Fatal("a partition was given up")
	}
	l.store.SetDown(false)
	eventually(t, "left, with the store", func() bool { return a.m.lookup("g") == nil })
}

// A consumer that is between two pulls is one: its group must not be deleted
// under it, whichever sidecar is asked.
func TestIdleMemberKeepsItsGroup(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 1)
	short := func(c *Config) { c.LeaveAfter = 2 * time.Second }
	a, b := l.host("a", short), l.host("b", short)
	a.ackAll("g", "views", a.pullSome(PullRequest{Group: "g", Topic: "views"}))
	for _, h := range []*host{a, b} {
		err := h.m.DeleteGroup(t.Context(), "g")
		wantCode(t, err, api.CodeGroupConfig)
		if !strings.Contains(err.Error(), "in use by a") || !strings.Contains(err.Error(), "2s after the last pull") {
			t.Fatalf("does not say who and how long: %v", err)
		}
	}
	eventually(t, "deleted once it has left", func() bool { return b.m.DeleteGroup(t.Context(), "g") == nil })
	wantCode(t, a.m.DeleteGroup(t.Context(), "g"), api.CodeGroupNotFound)
}

func TestDeletedGroupBeginsAnew(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2})
	for p := range int32(2) {
		l.produce("views", p, 0, 5)
	}
	a, b := l.host("a"), l.host("b")
	drain(t, "g", "views", 10, a, b)
	err := a.m.DeleteGroup(t.Context(), "g")
	wantCode(t, err, api.CodeGroupConfig)
	if !strings.Contains(err.Error(), "b") {
		t.Fatalf("does not say who: %v", err)
	}
	dir := b.dir
	b.close()
	a.leave("g")
	if err := a.m.DeleteGroup(t.Context(), "g"); err != nil {
		t.Fatal(err)
	}
	if gs, err := a.m.Groups(t.Context()); err != nil || len(gs.Groups) > 0 {
		t.Fatalf("%v %v", gs, err)
	}
	wantCode(t, a.m.DeleteGroup(t.Context(), "g"), api.CodeGroupNotFound)
	// b was away at the deletion, and still has positions on its disk.
	b = l.hostIn("b", dir)
	sum := drain(t, "g", "views", 10, b)
	if len(sum.order[0]) != 5 || len(sum.order[1]) != 5 {
		t.Fatalf("%v", sum.order)
	}
}

func TestPositionBelowTheLogsStart(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 10)
	a := l.host("a", func(c *Config) { c.PrefetchCount = 1 })
	d := a.pullSome(PullRequest{Group: "g", Topic: "views", Max: 1, Lease: time.Minute})
	a.close()
	adm := kadm.NewClient(l.prod)
	var o kadm.Offsets
	o.Add(kadm.Offset{Topic: "views", Partition: 0, At: 6})
	if _, err := adm.DeleteRecords(t.Context(), o); err != nil {
		t.Fatal(err)
	}
	b := l.host("b")
	got := b.pullSome(PullRequest{Group: "g", Topic: "views"})
	if s := offsetsOf(got.Messages); s != "[6 7 8 9]" {
		t.Fatalf("%s after %s", s, offsetsOf(d.Messages))
	}
	b.ackAll("g", "views", got)
	off, err := b.m.Offsets(t.Context(), "g", "views")
	if err != nil || off.Partitions[0].Position != 10 || off.Partitions[0].Start != 6 || off.Lag != 0 {
		t.Fatalf("%+v %v", off, err)
	}
}

func TestControlRecordsAndAbortedTransactionsCountAsAcked(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	tx, err := kgo.NewClient(kgo.SeedBrokers(l.kafka.ListenAddrs()...), kgo.TransactionalID("t"), kgo.DefaultProduceTopic("views"))
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Close()
	run := func(value string, how kgo.TransactionEndTry) {
		t.Helper()
		if err := tx.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		if err := tx.ProduceSync(t.Context(), kgo.StringRecord(value)).FirstErr(); err != nil {
			t.Fatal(err)
		}
		if err := tx.EndTransaction(t.Context(), how); err != nil {
			t.Fatal(err)
		}
	}
	run("kept", kgo.TryCommit)
	run("dropped", kgo.TryAbort)
	a := l.host("a")
	d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
	if len(d.Messages) != 1 || *d.Messages[0].Value != "kept" {
		t.Fatalf("%+v", d.Messages)
	}
	a.ackAll("g", "views", d)
	eventually(t, "no lag over the tail without records", func() bool {
		o, err := a.m.Offsets(t.Context(), "g", "views")
		return err == nil && o.Lag == 0 && o.Partitions[0].Position == o.Partitions[0].End && o.Partitions[0].End == 4
	})
}

func TestTopicDeletedAndMadeAgain(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 5)
	a := l.host("a")
	d := a.pullSome(PullRequest{Group: "g", Topic: "views", Max: 3, Lease: time.Minute})
	a.ackAll("g", "views", d)
	d = a.pullSome(PullRequest{Group: "g", Topic: "views", Max: 1, Lease: time.Minute})
	adm := kadm.NewClient(l.prod)
	if _, err := adm.DeleteTopics(t.Context(), "views"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "404", func() bool {
		_, err := a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "views"})
		return errors.Is(err, &api.Error{Code: api.CodeTopicNotFound})
	})
	if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, "views"); err != nil {
		t.Fatal(err)
	}
	l.renewProducer() // it knows the topic by the id it had
	r := &kgo.Record{Topic: "views", Partition: 0, Value: []byte("new")}
	if err := l.prod.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var got *Delivery
	eventually(t, "a message of the new topic", func() bool {
		var err error
		got, err = a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "views", Wait: 100 * time.Millisecond})
		return err == nil && len(got.Messages) > 0
	})
	if m := got.Messages[0]; m.Offset != 0 || *m.Value != "new" {
		t.Fatalf("%+v", m)
	}
	if r := a.ack("g", "views", receiptsOf(d)...); r.OK != 0 { // of the topic before
		t.Fatalf("an ack of the topic before counted: %+v", r)
	}
}

func TestTopicMadeAgainUnseen(t *testing.T) {
	t.Parallel()
	// Deleted and made again between two looks: only the UUID tells.
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 5)
	a := l.host("a", func(c *Config) { c.Recheck = 2 * time.Second })
	a.ackAll("g", "views", a.pullSome(PullRequest{Group: "g", Topic: "views"}))
	adm := kadm.NewClient(l.prod)
	if _, err := adm.DeleteTopics(t.Context(), "views"); err != nil {
		t.Fatal(err)
	}
	if _, err := adm.CreateTopic(t.Context(), 1, 1, nil, "views"); err != nil {
		t.Fatal(err)
	}
	l.renewProducer() // it knows the topic by the id it had
	r := &kgo.Record{Topic: "views", Partition: 0, Value: []byte("new")}
	if err := l.prod.ProduceSync(t.Context(), r).FirstErr(); err != nil {
		t.Fatal(err)
	}
	var got *Delivery
	eventually(t, "a message of the new topic", func() bool {
		var err error
		got, err = a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "views", Wait: 100 * time.Millisecond})
		return err == nil && len(got.Messages) > 0
	})
	if m := got.Messages[0]; m.Offset != 0 || *m.Value != "new" {
		t.Fatalf("%+v", m)
	}
}

func TestBrokersDown(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 2)
	a := l.host("a")
	a.ackAll("g", "views", a.pullSome(PullRequest{Group: "g", Topic: "views"}))
	var down atomic.Bool
	down.Store(true)
	l.kafka.ControlKey(int16(kmsg.Fetch), func(req kmsg.Request) (kmsg.Response, error, bool) {
		l.kafka.KeepControl()
		if !down.Load() {
			return nil, nil, false
		}
		r := req.(*kmsg.FetchRequest)
		resp := r.ResponseKind().(*kmsg.FetchResponse)
		for _, t := range r.Topics {
			rt := kmsg.NewFetchResponseTopic()
			rt.Topic, rt.TopicID = t.Topic, t.TopicID
			for _, p := range t.Partitions {
				rp := kmsg.NewFetchResponseTopicPartition()
				rp.Partition = p.Partition
				rp.ErrorCode = kerr.NotLeaderForPartition.Code
				rt.Partitions = append(rt.Partitions, rp)
			}
			resp.Topics = append(resp.Topics, rt)
		}
		return resp, nil, true
	})
	eventually(t, "brokers_down", func() bool {
		return *a.pull(PullRequest{Group: "g", Topic: "views"}).Reason == api.ReasonBrokersDown
	})
	down.Store(false)
	l.produce("views", 0, 2, 1)
	if got := offsetsOf(a.pullSome(PullRequest{Group: "g", Topic: "views"}).Messages); got != "[2]" {
		t.Fatal(got)
	}
}

func TestLeaderMoves(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2}, kfake.NumBrokers(3))
	a := l.host("a")
	a.pull(PullRequest{Group: "g", Topic: "views"})
	eventually(t, "owned", func() bool { return len(a.partitions("g", "views")) == 2 })
	for round := range 3 {
		for p := range int32(2) {
			to := (l.kafka.LeaderFor("views", p) + 1) % 3
			if err := l.kafka.MoveTopicPartition("views", p, to); err != nil {
				t.Fatal(err)
			}
			l.produce("views", p, round, 1)
		}
		sum := drain(t, "g", "views", 2, a)
		if r := sum.repeated(); len(r) > 0 {
			t.Fatalf("delivered twice: %v", r)
		}
	}
}

func TestBrokersWithoutTopicIDs(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 2}, kfake.MaxVersions(kversion.V2_6_0()))
	l.produce("views", 0, 0, 3)
	l.produce("views", 1, 0, 3)
	a, b := l.host("a"), l.host("b")
	drain(t, "g", "views", 6, a, b)
	drain(t, "h", "views", 6, a)
	if _, err := a.m.Seek(t.Context(), "g", "views", api.SeekRequest{To: "earliest"}); err != nil {
		t.Fatal(err)
	}
	drain(t, "g", "views", 6, a, b)
}

func TestPartitionsAreAdded(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	a := l.host("a")
	a.pull(PullRequest{Group: "g", Topic: "views", From: "latest"})
	eventually(t, "owned", func() bool { return len(a.partitions("g", "views")) == 1 })
	adm := kadm.NewClient(l.prod)
	if _, err := adm.UpdatePartitions(t.Context(), 3, "views"); err != nil {
		t.Fatal(err)
	}
	eventually(t, "produced to a new partition", func() bool {
		r := &kgo.Record{Topic: "views", Partition: 2, Value: []byte("x")}
		return l.prod.ProduceSync(t.Context(), r).FirstErr() == nil
	})
	// It came after the group began, so it is read from its start.
	d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
	if d.Messages[0].ID != "views/2/0" {
		t.Fatalf("%+v", d.Messages)
	}
	eventually(t, "three partitions", func() bool { return len(a.partitions("g", "views")) == 3 })
}
