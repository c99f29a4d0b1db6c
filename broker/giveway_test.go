package broker_test

import (
	"net"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record/recordtest"
)

// dialFrom connects from an address of this machine.
func (w *world) dialFrom(ip string) *raw {
	w.t.Helper()
	d := net.Dialer{LocalAddr: &net.TCPAddr{IP: net.ParseIP(ip)}}
	c, err := d.Dial("tcp", w.b.Addr())
	if err != nil {
		w.t.Fatal(err)
	}
	w.t.Cleanup(func() { _ = c.Close() })
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	return &raw{t: w.t, Conn: c}
}

// alive fails the test unless the connection is served.
func (r *raw) alive() {
	r.t.Helper()
	ask[*kmsg.ApiVersionsResponse](r, kmsg.NewPtrApiVersionsRequest())
}

const (
	aWhile     = 100 * time.Millisecond
	idleEnough = 1100 * time.Millisecond // of giveway.go's idleAfter
)

// One client that opened connections and left them was all that it took: every further one was refused for as long as
// the idle timeout, publishers' too. Now the longest idle gives way. Who waits for an answer, or is in the middle of a
// request, does not, however long that takes.
func TestTheLongestIdleConnectionGivesWay(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.MaxConnections, c.MaxConnectionsPerIP = 6, 6 })
	w.topic("t", 1, nil)
	poll := w.dial() // the oldest, and waiting
	wait := fetchReq(12, "t", 0, 0)
	wait.MaxWaitMillis = 20_000
	poll.send(wait)
	half := w.dial() // in the middle of a length
	_, _ = half.Write([]byte{0, 0})
	more := w.dial() // in the middle of a request
	_, _ = more.Write([]byte{0, 0, 0, 40, 0, 18, 0})
	time.Sleep(aWhile)
	first := w.dial() // never said a word
	time.Sleep(aWhile)
	second := w.dial() // handed over, and idle since
	now := fetchReq(12, "t", 0, 0)
	now.MaxWaitMillis = 0
	second.get(now)
	time.Sleep(aWhile)
	third := w.dial() // on a loop, and idle since it was answered
	third.alive()
	time.Sleep(idleEnough)

	for _, c := range []*raw{first, second, third} {
		w.dial().alive()
		c.expectClosed()
	}
	w.dial().expectClosed() // those that are left are busy, or were a moment ago

	// Those that stayed are served to the end. The poll's answer is what makes room for the producer.
	_, _ = half.Write([]byte{0, 11, 0, 18, 0, 0, 0, 0, 0, 7, 0, 1, 'x'})
	if id := half.receive(kmsg.NewPtrApiVersionsResponse()); id != 7 {
		t.Errorf("answer %d to request 7", id)
	}
	ask[*kmsg.ProduceResponse](half, produceReq(9, -1, "t", 0, recordtest.Batch(recordtest.Spec{})))
	got := kmsg.NewPtrFetchResponse()
	got.Version = 12
	poll.receive(got)
	if p := got.Topics[0].Partitions[0]; p.ErrorCode != 0 || len(p.RecordBatches) == 0 {
		t.Errorf("the poll got %+v", p)
	}
	_ = more.Close()
}

// An address that has its part takes it from nobody else: of its own connections one gives way.
func TestAnAddressMakesRoomForItself(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.MaxConnections = 5 }) // 2 for each, by default
	other := w.dialFrom("127.0.0.2")
	time.Sleep(aWhile)
	first, second := w.dialFrom("127.0.0.1"), w.dialFrom("127.0.0.1")
	first.alive() // it is in; who dials first need not be
	second.alive()
	w.dialFrom("127.0.0.1").expectClosed() // not idle for long enough to give way
	time.Sleep(idleEnough)
	second.alive()
	w.dialFrom("127.0.0.1").alive()
	first.expectClosed()
	other.alive()
	second.alive()
}
