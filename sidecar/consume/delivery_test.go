package consume

import (
	"context"
	"errors"
	"math/rand/v2"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

func TestNackRedeliversInOrder(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 6)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "jobs", Max: 5, Lease: time.Minute}
	d := a.pullSome(req)
	a.ack("g", "jobs", d.Messages[0].Receipt, d.Messages[3].Receipt)
	r, err := a.m.Nack(t.Context(), "g", "jobs", api.Receipts{Receipts: []string{d.Messages[2].Receipt}, Delay: "30ms"})
	if err != nil || r.OK != 1 {
		t.Fatalf("nack %+v %v", r, err)
	}
	// Message 1 is out still, so nothing else is handed out.
	if d := a.pull(req); len(d.Messages) > 0 || *d.Reason != api.ReasonInFlightFull {
		t.Fatalf("while a lease is out: %s %v", offsetsOf(d.Messages), d.Reason)
	}
	a.ack("g", "jobs", d.Messages[1].Receipt)
	d2 := a.pullSome(req)
	if got := offsetsOf(d2.Messages); got != "[2 4]" || d2.Messages[0].Attempt != 2 || d2.Messages[1].Attempt != 2 {
		t.Fatalf("after the nack %s %+v", got, d2.Messages)
	}
	// The old receipt still acknowledges, but can nack and extend no more.
	old := d.Messages[4].Receipt
	for _, f := range []func() (api.ReceiptResponse, error){
		func() (api.ReceiptResponse, error) {
			return a.m.Nack(t.Context(), "g", "jobs", api.Receipts{Receipts: []string{old}})
		},
		func() (api.ReceiptResponse, error) {
			return a.m.Extend(t.Context(), "g", "jobs", api.Receipts{Receipts: []string{old}})
		},
	} {
		if r, err := f(); err != nil || r.Failed != 1 || r.Results[0].Error.Code != api.CodeLeaseLost {
			t.Fatalf("with a receipt whose lease is over: %+v %v", r, err)
		}
	}
	if r := a.ack("g", "jobs", old); r.OK != 1 {
		t.Fatalf("ack after the lease %+v", r)
	}
	a.ack("g", "jobs", d2.Messages[0].Receipt)
	if got := offsetsOf(a.pullSome(req).Messages); got != "[5]" {
		t.Fatal(got)
	}
}

func TestLeaseExpiryRedelivers(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 3)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "jobs", Lease: 150 * time.Millisecond}
	if got := offsetsOf(a.pullSome(req).Messages); got != "[0 1 2]" {
		t.Fatal(got)
	}
	// A waiting pull is woken by the expiry.
	d := a.pullSome(PullRequest{Group: "g", Topic: "jobs", Lease: 400 * time.Millisecond})
	if got := offsetsOf(d.Messages); got != "[0 1 2]" || d.Messages[0].Attempt != 2 {
		t.Fatalf("%s attempt %d", got, d.Messages[0].Attempt)
	}
	r, err := a.m.Extend(t.Context(), "g", "jobs", api.Receipts{Receipts: receiptsOf(d), Lease: "1h"})
	if err != nil || r.OK != 3 || r.Results[0].LeaseUntil == nil || time.Until(*r.Results[0].LeaseUntil) < 30*time.Minute {
		t.Fatalf("extend %+v %v", r, err)
	}
	if d := a.pull(PullRequest{Group: "g", Topic: "jobs", Wait: 600 * time.Millisecond}); len(d.Messages) > 0 {
		t.Fatalf("delivered again although extended: %s", offsetsOf(d.Messages))
	}
}

func TestReturnSpendsNoAttempt(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 3)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "jobs", Lease: time.Minute}
	d := a.pullSome(req)
	d.Return()
	d.Return()
	d2 := a.pullSome(req)
	if got := offsetsOf(d2.Messages); got != "[0 1 2]" || d2.Messages[0].Attempt != 1 {
		t.Fatalf("%s attempt %d", got, d2.Messages[0].Attempt)
	}
	a.ackAll("g", "jobs", d2)
	d2.Return()
	if d := a.pull(req); len(d.Messages) > 0 {
		t.Fatal("acknowledged messages came back")
	}
}

func TestVanishedPullerGetsNoLease(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	a := l.host("a")
	a.pull(PullRequest{Group: "g", Topic: "jobs"})
	eventually(t, "owned", func() bool { return len(a.partitions("g", "jobs")) == 1 })
	l.produce("jobs", 0, 0, 1)
	d := a.pull(PullRequest{Group: "g", Topic: "jobs", Wait: 10 * time.Second, Alive: func() bool { return false }})
	if len(d.Messages) > 0 {
		t.Fatal("a puller that is gone got messages")
	}
	if d := a.pullSome(PullRequest{Group: "g", Topic: "jobs"}); d.Messages[0].Attempt != 1 {
		t.Fatalf("attempt %d", d.Messages[0].Attempt)
	}
}

func TestAutoAck(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 4)
	a := l.host("a")
	req := PullRequest{Group: "g", Topic: "jobs", Max: 2, AutoAck: true}
	for _, want := range []string{"[0 1]", "[2 3]"} {
		d := a.pullSome(req)
		if got := offsetsOf(d.Messages); got != want || d.Messages[0].Receipt != "" || d.Messages[0].LeaseUntil != nil {
			t.Fatalf("%s, want %s; %+v", got, want, d.Messages[0])
		}
	}
	o, err := a.m.Offsets(t.Context(), "g", "jobs")
	if err != nil || o.Partitions[0].Position != 4 {
		t.Fatalf("%+v %v", o, err)
	}
}

func TestWaitingPullsAreWokenOneByOne(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 4})
	a := l.host("a")
	a.pull(PullRequest{Group: "g", Topic: "jobs"})
	eventually(t, "owned", func() bool { return len(a.partitions("g", "jobs")) == 4 })
	got := make(chan *Delivery, 4)
	for range 4 {
		go func() {
			d, err := a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "jobs", Max: 1, Wait: deadline})
			if err != nil {
				t.Error(err)
			}
			got <- d
		}()
	}
	eventually(t, "four pulls wait", func() bool {
		return a.m.lookup("g").share("jobs").subscriptions()[0].waiting() == 4
	})
	for p := range int32(4) {
		l.produce("jobs", p, 0, 1)
	}
	sum := newTally()
	for range 4 {
		d := <-got
		if d == nil || len(d.Messages) != 1 {
			t.Fatalf("a waiting pull got %+v", d)
		}
		sum.add(d.Messages)
	}
	if sum.distinct() != 4 {
		t.Fatalf("%d messages", sum.distinct())
	}
}

func TestReceiptsOfOthers(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 2)
	a, b := l.host("a"), l.host("b")
	d := a.pullSome(PullRequest{Group: "g", Topic: "jobs", Lease: time.Minute})
	r := a.ack("g", "jobs", "nonsense", d.Messages[0].Receipt)
	if r.OK != 1 || r.Failed != 1 || r.Results[0].Error.Code != api.CodeBadRequest || r.Results[1].ID != "jobs/0/0" {
		t.Fatalf("%+v", r)
	}
	if r := a.ack("other", "jobs", d.Messages[1].Receipt); r.Results[0].Error.Code != api.CodeBadRequest {
		t.Fatalf("a receipt of another group: %+v", r)
	}
	if r := b.ack("g", "jobs", d.Messages[1].Receipt); r.Results[0].Error.Code != api.CodeLeaseLost {
		t.Fatalf("a receipt of another sidecar: %+v", r)
	}
	never := receipt{generation: 1, lease: 99, offset: 1}.encode("g", "jobs")
	if r := a.ack("g", "jobs", never); r.Results[0].Error.Code != api.CodeBadRequest {
		t.Fatalf("a receipt never given: %+v", r)
	}
	if _, err := a.m.Ack(t.Context(), "g", "jobs", api.Receipts{}); !errors.Is(err, &api.Error{Code: api.CodeBadRequest}) {
		t.Fatal(err)
	}
}

func TestCloseAnswersAndWaitsForAcks(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"jobs": 1})
	l.produce("jobs", 0, 0, 2)
	a := l.host("a", func(c *Config) { c.ReleaseWait = deadline })
	d := a.pullSome(PullRequest{Group: "g", Topic: "jobs", Max: 1, Lease: time.Minute})
	waiting := make(chan error, 1)
	go func() {
		_, err := a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "jobs", Wait: deadline})
		waiting <- err
	}()
	eventually(t, "a pull waits", func() bool {
		return a.m.lookup("g").share("jobs").subscriptions()[0].waiting() == 1
	})
	closed := make(chan error, 1)
	go func() { closed <- a.m.Close(t.Context()) }()
	if err := <-waiting; !errors.Is(err, &api.Error{Code: api.CodeDraining}) {
		t.Fatalf("the waiting pull: %v", err)
	}
	if _, err := a.m.Pull(t.Context(), PullRequest{Group: "g", Topic: "jobs"}); !errors.Is(err, &api.Error{Code: api.CodeDraining}) {
		t.Fatalf("a pull while draining: %v", err)
	}
	select {
	case err := <-closed:
		t.Fatalf("closed with a lease out: %v", err)
	default:
	}
	a.ackAll("g", "jobs", d)
	if err := <-closed; err != nil {
		t.Fatal(err)
	}
	st, err := a.m.stored(t.Context(), "g", "jobs")
	if err != nil || st[0].Position.Low != 1 {
		t.Fatalf("checkpoint at release %+v %v", st, err)
	}
	for _, prefix := range []string{"groups/g/members/", "groups/g/owners/", "groups/g/planner", "assign/"} {
		if es, err := l.store.List(t.Context(), prefix); err != nil || len(es) > 0 {
			t.Fatalf("left behind under %s: %v %v", prefix, es, err)
		}
	}
}

func TestPrefetchIsBounded(t *testing.T) {
	const partitions, each = 4, 400
	l := newLab(t, map[string]int32{"jobs": partitions})
	var rs []*kgo.Record
	for i := range partitions * each {
		value := make([]byte, 1<<10)
		for j := range value {
			value[j] = byte(rand.Int()) // which no codec shortens
		}
		rs = append(rs, &kgo.Record{Topic: "jobs", Partition: int32(i % partitions), Value: value})
		if len(rs) == 80 { // small batches, so that the bound is near
			if err := l.prod.ProduceSync(t.Context(), rs...).FirstErr(); err != nil {
				t.Fatal(err)
			}
			rs = nil
		}
	}
	const process = 128 << 10
	a := l.host("a", func(c *Config) {
		c.PrefetchCount, c.PrefetchBytes, c.ProcessBytes = 100, 64<<10, process
		c.FetchBytes, c.PartitionFetchBytes = 64<<10, 16<<10
	})
	a.pull(PullRequest{Group: "g", Topic: "jobs"})
	most := int64(0)
	full := func() bool {
		most = max(most, a.m.reader.budget.held.Load())
		return most >= process/2
	}
	eventually(t, "read ahead", full)
	end := time.Now().Add(500 * time.Millisecond)
	for time.Now().Before(end) {
		full()
		time.Sleep(time.Millisecond)
	}
	// One fetch may overrun the bound: of each partition by what it asks for and
	// one batch (20 messages), and a message costs more than its value.
	if limit := int64(process + partitions*(16<<10+20<<10)*5/4); most > limit {
		t.Fatalf("%d bytes held, at most %d wanted", most, limit)
	}
	sum := drain(t, "g", "jobs", partitions*each, a)
	if r := sum.repeated(); len(r) > 0 {
		t.Fatalf("delivered twice: %v", r)
	}
	if held := a.m.reader.budget.held.Load(); held != 0 {
		t.Fatalf("%d bytes held with everything acknowledged", held)
	}
}

// The answer to a nack of what is acknowledged said that the message comes
// again, which it does not.
func TestNackOfTheAcknowledged(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.produce("views", 0, 0, 1)
	a := l.host("a")
	d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
	a.ackAll("g", "views", d)
	for name, f := range map[string]func(context.Context, string, string, api.Receipts) (api.ReceiptResponse, error){"nack": a.m.Nack, "extend": a.m.Extend} {
		r, err := f(t.Context(), "g", "views", api.Receipts{Receipts: receiptsOf(d)})
		if err != nil || r.Failed != 1 || r.Results[0].Error.Code != api.CodeLeaseLost || !strings.Contains(r.Results[0].Error.Message, "acknowledged already") {
			t.Errorf("%s: %+v, %v", name, r, err)
		}
	}
}
