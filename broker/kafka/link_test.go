package kafka

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http/httptest"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap/zaptest"

	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
	"sidestream/broker/record/recordtest"
)

// logBackend is a broker of which every partition is the same log, visible as soon as it is written.
type logBackend struct {
	Backend
	log *commitlog.Log
}

func (b logBackend) Partition(string, int32) (Partition, error) { return logPartition{log: b.log}, nil }

type logPartition struct {
	Partition
	log *commitlog.Log
}

func (p logPartition) Append(a Append) {
	base, _, err := p.log.Append([][]byte{a.Batch}, 0, time.Now())
	a.Done(Appended{Base: base, Err: err})
}
func (p logPartition) Err() error         { return nil }
func (p logPartition) Epoch() int32       { return 0 }
func (p logPartition) MaxBatchBytes() int { return 1 << 20 }
func (p logPartition) Offsets() Offsets {
	return Offsets{p.log.StartOffset(), p.log.EndOffset(), p.log.EndOffset()}
}
func (p logPartition) Read(offset int64, maxBytes int) (commitlog.Slice, error) {
	return p.log.Read(offset, maxBytes, p.log.EndOffset())
}

func newLogServer(t *testing.T, memory int64) *Server {
	log, err := commitlog.Open(disk.OS, t.TempDir(), commitlog.DefaultConfig(), commitlog.Options{})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{
		Listen: "127.0.0.1:0", Loops: 1, MaxRequestBytes: 2 << 20, MaxRequestMemory: memory,
		MaxConnections: 100, MaxConnectionsPerIP: 100, MaxInFlightRequests: 5, MaxInFlightBytes: 10 << 20,
		MaxFetchBytes: 50 << 20, MaxFetchWait: time.Second,
		IdleTimeout: time.Minute, ReceiveTimeout: time.Minute, RequestTimeout: time.Second,
	}, logBackend{log: log}, zaptest.NewLogger(t), nil)
	t.Cleanup(func() {
		s.Close(context.Background())
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// overTLS is a stream beneath which TLS lies. It closes the socket alone: a farewell would wait for a client that does
// not read.
type overTLS struct {
	copied
	under net.Conn
}

func (o overTLS) Close() error { return o.under.Close() }

// serveTLS serves one end of a connection.
func serveTLS(t *testing.T, s *Server, under net.Conn, cfg *tls.Config) {
	at := overTLS{copied{Conn: tls.Server(under, cfg), memory: s.copies}, under}
	if sc, ok := under.(syscall.Conn); ok {
		raw, err := sc.SyscallConn()
		if err != nil {
			t.Fatal(err)
		}
		at.raw = raw
	}
	s.descriptors = descriptorLimit()
	if reason := s.admit("client", 0); reason != "" {
		t.Fatal(reason)
	}
	c := newConn(s, handed{at}, "client", "client:1")
	c.stream = at
	s.metrics.connections.WithLabelValues("goroutine").Inc()
	s.wg.Go(func() { c.run(nil, nil) })
}

// pair is two ends of a TCP connection.
func pair(t *testing.T) (server, client net.Conn) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	if client, err = net.Dial("tcp", l.Addr().String()); err != nil {
		t.Fatal(err)
	}
	if server, err = l.Accept(); err != nil {
		t.Fatal(err)
	}
	return server, client
}

func send(t *testing.T, to io.Writer, correlation int32, req kmsg.Request, behind ...byte) {
	t.Helper()
	b := binary.BigEndian.AppendUint16(make([]byte, 4), uint16(req.Key()))
	b = binary.BigEndian.AppendUint16(b, uint16(req.GetVersion()))
	b = binary.BigEndian.AppendUint32(b, uint32(correlation))
	b = append(b, 0xff, 0xff) // no client id
	b = req.AppendTo(b)
	binary.BigEndian.PutUint32(b, uint32(len(b)-4))
	if _, err := to.Write(append(b, behind...)); err != nil {
		t.Fatal(err)
	}
}

func receiveAnswer(t *testing.T, from io.Reader, correlation int32, into kmsg.Response) {
	t.Helper()
	var head [8]byte
	if _, err := io.ReadFull(from, head[:]); err != nil {
		t.Fatal(err)
	}
	if got := int32(binary.BigEndian.Uint32(head[4:])); got != correlation {
		t.Fatalf("answer %d, want %d", got, correlation)
	}
	b := make([]byte, binary.BigEndian.Uint32(head[:])-4)
	if _, err := io.ReadFull(from, b); err != nil {
		t.Fatal(err)
	}
	if err := into.ReadFrom(b); err != nil {
		t.Fatal(err)
	}
}

func produceOf(batch []byte) *kmsg.ProduceRequest {
	req := kmsg.NewPtrProduceRequest()
	req.Version, req.Acks, req.TimeoutMillis = 7, -1, 1000
	p := kmsg.NewProduceRequestTopicPartition()
	p.Records = batch
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: "t", Partitions: []kmsg.ProduceRequestTopicPartition{p}}}
	return req
}

func fetchAll() *kmsg.FetchRequest {
	req := kmsg.NewPtrFetchRequest()
	req.Version, req.MaxBytes, req.MinBytes, req.SessionEpoch = 11, 50<<20, 1, -1
	p := kmsg.NewFetchRequestTopicPartition()
	p.PartitionMaxBytes, p.CurrentLeaderEpoch = 50<<20, -1
	req.Topics = []kmsg.FetchRequestTopic{{Topic: "t", Partitions: []kmsg.FetchRequestTopicPartition{p}}}
	return req
}

func answerTo[R kmsg.Response](t *testing.T, over io.ReadWriter, correlation int32, req kmsg.Request) R {
	t.Helper()
	send(t, over, correlation, req)
	resp := req.ResponseKind()
	resp.SetVersion(req.GetVersion())
	receiveAnswer(t, over, correlation, resp)
	return resp.(R)
}

// Records went out by sendfile from a file to a TCP socket and in no other way, so nothing could be laid between. Here
// TLS is, over a socket and over a pipe, with memory to copy through and with next to none.
func TestProduceAndFetchThroughTLS(t *testing.T) {
	web := httptest.NewTLSServer(nil) // for its certificate
	defer web.Close()
	roots := x509.NewCertPool()
	roots.AddCert(web.Certificate())
	for name, tt := range map[string]struct {
		ends   func(*testing.T) (net.Conn, net.Conn)
		memory int64
	}{
		"socket":                {pair, 100 << 20},
		"pipe":                  {func(*testing.T) (net.Conn, net.Conn) { return net.Pipe() }, 100 << 20},
		"socket, little memory": {pair, 1 << 20}, // of which an eighth is less than a large step
	} {
		t.Run(name, func(t *testing.T) {
			s := newLogServer(t, tt.memory)
			server, under := tt.ends(t)
			defer func() { _ = under.Close() }()
			serveTLS(t, s, server, &tls.Config{Certificates: web.TLS.Certificates})
			client := tls.Client(under, &tls.Config{RootCAs: roots, ServerName: "example.com"})
			_ = client.SetDeadline(time.Now().Add(20 * time.Second))

			var want []byte
			for i := range int32(4) {
				batch := recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat(string('a'+i), 700_000)}})
				resp := answerTo[*kmsg.ProduceResponse](t, client, i, produceOf(slices.Clone(batch)))
				if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 || p.BaseOffset != int64(i) {
					t.Fatalf("produce %d: %+v", i, p)
				}
				binary.BigEndian.PutUint64(batch, uint64(i)) // base offset and epoch are the broker's to set
				binary.BigEndian.PutUint32(batch[12:], 0)
				want = append(want, batch...)
			}
			for i := range int32(3) {
				resp := answerTo[*kmsg.FetchResponse](t, client, 10+i, fetchAll())
				if p := resp.Topics[0].Partitions[0]; p.ErrorCode != 0 || !bytes.Equal(p.RecordBatches, want) {
					t.Fatalf("fetched %d bytes with code %d, want the %d that were sent", len(p.RecordBatches), p.ErrorCode, len(want))
				}
			}
			if used, lent := s.memory.used.Load(), s.copies.lent.Load(); used != 0 || lent != 0 {
				t.Errorf("%d bytes of memory are in use and %d lent, want none", used, lent)
			}
		})
	}
}

// How long memory to copy through is held is for clients to say. Those that do not read must not take it from requests.
func TestMemoryToCopyThroughIsAnEighthAtMost(t *testing.T) {
	c := newCopies(newBudget(16 << 20))
	var lent []*frame
	for f := c.take(largeCopy); f != nil; f = c.take(largeCopy) {
		lent = append(lent, f)
	}
	if len(lent) != 8 || c.held.used.Load() != 2<<20 {
		t.Errorf("%d steps had %d bytes lent, want 8 and 2 MiB", len(lent), c.held.used.Load())
	}
	for _, f := range lent {
		c.giveBack(f)
	}
	if c.held.used.Load() != 0 || c.lent.Load() != 0 {
		t.Errorf("left over: %d used, %d lent", c.held.used.Load(), c.lent.Load())
	}
	all := newFrame(15<<20, c.held)
	if !all.grow(all.size) {
		t.Fatal("a request that is there had no room in an empty budget")
	}
	large := newFrame(4<<20, c.held)
	w := &waiter{f: large, have: large.size, ready: make(chan struct{})}
	c.held.waiting = append(c.held.waiting, w)
	c.held.mu.Lock()
	c.held.settle()
	c.held.mu.Unlock()
	if c.take(largeCopy) != nil {
		t.Error("a step to copy overtook a request that waits for memory")
	}
	all.release()
	large.release()
}

// ownKey is an API of the test only, whose connection speaks something else from then on.
const ownKey = 9999

type ownRequest struct{ kmsg.ListGroupsRequest }

func (ownRequest) Key() int16 { return ownKey }

func TestAConnectionLeavesForAnotherProtocol(t *testing.T) {
	ended := make(chan error, 1)
	apiTable[ownKey] = &api{
		key: ownKey, name: "Own", hidden: true, kind: waiting, flexible: 1,
		request: func() kmsg.Request { return &ownRequest{} },
		takeOver: func(c *conn, _ *call, r *bufio.Reader) error {
			for {
				line, err := r.ReadBytes('\n')
				if err != nil || string(line) == "end\n" {
					ended <- err
					return err
				}
				if err := c.write([]piece{{bytes: append([]byte("> "), line...)}}); err != nil {
					return err
				}
			}
		},
	}
	s := newLogServer(t, 100<<20)
	defer delete(apiTable, ownKey)
	if err := s.Serve(); err != nil {
		t.Fatal(err)
	}
	begin := func() (net.Conn, *bufio.Reader) {
		nc, err := net.Dial("tcp", s.Addr())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = nc.Close() })
		_ = nc.SetDeadline(time.Now().Add(20 * time.Second))
		batch := recordtest.Batch(recordtest.Spec{Values: []string{"v"}})
		send(t, nc, 1, produceOf(batch)) // its answer comes first
		send(t, nc, 2, &ownRequest{}, []byte("with it\n")...)
		resp := kmsg.NewPtrProduceResponse()
		resp.Version = 7
		r := bufio.NewReader(nc)
		receiveAnswer(t, r, 1, resp)
		if _, err := nc.Write([]byte("after it\n")); err != nil {
			t.Fatal(err)
		}
		for _, want := range []string{"> with it\n", "> after it\n"} {
			if got, err := r.ReadString('\n'); got != want {
				t.Fatalf("got %q, want %q: %v", got, want, err)
			}
		}
		return nc, r
	}

	nc, r := begin()
	for _, c := range s.connections() { // long silent, but never idle
		if c.active.Store(1); c.leaveIdle(1) {
			t.Error("a connection that left for another protocol gave way")
		}
	}
	if n := s.inFlight.Load(); n != 0 {
		t.Errorf("%d requests in flight: a stop would wait for them", n)
	}
	if _, err := nc.Write([]byte("end\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after the protocol's end: %v, want the end of the connection", err)
	}
	if err := <-ended; err != nil {
		t.Error(err)
	}

	begin() // and stays: the server's stop ends it
	s.Close(t.Context())
	if err := <-ended; err == nil {
		t.Error("it went on after the server had stopped")
	}
}
