package broker_test

import (
	"encoding/binary"
	"io"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker"
)

// startCounted starts a broker whose metrics can be read.
func startCounted(t *testing.T, change func(*broker.Config)) (*world, *prometheus.Registry) {
	t.Helper()
	reg := prometheus.NewRegistry()
	w := &world{t: t, cfg: broker.DefaultConfig(), cluster: newFakeCluster(), reg: reg}
	w.cfg.ID, w.cfg.Listen, w.cfg.DataDir = selfID, "127.0.0.1:0", t.TempDir()
	change(&w.cfg)
	w.open()
	t.Cleanup(w.close)
	return w, reg
}

// begin sends the beginning of a produce request of that size, of which body bytes follow.
func (r *raw) begin(size, body int) {
	b := binary.BigEndian.AppendUint32(nil, uint32(size))
	b = append(b, 0, 0, 0, 9) // Produce 9
	_, _ = r.Write(append(b, make([]byte, body)...))
}

// trickle sends a byte now and then until the server closes the connection.
func (r *raw) trickle(wg *sync.WaitGroup, every time.Duration) {
	stop := make(chan struct{})
	wg.Go(func() {
		_, _ = io.Copy(io.Discard, r)
		close(stop)
	})
	wg.Go(func() {
		tick := time.NewTicker(every)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				_, _ = r.Write([]byte{0})
			case <-stop:
				return
			}
		}
	})
}

// One client that began a request of 100 MB and then sent a byte now and then had all the request memory, for its
// length was charged before its bytes came, and each byte gave it the receive timeout anew: every other client stood
// still. 32 requests of 4 MB did the same. What has not come costs nothing now, and whoever is too slow is cut.
func TestTricklersStopNobody(t *testing.T) {
	const patience = 4 * time.Second
	for name, c := range map[string]struct {
		body  int // bytes that each of them sends at once
		sizes []int
	}{
		"that claim":     {100, []int{500, 300_000}},
		"that send most": {3 << 20, []int{500}}, // they hold what they sent, and ordinary small requests have the rest
	} {
		t.Run(name, func(t *testing.T) {
			w, reg := startCounted(t, func(c *broker.Config) { c.ReceiveTimeout = patience })
			w.topic("t", 1, nil)
			cl := w.client(kgo.DefaultProduceTopic("t"))
			produce := func(size int) time.Duration {
				begun := time.Now()
				if err := cl.ProduceSync(t.Context(), kgo.StringRecord(strings.Repeat("v", size))).FirstErr(); err != nil {
					t.Fatal(err)
				}
				return time.Since(begun)
			}
			produce(10) // the client has its connections and producer id
			var wg sync.WaitGroup
			began := time.Now()
			for i := range 33 {
				r := w.dial()
				size := 4 << 20
				if i == 0 {
					size = 100 << 20
				}
				r.begin(size, c.body)
				r.trickle(&wg, patience/10)
			}
			var slowest time.Duration
			n := 0
			for ; time.Since(began) < patience*3/4; n++ {
				slowest = max(slowest, produce(c.sizes[n%len(c.sizes)]))
			}
			if slowest > patience/2 { // it was all of it and more; milliseconds when nothing else runs here
				t.Errorf("the slowest of %d records took %s", n, slowest)
			}
			wg.Wait() // all of them are cut
			if took := time.Since(began); took > 5*patience {
				t.Errorf("the last was cut after %s", took)
			}
			if n := gauge(t, reg, "sidestream_broker_connections_refused_total", "receive_timeout"); n != 33 {
				t.Errorf("%v connections are counted", n)
			}
			for _, gone := range []string{"sidestream_broker_request_memory_arriving_bytes", "sidestream_broker_requests_waiting"} {
				if n := gauge(t, reg, gone, ""); n != 0 {
					t.Errorf("%s is %v when all are gone", gone, n)
				}
			}
		})
	}
}

// A request that is no Produce and over a megabyte was received whole before it was refused.
func TestOversizedRequestsAreRefusedByTheirHead(t *testing.T) {
	w, reg := startCounted(t, func(*broker.Config) {})
	w.topic("t", 1, nil)
	for _, take := range ways {
		r := w.dial()
		take(r)
		b := binary.BigEndian.AppendUint32(nil, 50<<20)
		if _, err := r.Write(append(b, 0, 3, 0)); err != nil { // Metadata
			t.Fatal(err)
		}
		r.expectClosed()
	}
	if n := gauge(t, reg, "sidestream_broker_connections_refused_total", "oversized_request"); n != 2 {
		t.Errorf("%v connections are counted", n)
	}
}
