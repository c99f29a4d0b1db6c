package spool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// host is a spool before a real publisher, with brokers that speak the protocol.
type host struct {
	*Spool
	up      *upstream.Upstream
	cluster *kfake.Cluster
}

func newHost(t *testing.T, change func(*Config)) host {
	t.Helper()
	return newLoggedHost(t, change, logger(t))
}

func newLoggedHost(t *testing.T, change func(*Config), log *zap.Logger) host {
	t.Helper()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "one"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(cluster.Close)
	uc := upstream.DefaultConfig()
	uc.Bootstrap, uc.MetadataAge = cluster.ListenAddrs(), 100*time.Millisecond
	up, err := upstream.New(uc, nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(up.Close)
	p, err := publish.New(publish.DefaultConfig(), up, publish.Deps{})
	if err != nil {
		t.Fatal(err)
	}
	sender, err := NewSender(up, "none", 1<<20)
	if err != nil {
		t.Fatal(err)
	}
	cfg := DefaultConfig()
	if change != nil {
		change(&cfg)
	}
	s, err := Open(cfg, Deps{Dir: t.TempDir(), Next: p, Brokers: up, Sender: sender, Logger: log})
	if err != nil {
		t.Fatal(err)
	}
	s.Start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.Background(), 100*time.Millisecond)
		defer cancel()
		_ = s.Close(ctx)
		p.Close(ctx)
	})
	return host{s, up, cluster}
}

// values waits until the partition has so many messages.
func (h host) values(t *testing.T, n int) (values []string) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		recs, _, _, err := h.up.Peek(t.Context(), "one", 0, 0, 100, 1<<20)
		values = values[:0]
		for _, r := range recs {
			values = append(values, string(r.Value))
		}
		if len(values) >= n {
			return values
		}
		if time.Now().After(end) {
			t.Fatalf("the partition has %v, want %d messages: %v", values, n, err)
		}
	}
}

// A message that was answered 504 is still on its way when the next one of its
// key is taken into the spool: it is written first all the same.
func TestASpooledMessageComesBehindOneOnItsWay(t *testing.T) {
	h := newHost(t, nil)
	publishOne := func(value string, o publish.Options) error {
		_, err := h.Publish(t.Context(), "one", publish.Message{Key: []byte("k"), Value: []byte(value)}, o)
		return err
	}
	if err := publishOne("first", publish.Options{}); err != nil {
		t.Fatal(err)
	}
	var cut atomic.Bool
	cut.Store(true)
	h.cluster.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		h.cluster.KeepControl()
		if cut.Load() {
			return nil, errors.New("the connection breaks"), true
		}
		return nil, nil, false
	})
	// Long enough for the pause before the next attempt to be a long one.
	if err := publishOne("A", publish.Options{Timeout: 1500 * time.Millisecond}); codeOf(err) != api.CodeUnknownOutcome {
		t.Fatalf("got %v, want %s", err, api.CodeUnknownOutcome)
	}
	if err := publishOne("B", publish.Options{Ack: publish.AckSpool}); err != nil {
		t.Fatal(err)
	}
	cut.Store(false)
	if got := fmt.Sprint(h.values(t, 3)); got != "[first A B]" {
		t.Errorf("the partition has %s, want A before B", got)
	}
}

// Of a batch that is answered as it goes, a later piece is on its way when an
// earlier one was not sent in time: it is not put into the spool then.
func TestNoPieceOfASequenceFallsBehindALaterOne(t *testing.T) {
	h := newHost(t, func(c *Config) { c.Fallback = true })
	order := publish.NewSequence()
	piece := func(value string, entered func()) (string, *api.Error) {
		r, err := h.PublishBatch(t.Context(), "one", []publish.Message{{Key: []byte("k"), Value: []byte(value)}},
			publish.Options{MaySpool: true, Timeout: 2 * time.Second, Entered: entered, Sequence: order})
		if err != nil {
			return "", asError(err)
		}
		return r[0].SpoolID, r[0].Error
	}
	if _, err := piece("first", nil); err != nil {
		t.Fatal(err)
	}
	var refuse atomic.Bool
	refuse.Store(true)
	h.cluster.ControlKey(kmsg.Produce.Int16(), func(k kmsg.Request) (kmsg.Response, error, bool) {
		h.cluster.KeepControl()
		if !refuse.Load() {
			return nil, nil, false
		}
		return refusal(k.(*kmsg.ProduceRequest)), nil, true
	})
	entered := make(chan struct{})
	var wg sync.WaitGroup
	var id [2]string
	var errs [2]*api.Error
	wg.Go(func() { id[0], errs[0] = piece("line 1", sync.OnceFunc(func() { close(entered) })) })
	<-entered
	time.Sleep(time.Second) // the client's next lines arrive
	wg.Go(func() {
		id[1], errs[1] = piece("line 2", nil)
	})
	time.Sleep(1200 * time.Millisecond) // the time of line 1 is over, that of line 2 is not
	refuse.Store(false)
	wg.Wait()
	if errs[0] == nil || errs[0].Code != api.CodeBrokersUnavailable || id[0] != "" {
		t.Errorf("line 1 is answered spool id %q, error %v; want %s, since line 2 may be written before", id[0], errs[0], api.CodeBrokersUnavailable)
	}
	if errs[1] != nil {
		t.Errorf("line 2: %v", errs[1])
	}
	values := h.values(t, 2)
	if i := slices.Index(values, "line 1"); i >= 0 && errs[0] != nil {
		t.Errorf("line 1 was refused and is written: %v", values)
	}
	// The last of all falls back as ever.
	refuse.Store(true)
	if id, err := piece("line 3", nil); err != nil || id == "" {
		t.Errorf("line 3: spool id %q, %v; want it in the spool", id, err)
	}
	refuse.Store(false)
	if got := fmt.Sprint(h.values(t, 3)); got != "[first line 2 line 3]" {
		t.Errorf("the partition has %s", got)
	}
}

// refusal says that nothing of a request was appended.
func refusal(req *kmsg.ProduceRequest) kmsg.Response {
	resp := req.ResponseKind().(*kmsg.ProduceResponse)
	for _, topic := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic, rt.TopicID = topic.Topic, topic.TopicID
		for _, part := range topic.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.ErrorCode = part.Partition, kerr.NotLeaderForPartition.Code
			rt.Partitions = append(rt.Partitions, rp)
		}
		resp.Topics = append(resp.Topics, rt)
	}
	return resp
}

// What is on its way is waited for once: what enters later holds nothing up. While
// it does not land, the spool says why it waits.
func TestWhatIsOnItsWayGoesFirst(t *testing.T) {
	r := newRig(t, nil)
	r.spool(0, "0")
	r.settled()
	onItsWay := make(chan struct{})
	r.b.set(func() { r.live.ahead = []<-chan struct{}{onItsWay} })
	r.spool(0, "1")
	for end := time.Now().Add(20 * time.Second); len(r.Status().Away) == 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("%+v", r.Status())
		}
	}
	if got := fmt.Sprint(r.b.values("t", 0)); got != "[0]" {
		t.Errorf("the partition has %s while a message that goes first is on its way", got)
	}
	later := make(chan struct{}) // never lands
	r.b.set(func() { r.live.ahead = []<-chan struct{}{later} })
	close(onItsWay)
	r.settled()
	if got := fmt.Sprint(r.b.values("t", 0)); got != "[0 1]" {
		t.Errorf("the partition has %s", got)
	}
}
