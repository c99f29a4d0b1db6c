package publish

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// cutOff keeps messages from a partition of a rig's brokers, in one of the ways
// in which nothing of them is written.
func (r rig) cutOff(partition int32, how func(*attempt) (kmsg.Response, error)) (heal func()) {
	through := r.Publisher.request
	var healed atomic.Bool
	r.Publisher.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
		if a := req.(*attempt); a.lane.partition == partition && !healed.Load() {
			return how(a)
		}
		return through(ack, broker, req)
	}
	return func() { healed.Store(true) }
}

func refuseDial(*attempt) (kmsg.Response, error) {
	return nil, &net.OpError{Op: "dial", Err: errors.New("refused")}
}

// Messages without a key that were given a partition before anybody knew that its
// leader was away waited for it for their whole time, 10 s, and failed, though the
// other partitions lived. They go there; what must be where it is waits.
func TestKeylessLeavesAPartitionThatIsAway(t *testing.T) {
	hang := make(chan struct{})
	t.Cleanup(func() { close(hang) })
	for name, how := range map[string]func(*attempt) (kmsg.Response, error){
		"its broker refuses connections": refuseDial,
		"its broker does not lead": func(a *attempt) (kmsg.Response, error) {
			a.AppendTo(nil)
			return answerOf(a, kerr.NotLeaderForPartition.Code), nil
		},
		"its broker takes no connection": func(*attempt) (kmsg.Response, error) {
			select {
			case <-hang:
			case <-time.After(3 * time.Second):
			}
			return refuseDial(nil)
		},
	} {
		t.Run(name, func(t *testing.T) {
			for _, ack := range []Ack{AckAll, AckLeader} {
				if ack == AckLeader && name == "its broker does not lead" {
					continue // one attempt, which is answered
				}
				r := newRig(t, nil)
				heal := r.cutOff(2, how)
				two := int32(2)
				began := time.Now()
				var wg sync.WaitGroup
				wg.Go(func() { // one that names it
					_, err := r.Publish(t.Context(), "t", Message{Partition: &two}, Options{Ack: ack, Timeout: 5 * time.Second})
					if codeOf(err) != api.CodeBrokersUnavailable {
						t.Errorf("the one that names the partition: %v", err)
					}
				})
				for i := range 3 {
					wg.Go(func() { // single ones, and more than a run together
						for range 10 {
							if done, err := r.Publish(t.Context(), "t", Message{Value: make([]byte, runBytes)}, Options{Ack: ack}); err != nil || done.Partition == two {
								t.Errorf("a single one: %+v, %v", done, err)
							}
						}
						ms := make([]Message, (i+1)*runRecords)
						results, err := r.PublishBatch(t.Context(), "t", ms, Options{Ack: ack})
						if err != nil {
							t.Error(err)
						}
						for k, x := range results {
							if x.Error != nil || x.Partition == two || x.Offset < 0 {
								t.Errorf("message %d: %+v", k, x)
								break
							}
						}
					})
				}
				wg.Wait()
				if took := time.Since(began); took > 8*time.Second {
					t.Errorf("it took %s", took)
				}
				heal()
				if n := len(r.read(t, "t")); n != 30+6*runRecords {
					t.Errorf("%d messages are there, want %d", n, 30+6*runRecords)
				}
			}
		})
	}
}

// Of one request what may go elsewhere does, and each message is told where it is.
// One with an Idempotency-Key stays: its intent says where to look for it.
func TestWhatMayLeaveAPartition(t *testing.T) {
	r := newRig(t, nil)
	heal := r.cutOff(2, refuseDial)
	two := int32(2)
	key := []byte(nil)
	for i := 0; key == nil; i++ {
		if k := fmt.Appendf(nil, "k%d", i); PartitionOf(k, 4) == two {
			key = k
		}
	}
	var ms []Message
	for i := range 4 * runRecords {
		m := Message{Value: fmt.Appendf(nil, "%d", i)}
		switch i % 3 {
		case 1:
			m.Partition = &two
		case 2:
			m.Key = key
		}
		ms = append(ms, m)
	}
	type answer struct {
		results []api.BatchResult
		err     error
	}
	kept := make(chan answer, 1)
	go func() {
		results, err := r.PublishBatch(t.Context(), "t", make([]Message, 5*runRecords), Options{Timeout: 3 * time.Second, IdempotencyKey: "k"})
		kept <- answer{results, err}
	}()
	results, err := r.PublishBatch(t.Context(), "t", ms, Options{Timeout: 3 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	stayed := <-kept
	if stayed.err != nil {
		t.Fatal(stayed.err)
	}
	held := 0
	for _, x := range stayed.results {
		if x.Error != nil {
			held++
		}
	}
	if held == 0 {
		t.Error("messages with an Idempotency-Key went elsewhere")
	}
	heal()
	there := r.read(t, "t")
	for i, x := range results {
		if i%3 != 0 {
			if x.Error == nil || x.Error.Code != api.CodeBrokersUnavailable || x.Partition != two {
				t.Fatalf("message %d must stay: %+v", i, x)
			}
			continue
		}
		rec := there[fmt.Sprintf("%d/%d", x.Partition, x.Offset)]
		if x.Error != nil || x.Partition == two || rec == nil || string(rec.Value) != fmt.Sprint(i) {
			t.Fatalf("message %d may leave: %+v, and there is %v", i, x, rec)
		}
	}
	if r.Buffered() != 0 {
		t.Errorf("%d messages are still on their way", r.Buffered())
	}
}

// What is in a batch that may have been written stays with it, and what comes
// behind goes elsewhere.
func TestADoubtfulBatchStays(t *testing.T) {
	r := newRig(t, nil)
	through := r.Publisher.request
	release, written := make(chan struct{}), make(chan struct{})
	let := sync.OnceFunc(func() { close(release) })
	t.Cleanup(let)
	var once sync.Once
	r.Publisher.request = func(ack Ack, broker int32, req kmsg.Request) (kmsg.Response, error) {
		a := req.(*attempt)
		if a.lane.partition != 2 {
			return through(ack, broker, req)
		}
		resp, err := through(ack, broker, req)
		once.Do(func() { close(written) })
		<-release
		return resp, err
	}
	two := int32(2)
	first := make(chan error, 1)
	go func() {
		_, err := r.Publish(t.Context(), "t", Message{Value: []byte("first"), Partition: &two}, Options{Timeout: 20 * time.Second})
		first <- err
	}()
	<-written
	results, err := r.PublishBatch(t.Context(), "t", make([]Message, 5*runRecords), Options{Timeout: 8 * time.Second})
	if err != nil {
		t.Fatal(err)
	}
	for i, x := range results {
		if x.Error != nil || x.Partition == two {
			t.Fatalf("message %d: %+v", i, x)
		}
	}
	let()
	if err := <-first; err != nil {
		t.Errorf("the one that was on its way: %v", err)
	}
	if n := len(r.read(t, "t")); n != 1+5*runRecords {
		t.Errorf("%d messages are there", n)
	}
}

// Who waits for what is ahead in a partition is told when that is through, also
// when messages behind it have left.
func TestAheadThoughOthersLeave(t *testing.T) {
	r := newRig(t, nil)
	heal := r.cutOff(2, refuseDial)
	two := int32(2)
	landed := make(chan error, 1)
	go func() {
		_, err := r.Publish(t.Context(), "t", Message{Partition: &two}, Options{Timeout: 20 * time.Second})
		landed <- err
	}()
	var over []<-chan struct{}
	top, err := r.up.Topic(t.Context(), "t")
	if err != nil {
		t.Fatal(err)
	}
	for len(over) == 0 {
		time.Sleep(time.Millisecond)
		over = r.Ahead("t", top.UUID, two)
	}
	// As if they had chosen it before it was known to be stuck.
	j := newJob(make([]Message, 3))
	j.now, j.wait.Context, j.wait.deadline = time.Now(), t.Context(), time.Now().Add(10*time.Second)
	if !j.room.take(&j.wait, r.Publisher, 3, 3) || !r.begin() {
		t.Fatal("no room")
	}
	j.room.begun = true
	s := r.state(&top)
	s.mu.Lock()
	l := s.lane(r.Publisher, &top, AckAll, two)
	j.pieces = []piece{{job: j, lane: l, which: []int32{0}}, {job: j, lane: l, which: []int32{1}}, {job: j, lane: l, which: []int32{2}}}
	for i := range j.pieces {
		l.enter(&j.pieces[i])
	}
	s.mu.Unlock()
	if !j.hasLanded() {
		t.Fatal("they did not leave")
	}
	j.room.free()
	for _, x := range j.results {
		if x.Error != nil || x.Partition == two {
			t.Errorf("%+v", x)
		}
	}
	for _, c := range over {
		select {
		case <-c:
			t.Error("what was ahead is called through before it is")
		default:
		}
	}
	heal()
	if err := <-landed; err != nil {
		t.Error(err)
	}
	for _, c := range over {
		select {
		case <-c:
		case <-time.After(10 * time.Second):
			t.Error("nobody is told that it is through")
		}
	}
}
