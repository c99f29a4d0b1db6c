package broker_test

import (
	"bytes"
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record/recordtest"
)

// A connection leaves its event loop at its first Fetch. What was pipelined around that must come out whole and in
// order, however the bytes were split.
func TestHandOverWithPipelinedRequests(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	big := recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("r", 60_000)}})
	w.dial().put("t", bytes.Clone(big))
	const conns = 40
	var wg sync.WaitGroup
	for i := range conns {
		r := w.dial()
		rng := rand.New(rand.NewPCG(uint64(i), 1))
		wg.Add(1)
		go func() {
			defer wg.Done()
			handOverOnce(t, r, rng, big)
		}()
	}
	wg.Wait()
}

func handOverOnce(t *testing.T, r *raw, rng *rand.Rand, big []byte) {
	small := recordtest.Batch(recordtest.Spec{Values: []string{"s"}})
	var stream []byte
	var kinds []byte
	add := func(kind byte) {
		switch kind {
		case 'p':
			stream = append(stream, r.frame(produceReq(9, -1, "t", 0, small))...)
		case 'f':
			req := fetchReq(12, "t", 0, 0)
			req.MaxBytes = int32(len(big)) // the first batch
			stream = append(stream, r.frame(req)...)
		case 'v':
			stream = append(stream, r.frame(kmsg.NewPtrApiVersionsRequest())...)
		}
		kinds = append(kinds, kind)
	}
	for range rng.IntN(7) {
		add("pv"[rng.IntN(2)])
	}
	for _, k := range []byte("fpvffp") {
		add(k)
	}
	go func() {
		for len(stream) > 0 {
			n := len(stream)
			if rng.IntN(3) > 0 {
				n = min(n, 1+rng.IntN(200))
			}
			if _, err := r.Write(stream[:n]); err != nil {
				return
			}
			stream = stream[n:]
		}
	}()
	for i, kind := range kinds {
		var size [4]byte
		if _, err := io.ReadFull(r, size[:]); err != nil {
			t.Errorf("answer %d of %d: %v", i+1, len(kinds), err)
			return
		}
		b := make([]byte, binary.BigEndian.Uint32(size[:]))
		if _, err := io.ReadFull(r, b); err != nil {
			t.Errorf("answer %d of %d: %v", i+1, len(kinds), err)
			return
		}
		if id := binary.BigEndian.Uint32(b); id != uint32(i+1) {
			t.Errorf("answer %d came as number %d", id, i+1)
			return
		}
		if kind == 'f' {
			resp := kmsg.NewPtrFetchResponse()
			resp.Version = 12
			if err := resp.ReadFrom(b[5:]); err != nil {
				t.Errorf("fetch answer: %v", err)
				return
			}
			if got := resp.Topics[0].Partitions[0].RecordBatches; len(got) < len(big) || !bytes.Equal(got[16:len(big)], big[16:]) {
				t.Errorf("fetch answer has %d bytes that are not the batch", len(got))
				return
			}
		}
	}
}

// A client that pipelines and does not read must cost neither memory nor CPU, and must find every answer when it reads
// at last, the Fetch at the end included.
func TestSlowReaderOfSmallAnswersLosesNothing(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	shrink(t, r.Conn)
	w.dial().put("t", recordtest.Batch(recordtest.Spec{}))
	const n = 20_000 // answers of some 10 MB
	sent := make(chan error, 1)
	go func() {
		var b []byte
		for range n {
			b = append(b, r.frame(kmsg.NewPtrApiVersionsRequest())...)
		}
		b = append(b, r.frame(fetchReq(12, "t", 0, 0))...)
		_, err := r.Write(b)
		sent <- err
	}()
	before := usage(t)
	time.Sleep(300 * time.Millisecond) // the server fills the socket and must then rest
	if spent := usage(t) - before; spent > 3*time.Second {
		t.Errorf("%v of CPU while nobody reads", spent)
	}
	for i := range n {
		if id, _ := r.body(); id != int32(i+1) {
			t.Fatalf("answer %d came as number %d", id, i+1)
		}
	}
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = 12
	r.receive(resp)
	if len(resp.Topics[0].Partitions[0].RecordBatches) == 0 {
		t.Error("the fetch after them has no records")
	}
	if err := <-sent; err != nil {
		t.Error(err)
	}
}

// A large Fetch to a client that stalls waits in the kernel: no copy of the records in memory, no spinning.
func TestSlowReaderOfALargeFetch(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	p := w.dial()
	batch := recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 1_000_000)}})
	const batches = 40
	for range batches {
		if got := p.put("t", bytes.Clone(batch)); got.ErrorCode != 0 {
			t.Fatalf("produce: %+v", got)
		}
	}
	r := w.dial()
	shrink(t, r.Conn)
	runtime.GC()
	var before, during runtime.MemStats
	runtime.ReadMemStats(&before)
	r.send(fetchReq(12, "t", 0, 0))
	cpu := usage(t)
	time.Sleep(300 * time.Millisecond)
	runtime.ReadMemStats(&during)
	if spent := usage(t) - cpu; spent > 3*time.Second {
		t.Errorf("%v of CPU while nobody reads", spent)
	}
	if grown := int64(during.HeapAlloc) - int64(before.HeapAlloc); grown > 20<<20 {
		t.Errorf("the heap grew by %d bytes for a fetch of %d", grown, batches*len(batch))
	}
	resp := kmsg.NewPtrFetchResponse()
	resp.Version = 12
	r.receive(resp)
	got := resp.Topics[0].Partitions[0].RecordBatches
	if len(got) != batches*len(batch) {
		t.Fatalf("%d bytes, want %d", len(got), batches*len(batch))
	}
	for i := range batches {
		if !bytes.Equal(got[i*len(batch)+16:(i+1)*len(batch)], batch[16:]) {
			t.Fatalf("batch %d differs", i)
		}
	}
}

func shrink(t *testing.T, c net.Conn) {
	t.Helper()
	if err := c.(*net.TCPConn).SetReadBuffer(128 << 10); err != nil {
		t.Fatal(err)
	}
}

func usage(t *testing.T) time.Duration {
	t.Helper()
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// After the hand-over a client may shut its sending side and still gets every answer.
func TestHalfClosedConnectionGetsItsAnswers(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{}))
	r.get(fetchReq(12, "t", 0, 0))
	for range 5 {
		r.send(produceReq(9, -1, "t", 0, recordtest.Batch(recordtest.Spec{})))
	}
	if err := r.Conn.(*net.TCPConn).CloseWrite(); err != nil {
		t.Fatal(err)
	}
	for i := range int32(5) {
		if id, _ := r.body(); id != i+3 {
			t.Fatalf("answer %d, want %d", id, i+3)
		}
	}
	r.expectClosed()
}

func TestInFlightLimitsHoldBackAndLoseNothing(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.MaxInFlightRequests, c.MaxInFlightBytes = 2, 1<<10 })
	w.topic("t", 1, nil)
	r := w.dial()
	var all []byte
	for range 200 {
		all = append(all, r.frame(produceReq(9, -1, "t", 0, recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("v", 300)}})))...)
	}
	go func() { _, _ = r.Write(all) }()
	for i := range 200 {
		if id, _ := r.body(); id != int32(i+1) {
			t.Fatalf("answer %d came as number %d", id, i+1)
		}
	}
}

func TestRequestMemoryHoldsBackAndLosesNothing(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.MaxRequestBytes, c.MaxRequestMemory = 300_000, 300_000 })
	w.topic("t", 1, map[string]string{"flush.messages": "1"})
	var wg sync.WaitGroup
	for range 6 {
		r := w.dial()
		wg.Add(1)
		go func() {
			defer wg.Done()
			for range 10 {
				_, err := r.Write(r.frame(produceReq(9, -1, "t", 0, recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("v", 200_000)}}))))
				if err != nil {
					t.Error(err)
					return
				}
			}
			var size [4]byte
			for i := range 10 {
				if _, err := io.ReadFull(r, size[:]); err != nil {
					t.Errorf("answer %d: %v", i, err)
					return
				}
				if _, err := io.CopyN(io.Discard, r, int64(binary.BigEndian.Uint32(size[:]))); err != nil {
					t.Error(err)
					return
				}
			}
		}()
	}
	wg.Wait()
	if got := listOffset(w.dial(), 7, -1); got.Offset != 60 {
		t.Errorf("end %d, want 60", got.Offset)
	}
}

func TestOverLimitFrameClosesTheConnection(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.MaxRequestBytes = 1 << 20 })
	r := w.dial()
	_, _ = r.Write([]byte{0x7f, 0, 0, 0})
	r.expectClosed()
	// The same after a hand-over.
	w.topic("t", 1, nil)
	r = w.dial()
	req := fetchReq(12, "t", 0, 0)
	req.MaxWaitMillis = 0
	r.get(req)
	_, _ = r.Write([]byte{0x7f, 0, 0, 0})
	r.expectClosed()
}

func TestConnectionLimits(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.MaxConnectionsPerIP = 2 })
	a, b := w.dial(), w.dial()
	ask[*kmsg.ApiVersionsResponse](a, kmsg.NewPtrApiVersionsRequest())
	ask[*kmsg.ApiVersionsResponse](b, kmsg.NewPtrApiVersionsRequest())
	w.dial().expectClosed()
	_ = a.Close()
	for range 100 { // the server learns of the close in its own time
		c, err := net.Dial("tcp", w.b.Addr())
		if err != nil {
			t.Fatal(err)
		}
		r := &raw{t: t, Conn: c}
		_ = c.SetDeadline(time.Now().Add(10 * time.Second))
		_, _ = c.Write(r.frame(kmsg.NewPtrApiVersionsRequest()))
		_, err = io.ReadFull(c, make([]byte, 4))
		_ = c.Close()
		if err == nil {
			return
		}
		time.Sleep(10 * time.Millisecond)
	}
	t.Error("a place that was given back is not given out again")
}

func TestIdleConnectionsAreClosed(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.IdleTimeout, c.ReceiveTimeout = time.Second, time.Second })
	w.topic("t", 1, nil)
	onLoop, begun, handed := w.dial(), w.dial(), w.dial()
	_, _ = begun.Write([]byte{0, 0, 0, 100, 0})
	req := fetchReq(12, "t", 0, 0)
	req.MaxWaitMillis = 0
	handed.get(req)
	for _, r := range []*raw{onLoop, begun, handed} {
		r.expectClosed()
	}
}

// A request that has begun has the receive timeout, from its first byte on: two
// bytes of a length were once held for as long as an idle connection.
func TestHalfALengthIsNotHeld(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.IdleTimeout, c.ReceiveTimeout = time.Hour, time.Second })
	w.topic("t", 1, nil)
	onLoop, handed := w.dial(), w.dial()
	req := fetchReq(12, "t", 0, 0)
	req.MaxWaitMillis = 0
	handed.get(req)
	for _, r := range []*raw{onLoop, handed} {
		_, _ = r.Write([]byte{0, 0})
		r.expectClosed()
	}
}
