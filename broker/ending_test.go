package broker_test

import (
	"net"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record/recordtest"
)

// ways of being served: a connection is on an event loop until its first Fetch.
var ways = map[string]func(r *raw){
	"on a loop": func(*raw) {},
	"handed over": func(r *raw) {
		req := fetchReq(12, "t", 0, 0)
		req.MaxWaitMillis = 0
		r.get(req)
	},
}

// Produce requests waited for the disk when one with acks=0 behind them failed, or one that made no sense came. Either
// closes the connection, since there is no answer that could tell of it, and that took the answers of those before it
// along: records were written of which the producer was told nothing.
func TestAnswersBeforeTheRequestThatEndsAConnection(t *testing.T) {
	batch := recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("v", 300)}})
	last := map[string]func(r *raw) []byte{
		"acks=0 that fails": func(r *raw) []byte { return r.frame(produceReq(9, 0, "none", 0, batch)) },
		"an unknown key":    func(*raw) []byte { return []byte{0, 0, 0, 9, 0x7f, 0, 0, 0, 0, 0, 0, 0, 0} },
		"a negative length": func(*raw) []byte { return []byte{0xff, 0xff, 0xff, 0xff} },
	}
	for way, take := range ways {
		for what, end := range last {
			t.Run(what+", "+way, func(t *testing.T) {
				w := start(t)
				w.topic("t", 1, map[string]string{"flush.messages": "1"})
				r := w.dial()
				r.t = t
				take(r)
				first := r.next + 1
				var stream []byte
				const n = 30
				for range n {
					stream = append(stream, r.frame(produceReq(9, -1, "t", 0, batch))...)
				}
				stream = append(stream, end(r)...)
				for range 5 { // these are not served any more
					stream = append(stream, r.frame(kmsg.NewPtrApiVersionsRequest())...)
				}
				if _, err := r.Write(stream); err != nil {
					t.Fatal(err)
				}
				for i := range int32(n) {
					if id, _ := r.body(); id != first+i {
						t.Fatalf("answer %d, want %d", id, first+i)
					}
				}
				r.expectClosed()
			})
		}
	}
}

// A client that pipelined and then shut its sending side lost the answers that waited for the disk: to gnet the end of
// what comes in is the end of the connection. Only handed-over connections were served to the end.
func TestHalfClosedClientOnALoopGetsItsAnswers(t *testing.T) {
	w := start(t)
	w.topic("t", 1, map[string]string{"flush.messages": "1"})
	for range 5 {
		r := w.dial()
		var stream []byte
		const n = 50
		for range n {
			stream = append(stream, r.frame(produceReq(9, -1, "t", 0, recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("v", 3000)}})))...)
		}
		if _, err := r.Write(stream); err != nil {
			t.Fatal(err)
		}
		if err := r.Conn.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		for i := range int32(n) {
			if id, _ := r.body(); id != i+1 {
				t.Fatalf("answer %d, want %d", id, i+1)
			}
		}
		r.expectClosed()
	}
}

// Why connections were closed for a failed acks=0 was in no metric.
func TestConnectionsClosedForAcksZeroAreCounted(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := &world{t: t, cfg: broker.DefaultConfig(), cluster: newFakeCluster(), reg: reg}
	w.cfg.ID, w.cfg.Listen, w.cfg.DataDir = selfID, "127.0.0.1:0", t.TempDir()
	w.open()
	defer w.close()
	r := w.dial()
	r.send(produceReq(9, 0, "none", 0, recordtest.Batch(recordtest.Spec{})))
	r.expectClosed()
	if n := gauge(t, reg, "sidestream_broker_connections_refused_total", "not_answerable"); n != 1 {
		t.Errorf("%v connections are counted", n)
	}
}
