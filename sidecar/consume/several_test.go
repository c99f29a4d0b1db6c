package consume

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"

	"sidestream/sdk/api"
)

// byTopic counts messages by topic.
func byTopic(ms []api.Message) map[string]int {
	n := map[string]int{}
	for _, m := range ms {
		n[m.Topic]++
	}
	return n
}

func (l *lab) createTopic(name string, partitions int32) {
	l.t.Helper()
	if _, err := kadm.NewClient(l.prod).CreateTopic(l.t.Context(), partitions, 1, nil, name); err != nil {
		l.t.Fatal(err)
	}
}

func (l *lab) deleteTopic(name string) {
	l.t.Helper()
	if _, err := kadm.NewClient(l.prod).DeleteTopic(l.t.Context(), name); err != nil {
		l.t.Fatal(err)
	}
}

func (h *host) pause(group, topic string, on bool) {
	h.lab.t.Helper()
	do := h.m.Resume
	if on {
		do = h.m.Pause
	}
	if _, err := do(h.lab.t.Context(), group, topic); err != nil {
		h.lab.t.Fatal(err)
	}
}

// owned waits until a host owns so many partitions of each topic.
func (h *host) owned(group string, want map[string]int) {
	h.lab.t.Helper()
	eventually(h.lab.t, fmt.Sprintf("%s owns %v", h.id, want), func() bool {
		for topic, n := range want {
			if len(h.partitions(group, topic)) != n {
				return false
			}
		}
		return true
	})
}

func TestSeveralTopics(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders.eu": 2, "orders.us": 1, "clicks": 1, "dead.g": 1, "other": 1})
	for topic, n := range map[string]int{"orders.eu": 4, "orders.us": 3, "clicks": 2, "dead.g": 1, "other": 1} {
		l.produce(topic, 0, 0, n)
	}
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "clicks,orders.*", Lease: time.Minute}
	a.pull(req)
	a.owned("g", map[string]int{"orders.eu": 2, "orders.us": 1, "clicks": 1})
	var all []api.Message
	for len(all) < 9 {
		all = append(all, a.pullSome(req).Messages...)
	}
	if n := byTopic(all); !maps.Equal(n, map[string]int{"orders.eu": 4, "orders.us": 3, "clicks": 2}) {
		t.Fatalf("%v", n)
	}
	// A receipt tells its topic: it is good for each request that is of it.
	of := func(topic string) (receipts []string) {
		for _, m := range all {
			if m.Topic == topic {
				receipts = append(receipts, m.Receipt)
			}
		}
		return receipts
	}
	eu, us, clicks := of("orders.eu"), of("orders.us"), of("clicks")
	for _, c := range []struct {
		topics   string
		receipts []string
		ok       int
		id       string
	}{
		{"orders.*,clicks", []string{eu[0], us[0], clicks[0]}, 3, "orders.eu/0/0"},
		{"orders.us", us[1:], 2, "orders.us/0/1"},
		{"*", eu[1:2], 1, "orders.eu/0/1"},
		{"clicks", eu[2:3], 0, ""},
		{"clicks,other", eu[2:3], 0, ""},
		{"*.us", eu[2:3], 0, ""},
	} {
		r := a.ack("g", c.topics, c.receipts...)
		if r.OK != c.ok || r.OK+r.Failed != len(c.receipts) || r.Results[0].ID != c.id {
			t.Errorf("%s: %+v", c.topics, r)
		}
		if c.ok == 0 && r.Results[0].Error.Code != api.CodeBadRequest {
			t.Errorf("%s: %+v", c.topics, r.Results[0])
		}
	}
	if r, err := a.m.Nack(t.Context(), "g", req.Topic, api.Receipts{Receipts: []string{eu[3], clicks[1]}}); err != nil || r.OK != 2 {
		t.Fatalf("nack %+v %v", r, err)
	}
	// Settled with a pull, and what was given back comes again.
	req.Ack = eu[2:3]
	d := a.pullSome(req)
	if d.Acks == nil || d.Acks.OK != 1 {
		t.Fatalf("acks %+v", d.Acks)
	}
	again := d.Messages
	req.Ack = nil
	for len(again) < 2 {
		again = append(again, a.pullSome(req).Messages...)
	}
	for _, m := range again {
		if m.Attempt != 2 || m.ID != "orders.eu/0/3" && m.ID != "clicks/0/1" {
			t.Errorf("came again: %+v", m)
		}
	}
	if g, err := a.m.Group(t.Context(), "g"); err != nil || !slices.Equal(g.Members[0].Topics, []string{"clicks", "orders.*"}) {
		t.Fatalf("%+v %v", g.Members, err)
	}
	o, err := a.m.Offsets(t.Context(), "g", "orders.*")
	if err != nil || len(o.Topics) != 2 || o.Topics[0].Topic != "orders.eu" || o.Lag != 1 || o.Topics[0].Lag != 1 || o.Topic != "orders.*" {
		t.Fatalf("%+v %v", o, err)
	}
}

// A receipt of a pull of one topic is as it always was, and is good for
// requests of several too.
func TestReceiptsOfOneTopicAmongSeveral(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders.eu": 1, "orders.us": 1})
	l.produce("orders.eu", 0, 0, 3)
	l.produce("orders.us", 0, 0, 1)
	a := l.host("a")
	d := a.pullSome(PullRequest{Group: "g", Topic: "orders.eu", Lease: time.Minute})
	if _, tells := receiptTopic(d.Messages[0].Receipt); tells {
		t.Fatal("the receipt of a pull of one topic has another form now")
	}
	a.pullSome(PullRequest{Group: "g", Topic: "orders.us", Lease: time.Minute})
	for i, topics := range []string{"orders.*", "orders.us,orders.eu", "orders.eu"} {
		if r := a.ack("g", topics, d.Messages[i].Receipt); r.OK != 1 || r.Results[0].ID != d.Messages[i].ID {
			t.Errorf("%s: %+v", topics, r)
		}
	}
	if r := a.ack("g", "x*", d.Messages[0].Receipt); r.Failed != 1 || r.Results[0].Error.Code != api.CodeBadRequest {
		t.Errorf("%+v", r)
	}
}

func TestNoTopicStarvesAnother(t *testing.T) {
	t.Parallel()
	topics := map[string]int32{"big": 2, "small": 1, "tiny": 1}
	l := newLab(t, topics)
	l.produce("big", 0, 0, 500)
	l.produce("big", 1, 0, 500)
	l.produce("small", 0, 0, 30)
	l.produce("tiny", 0, 0, 2)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "*", Max: 20, Lease: time.Minute}
	// Until all has been read ahead.
	if _, err := a.m.Configure(t.Context(), "g", api.GroupConfig{}); err != nil {
		t.Fatal(err)
	}
	a.pause("g", "", true)
	a.pull(req)
	a.owned("g", map[string]int{"big": 2, "small": 1, "tiny": 1})
	eventually(t, "read ahead", func() bool {
		n := 0
		for _, s := range a.m.lookup("g").all() {
			for _, o := range s.list() {
				n += o.view(time.Now()).waiting
			}
		}
		return n == 1032
	})
	a.pause("g", "", false)
	eventually(t, "resumed", func() bool { return !a.m.lookup("g").isPaused("big") })
	d := a.pull(req)
	if n := byTopic(d.Messages); !maps.Equal(n, map[string]int{"big": 9, "small": 9, "tiny": 2}) {
		t.Fatalf("one pull of 20: %v", n)
	}
	for i := 1; i < len(d.Messages); i++ {
		if x, y := d.Messages[i-1], d.Messages[i]; x.Topic == y.Topic && x.Partition == y.Partition && x.Offset >= y.Offset {
			t.Fatalf("%s comes before %s", x.ID, y.ID)
		}
	}
	a.ackAll("g", "*", d)
	// One at a time they take turns.
	req.Max = 1
	var turns []string
	for range 6 {
		d := a.pull(req)
		if len(d.Messages) != 1 {
			t.Fatalf("%v", d.Reason)
		}
		turns = append(turns, d.Messages[0].Topic)
		a.ackAll("g", "*", d)
	}
	if n := strings.Count(strings.Join(turns, " "), "small"); n != 3 {
		t.Fatalf("%v", turns)
	}
}

func TestTopicsComeAndGo(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders.eu": 1, "unlike": 1})
	a := l.host("a")
	if d := a.pull(PullRequest{Group: "none", Topic: "nothing.*", Wait: 2 * time.Second}); *d.Reason != api.ReasonNoTopic {
		t.Fatalf("where nothing matches: %s", *d.Reason)
	}
	sum := newTally()
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	for range 3 { // pulls wait all the time
		wg.Go(func() {
			for ctx.Err() == nil {
				d, err := a.m.Pull(ctx, PullRequest{Group: "g", Topic: "orders.*", Wait: deadline})
				if err != nil {
					t.Errorf("pull: %v", err)
					return
				}
				sum.add(d.Messages)
				if len(d.Messages) > 0 {
					if _, err := a.m.Ack(ctx, "g", "orders.*", api.Receipts{Receipts: receiptsOf(d)}); err != nil {
						t.Errorf("ack: %v", err)
					}
				}
			}
		})
	}
	come := func(n int) {
		t.Helper()
		eventually(t, fmt.Sprintf("%d messages", n), func() bool { return sum.distinct() == n })
	}
	l.produce("orders.eu", 0, 0, 2)
	come(2)
	// A topic appears under waiting pulls.
	l.createTopic("orders.us", 1)
	l.produce("orders.us", 0, 0, 3)
	come(5)
	// A partition appears.
	if _, err := kadm.NewClient(l.prod).UpdatePartitions(t.Context(), 2, "orders.us"); err != nil {
		t.Fatal(err)
	}
	l.renewProducer()
	l.produce("orders.us", 1, 0, 2)
	come(7)
	// A topic goes: the other goes on.
	l.deleteTopic("orders.eu")
	a.owned("g", map[string]int{"orders.eu": 0})
	l.produce("orders.us", 0, 3, 1)
	come(8)
	eventually(t, "nothing is left of it", func() bool { return a.m.lookup("g").share("orders.eu") == nil })
	// And is made again: all of the new one is new.
	l.createTopic("orders.eu", 1)
	l.renewProducer()
	rs := sum.repeated()
	l.produce("orders.eu", 0, 0, 1)
	eventually(t, "the first of the new one", func() bool { return len(sum.repeated()) == 1 })
	if len(rs) > 0 || sum.repeated()[0] != "orders.eu/0/0" {
		t.Fatalf("repeated: %v, then %v", rs, sum.repeated())
	}
}

// Topics that appear later start at their log's start, whatever the group's
// from; those that were there start where it says.
func TestFromOfLaterTopics(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders.eu": 1})
	l.produce("orders.eu", 0, 0, 5)
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "g", Topic: "orders.*", From: "latest"}
	a.pull(req)
	a.owned("g", map[string]int{"orders.eu": 1})
	l.createTopic("orders.us", 1)
	l.produce("orders.us", 0, 0, 3)
	l.produce("orders.eu", 0, 5, 1)
	sum := newTally()
	for end := time.Now().Add(deadline); sum.distinct() < 4 && time.Now().Before(end); {
		d := a.pull(PullRequest{Group: "g", Topic: "orders.*", Wait: 200 * time.Millisecond})
		sum.add(d.Messages)
		if len(d.Messages) > 0 {
			a.ackAll("g", "orders.*", d)
		}
	}
	want := []string{"orders.eu/0/5", "orders.us/0/0", "orders.us/0/1", "orders.us/0/2"}
	if got := slices.Sorted(maps.Keys(sum.seen)); !slices.Equal(got, want) {
		t.Fatalf("%v, want %v", got, want)
	}
	// Another sidecar that begins with the pattern later knows it too.
	l.createTopic("orders.br", 1)
	l.produce("orders.br", 0, 0, 2)
	a.close()
	d := b.pullSome(PullRequest{Group: "g", Topic: "orders.*"})
	if n := byTopic(d.Messages); n["orders.br"] != 2 || len(n) != 1 {
		t.Fatalf("%v", n)
	}
}

func TestNamedTopicsMustBeThere(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders": 1, "clicks": 1})
	l.produce("orders", 0, 0, 2)
	a := l.host("a")
	_, err := a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "orders,nothing,no.*", Wait: deadline})
	wantCode(t, err, api.CodeTopicNotFound)
	if !strings.Contains(err.Error(), "nothing") {
		t.Fatal(err)
	}
	if gs, err := a.m.Groups(t.Context()); err != nil || len(gs.Groups) > 0 {
		t.Fatalf("groups %v %v", gs, err)
	}
	// One that is deleted later keeps nobody from the others; a pull that has
	// nothing to give says that it is gone.
	req := PullRequest{Group: "g", Topic: "orders,clicks", Max: 1, Lease: time.Minute}
	d := a.pullSome(req)
	a.owned("g", map[string]int{"orders": 1, "clicks": 1})
	waits := make(chan error, 1)
	go func() {
		_, err := a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "clicks,orders", Wait: deadline})
		waits <- err
	}()
	eventually(t, "a pull waits", func() bool { return a.m.lookup("g").share("clicks").subscriptions()[0].waiting() == 1 })
	l.deleteTopic("clicks")
	err = <-waits
	wantCode(t, err, api.CodeTopicNotFound)
	if !strings.Contains(err.Error(), "clicks") {
		t.Fatal(err)
	}
	a.ackAll("g", "orders,clicks", d)
	if d := a.pull(req); len(d.Messages) != 1 || d.Messages[0].ID != "orders/0/1" {
		t.Fatalf("%+v", d)
	}
	_, err = a.m.Pull(t.Context(), req)
	wantCode(t, err, api.CodeTopicNotFound)
}

func TestReasonsOfSeveral(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"orders": 1, "clicks": 1})
	l.produce("orders", 0, 0, 3)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "orders,clicks", Lease: time.Minute, Max: 1}
	a.pull(req)
	a.owned("g", map[string]int{"orders": 1, "clicks": 1})
	d := a.pullSome(req)
	eventually(t, "in_flight_full", func() bool { return *a.pull(req).Reason == api.ReasonInFlightFull })
	if e := a.pull(req); !maps.Equal(e.Reasons, map[string]api.Reason{"orders": api.ReasonInFlightFull, "clicks": api.ReasonAtEnd}) {
		t.Fatalf("%v", e.Reasons)
	}
	req.Max = 100
	req.Ack = receiptsOf(d)
	d = a.pullSome(req)
	req.Ack = nil
	if e := a.pull(req); *e.Reason != api.ReasonAtEnd || e.Reasons != nil {
		t.Fatalf("%s %v", *e.Reason, e.Reasons)
	}
	a.ackAll("g", "*", d)
	a.pause("g", "clicks", true)
	if e := a.pull(req); *e.Reason != api.ReasonPaused || e.Reasons["orders"] != api.ReasonAtEnd {
		t.Fatalf("%s %v", *e.Reason, e.Reasons)
	}
	sought, err := a.m.Seek(t.Context(), "g", "or*,clicks", api.SeekRequest{To: "earliest"})
	if err != nil || sought.Topics["orders"].Offsets[0] != 0 || len(sought.Topics) != 2 {
		t.Fatalf("%+v %v", sought, err)
	}
	if got := offsetsOf(a.pullSome(req).Messages); got != "[0 1 2]" {
		t.Fatal(got)
	}
	_, err = a.m.Seek(t.Context(), "g", "or*", api.SeekRequest{Offsets: map[string]int64{"0": 1}})
	wantCode(t, err, api.CodeBadRequest)
}

func TestTwoSidecarsShareAPattern(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs.a": 3, "jobs.b": 3, "jobs.c": 2})
	for topic, n := range map[string]int32{"jobs.a": 3, "jobs.b": 3, "jobs.c": 2} {
		for p := range n {
			l.produce(topic, p, 0, 20)
		}
	}
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "g", Topic: "jobs.*"}
	a.pull(req)
	b.pull(req)
	count := func(h *host) int {
		return len(h.partitions("g", "jobs.a")) + len(h.partitions("g", "jobs.b")) + len(h.partitions("g", "jobs.c"))
	}
	eventually(t, "four each", func() bool { return count(a) == 4 && count(b) == 4 })
	sum := drain(t, "g", "jobs.*", 160, a, b)
	if r := sum.repeated(); len(r) > 0 {
		t.Fatalf("delivered twice: %v", r)
	}
	// A new topic moves nothing of the others.
	before := fmt.Sprint(a.partitions("g", "jobs.a"), a.partitions("g", "jobs.b"), a.partitions("g", "jobs.c"))
	l.createTopic("jobs.d", 2)
	eventually(t, "the new topic is shared", func() bool { return len(a.partitions("g", "jobs.d")) == 1 && len(b.partitions("g", "jobs.d")) == 1 })
	if after := fmt.Sprint(a.partitions("g", "jobs.a"), a.partitions("g", "jobs.b"), a.partitions("g", "jobs.c")); after != before {
		t.Fatalf("%s became %s", before, after)
	}
	g, err := a.m.Group(t.Context(), "g")
	if err != nil {
		t.Fatal(err)
	}
	if last := g.History[len(g.History)-1]; last.Topic != "jobs.d" || last.Cause != "topic jobs.d appeared" {
		t.Fatalf("%+v", last)
	}
}

// While one group is joined and left again and again, another's pulls never
// notice: no generation changes, no message comes twice, and none waits.
func TestRebalanceOfOneGroupLeavesOthersAlone(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"calm": 4, "wild.a": 8, "wild.b": 8})
	a := l.host("a")
	b := l.host("b")
	calm := PullRequest{Group: "calm", Topic: "calm"}
	a.pull(calm)
	a.owned("calm", map[string]int{"calm": 4})
	before, err := a.m.Group(t.Context(), "calm")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer stop()
	var rounds atomic.Int64
	wg.Go(func() {
		for ctx.Err() == nil {
			for _, h := range []*host{a, b} {
				if _, err := h.m.Pull(ctx, PullRequest{Group: "wild", Topic: "wild.*", Wait: 50 * time.Millisecond}); err != nil && ctx.Err() == nil {
					t.Errorf("wild: %v", err)
				}
			}
			if g := b.m.lookup("wild"); rounds.Add(1)%2 == 0 && g != nil {
				g.leaveNow() // and joins again with the next pull
				<-g.done
			}
		}
	})
	sum := newTally()
	for i := 0; i < 60 || rounds.Load() < 6; i++ {
		l.produce("calm", int32(i%4), i, 1)
		start := time.Now()
		d := a.pull(PullRequest{Group: "calm", Topic: "calm", Wait: deadline})
		if took := time.Since(start); len(d.Messages) == 0 || took > deadline/2 {
			t.Fatalf("message %d: %v after %s", i, d.Reason, took)
		}
		sum.add(d.Messages)
		a.ackAll("calm", "calm", d)
	}
	stop()
	wg.Wait()
	after, err := a.m.Group(t.Context(), "calm")
	if err != nil {
		t.Fatal(err)
	}
	if len(sum.repeated()) > 0 || !slices.Equal(before.Owners, after.Owners) || len(after.History) != len(before.History) {
		t.Fatalf("repeated %v, owners %v, then %v", sum.repeated(), before.Owners, after.Owners)
	}
}

// slowStarts are brokers that do not tell where the logs of a topic start.
type slowStarts struct {
	Upstream
	topic string
	asked atomic.Int64
}

func (u *slowStarts) StartOffsets(ctx context.Context, topic string) (map[int32]int64, error) {
	if topic == u.topic {
		u.asked.Add(1)
		<-ctx.Done()
		return nil, ctx.Err()
	}
	return u.Upstream.StartOffsets(ctx, topic)
}

// The takes of a group whose topic's leaders do not answer used up the slots of
// all groups.
func TestTakesOfOneGroupHoldUpNoOther(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"stuck": 4, "free": 2})
	slow := &slowStarts{topic: "stuck"}
	l.brokers = func(up Upstream) Upstream {
		slow.Upstream = up
		return slow
	}
	a := l.host("a", func(c *Config) { c.Parallel = 1 })
	a.pull(PullRequest{Group: "stuck", Topic: "stuck"})
	eventually(t, "its takes are under way", func() bool { return slow.asked.Load() > 0 })
	a.pull(PullRequest{Group: "free", Topic: "free"})
	a.owned("free", map[string]int{"free": 2})
	// Nor does one topic of a group hold up the others.
	a.pull(PullRequest{Group: "stuck", Topic: "*"})
	a.owned("stuck", map[string]int{"free": 2, "stuck": 0})
	if d := a.pull(PullRequest{Group: "stuck", Topic: "*"}); *d.Reason != api.ReasonRebalancing || d.Reasons["free"] != api.ReasonAtEnd {
		t.Fatalf("%s %v", *d.Reason, d.Reasons)
	}
}

// A sidecar from which a topic's partitions have moved went on showing their
// lag, so that sums over sidecars counted it twice.
func TestLagGaugeMovesWithItsPartition(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 3)
	a, b := l.host("a"), l.host("b")
	req := PullRequest{Group: "g", Topic: "jobs"}
	a.pull(req)
	a.owned("g", map[string]int{"jobs": 1})
	b.pull(req)
	shows := func(h *host) bool { return h.gauge("sidestream_consume_lag_messages") == 3 }
	hides := func(h *host) bool { return h.gauge("sidestream_consume_lag_messages") == 0 }
	eventually(t, "a shows the lag", func() bool { return shows(a) && hides(b) })
	eventually(t, "b is a member", func() bool { return *b.pull(req).Reason == api.ReasonNoPartition })
	a.endSession()
	b.owned("g", map[string]int{"jobs": 1})
	eventually(t, "b alone shows it", func() bool {
		a.pull(req) // stays a member
		return shows(b) && hides(a)
	})
}
