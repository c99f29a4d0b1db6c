package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"strings"
	"testing"
	"testing/iotest"
	"time"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

func packed(t testing.TB, how string, b []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var w io.WriteCloser = gzip.NewWriter(&out)
	if how == "zstd" {
		z, err := zstd.NewWriter(&out)
		if err != nil {
			t.Fatal(err)
		}
		w = z
	}
	if _, err := w.Write(b); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestPackedBodies(t *testing.T) {
	s := serve(t, nil)
	message := []byte(strings.Repeat("a message ", 5000))
	for _, how := range []string{"gzip", "zstd", "x-gzip", "GZIP", "identity"} {
		b := message
		if how != "identity" {
			b = packed(t, strings.TrimPrefix(strings.ToLower(how), "x-"), message)
		}
		if status, text := s.post("/topics/t", bytes.NewReader(b), "Content-Encoding: "+how); status != 200 {
			t.Fatalf("%s: %d %s", how, status, text)
		}
		got := s.sink.taken()
		if !bytes.Equal(got[len(got)-1].Value, message) {
			t.Errorf("%s: %d bytes came out", how, len(got[len(got)-1].Value))
		}
	}
	n := len(s.sink.taken())
	if status, text := s.post("/topics/t/batch", bytes.NewReader(packed(t, "zstd", []byte("{\"value\":1}\n{\"value\":2}"))), "Content-Encoding: zstd"); status != 200 || values(s.sink.taken()[n:]) != "[1 2]" {
		t.Errorf("a packed batch: %d %s", status, text)
	}

	half := packed(t, "gzip", message)
	longWindow, err := zstd.NewWriter(nil, zstd.WithWindowSize(64<<20), zstd.WithSingleSegment(false))
	if err != nil {
		t.Fatal(err)
	}
	noise := make([]byte, 700<<10)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	var far bytes.Buffer
	longWindow.Reset(&far)
	for range 2 {
		if _, err := longWindow.Write(noise[:400<<10]); err != nil {
			t.Fatal(err)
		}
		if err := longWindow.Flush(); err != nil {
			t.Fatal(err)
		}
	}
	if err := longWindow.Close(); err != nil {
		t.Fatal(err)
	}
	n = len(s.sink.taken())
	for name, c := range map[string]struct {
		body     []byte
		encoding string
		status   int
		says     string
	}{
		"not packed":        {message, "gzip", 400, "is not"},
		"not packed, zstd":  {message, "zstd", 400, "is not"},
		"half of it":        {half[:len(half)/2], "gzip", 400, "ends in the middle"},
		"nothing":           {nil, "gzip", 400, ""},
		"a bomb":            {packed(t, "gzip", make([]byte, 8<<20)), "gzip", 413, "when it is unpacked"},
		"a bomb, zstd":      {packed(t, "zstd", make([]byte, 8<<20)), "zstd", 413, "when it is unpacked"},
		"too far back":      {far.Bytes(), "zstd", 400, "window"},
		"another":           {message, "br", 400, "gzip or zstd"},
		"two":               {message, "gzip, zstd", 400, "gzip or zstd"},
		"packed still wide": {packed(t, "gzip", append(noise, noise...)), "gzip", 413, "max_request_bytes"},
	} {
		status, text, headers := s.postFor("/topics/t", bytes.NewReader(c.body), "Content-Encoding: "+c.encoding)
		if status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s, want %d and %q", name, status, text, c.status, c.says)
		}
		if c.encoding == "br" && headers.Get("Accept-Encoding") != "gzip, zstd" {
			t.Errorf("it does not say what it takes: %v", headers)
		}
	}
	if more := s.sink.taken()[n:]; len(more) > 0 {
		t.Errorf("%d messages of bodies that were refused", len(more))
	}
}

// The bodies that are read piece by piece are what was sent, of any length.
func TestBodyIsRead(t *testing.T) {
	memory := newBodyMemory(8 << 20)
	for _, n := range []int{0, 1, 4095, 4096, 4097, firstBody - 1, firstBody, firstBody + 1, secondBody, secondBody + 1, 3<<20 + 7} {
		sent := bytes.Repeat([]byte("0123456789abcdef!"), n/17+1)[:n]
		for _, length := range []int{n, -1} {
			for _, r := range []io.Reader{bytes.NewReader(sent), iotest.DataErrReader(bytes.NewReader(sent))} {
				b := newBody()
				if err := b.read(context.Background(), memory, r, length, n); err != nil || !bytes.Equal(b.b, sent) {
					t.Errorf("%d bytes, said to be %d: %d bytes, %v", n, length, len(b.b), err)
				}
				b.free(memory)
			}
		}
		b := newBody()
		if err := b.read(context.Background(), memory, bytes.NewReader(append(sent, 'x')), -1, n); !errors.Is(err, errBodyTooLarge) {
			t.Errorf("%d bytes and one more: %v", n, err)
		}
		b.free(memory)
		if n > 0 {
			b = newBody()
			if err := b.read(context.Background(), memory, bytes.NewReader(sent[1:]), n, n); !errors.Is(err, io.ErrUnexpectedEOF) {
				t.Errorf("one less than %d bytes: %v", n, err)
			}
			b.free(memory)
		}
	}
	if !memory.free.TryAcquire(8 << 20) {
		t.Error("the memory was not given back")
	}
}

func TestChunkedBodies(t *testing.T) {
	s := serve(t, nil)
	large := strings.Repeat("x", 300<<10)
	if status, text := s.post("/topics/t", struct{ io.Reader }{strings.NewReader(large)}); status != 200 || values(s.sink.taken()) != "["+large+"]" {
		t.Errorf("%d %s", status, text)
	}
	if status, text := s.post("/topics/t", struct{ io.Reader }{strings.NewReader(strings.Repeat("x", 1<<20+1))}); status != 413 || !strings.Contains(text, "max_request_bytes") {
		t.Errorf("one byte too many: %d %s", status, text)
	}
	c, r := s.dial()
	fmt.Fprintf(c, "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nX-End: x\r\n\r\n"+
		"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"+
		"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 4\r\n\r\nlast"+
		"POST /topics/t HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabcd\r\n0\r\n\r\n")
	for i, want := range []int{200, 200, 200, 400} {
		if status, text := answered(t, r); status != want {
			t.Errorf("request %d: %d %s, want %d", i, status, text, want)
		}
	}
	if got := values(s.sink.taken()[1:]); got != "[abc  last]" {
		t.Errorf("messages %s", got)
	}
	if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
		t.Errorf("after a broken chunk the connection is open: %v", err)
	}
}

// Bodies that fill the memory of all wait for a moment, and are refused then.
func TestMemoryOfBodiesIsBounded(t *testing.T) {
	s := serve(t, func(o *Options) { o.MaxBodyMemory = 1 << 20 })
	s.sink.block = make(chan struct{})
	first := make(chan int, 1)
	body := strings.Repeat("x", 900<<10)
	go func() {
		status, _ := s.post("/topics/t", strings.NewReader(body))
		first <- status
	}()
	waitFor(t, func() bool { return len(s.sink.taken()) == 1 })
	status, text, headers := s.postFor("/topics/t", strings.NewReader(body))
	if status != 429 || !strings.Contains(text, "max_request_memory") || headers.Get("Retry-After") != "1" {
		t.Errorf("%d %s %v", status, text, headers)
	}
	// Small ones need none of it.
	close(s.sink.block)
	if status := <-first; status != 200 {
		t.Error(status)
	}
	if status, text := s.post("/topics/t", strings.NewReader(body)); status != 200 {
		t.Errorf("after it was given back: %d %s", status, text)
	}
}

// A client that announces much and sends little costs little, and is cut off
// when its time is over; others are served meanwhile.
func TestSlowClients(t *testing.T) {
	s := serve(t, func(o *Options) { o.MaxBodyMemory, o.ReadTimeout = 1<<20, 500*time.Millisecond })
	type slow struct {
		c net.Conn
		r io.Reader
	}
	var all []slow
	for i := range 100 {
		c, r := s.dial()
		if i%2 == 0 {
			fmt.Fprintf(c, "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\nbegins")
		} else {
			fmt.Fprintf(c, "POST /topics/t HTTP/1.1\r\nHost: local")
		}
		all = append(all, slow{c, r})
	}
	if !s.memory.free.TryAcquire(1 << 20) {
		t.Error("what was not sent takes memory")
	} else {
		s.memory.free.Release(1 << 20)
	}
	if status, text := s.post("/topics/t", strings.NewReader("quick")); status != 200 {
		t.Errorf("%d %s", status, text)
	}
	for i, slow := range all {
		b, err := io.ReadAll(slow.r)
		if err != nil || !strings.HasPrefix(string(b), "HTTP/1.1 408") || !strings.Contains(string(b), "in time") {
			t.Errorf("connection %d: %q %v", i, b, err)
		}
	}
	if got := values(s.sink.taken()); got != "[quick]" {
		t.Errorf("messages %s", got)
	}
}

// A client that closes its sending half has its answer, if its request was whole.
func TestHalfClosedClients(t *testing.T) {
	s := serve(t, nil)
	for body, want := range map[string]int{"whole": 200, "hal": 400} {
		c, r := s.dial()
		fmt.Fprintf(c, "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 5\r\n\r\n%s", body)
		if err := c.(*net.TCPConn).CloseWrite(); err != nil {
			t.Fatal(err)
		}
		if status, text := answered(t, r); status != want {
			t.Errorf("%s: %d %s, want %d", body, status, text, want)
		}
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection is not closed: %v", body, err)
		}
	}
	if got := values(s.sink.taken()); got != "[whole]" {
		t.Errorf("messages %s", got)
	}
}

// Requests that are sent without waiting for answers are answered in order, on
// one connection, whatever their bodies are and whether they are read.
func TestPipelining(t *testing.T) {
	s := serve(t, nil)
	s.sink.refuse = func(m publish.Message) *api.Error {
		if string(m.Value) == "no" {
			return api.NewError(api.CodeBadRecord, "no")
		}
		return nil
	}
	c, r := s.dial()
	var in strings.Builder
	var want []int
	for i := range 200 {
		switch i % 5 {
		case 0:
			fmt.Fprintf(&in, "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\nno")
			want = append(want, 422)
		case 1: // a body that nobody reads
			fmt.Fprintf(&in, "POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 20000\r\n\r\n%s", strings.Repeat("POST ", 4000))
			want = append(want, 404)
		case 2:
			fmt.Fprintf(&in, "POST /topics/t?x HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n0\r\n\r\n")
			want = append(want, 400)
		case 3:
			body := strings.Repeat("x", 20_000)
			fmt.Fprintf(&in, "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n%s", len(body), body)
			want = append(want, 200)
		case 4:
			fmt.Fprintf(&in, "POST /topics/t/batch HTTP/1.1\r\nHost: localhost\r\nContent-Length: 25\r\n\r\n{\"value\":1}\n{\"value\":\"2\"}")
			want = append(want, 200)
		}
	}
	go io.WriteString(c, in.String())
	for i, status := range want {
		if got, text := answered(t, r); got != status {
			t.Fatalf("answer %d: %d %s, want %d", i, got, text, status)
		}
	}
	if n := len(s.sink.taken()); n != 40+80 {
		t.Errorf("%d messages", n)
	}
}

func waitFor(t *testing.T, what func() bool) {
	t.Helper()
	for end := time.Now().Add(30 * time.Second); !what(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it does not come")
		}
	}
}

// A client that sends on after it was refused has its answer all the same.
func TestRefusedWhileSending(t *testing.T) {
	s := serve(t, nil)
	for _, head := range []string{"Content-Length: 8000000", "Transfer-Encoding: chunked"} {
		c, r := s.dial()
		fmt.Fprintf(c, "POST /topics/t HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", head)
		go func() {
			for range 80 {
				fmt.Fprintf(c, "186a0\r\n%s\r\n", strings.Repeat("x", 100_000))
			}
		}()
		time.Sleep(20 * time.Millisecond)
		if status, text := answered(t, r); status != 413 || !strings.Contains(text, "max_request_bytes") {
			t.Errorf("%s: %d %s", head, status, text)
		}
	}
}

// The largest body that is allowed can come packed, however little memory there is.
func TestPackedBodyOfAnySize(t *testing.T) {
	s := serve(t, func(o *Options) { o.MaxBodyMemory = int64(4 * o.MaxRequestSize) })
	noise := make([]byte, s.opt.MaxRequestSize-1000)
	for i := range noise {
		noise[i] = byte(rand.Uint32())
	}
	for _, how := range []string{"gzip", "zstd"} {
		if status, text := s.post("/topics/t", bytes.NewReader(packed(t, how, noise)), "Content-Encoding: "+how); status != 200 {
			t.Errorf("%s: %d %s", how, status, text)
		}
		if status, text := s.post("/topics/t/batch?lines", bytes.NewReader(packed(t, how, []byte("a\nb"))), "Content-Encoding: "+how, asItGoes); status != 200 {
			t.Errorf("%s, as it goes: %d %s", how, status, text)
		}
	}
}

// A client that sends all of a body before it looks for an answer, as Python's
// does, got a broken pipe for one that is too large in place of 413: no more than
// 16 MiB and one second of it were read.
func TestRefusedWhileSendingMuch(t *testing.T) {
	s := serve(t, nil)
	for _, head := range []string{"Content-Length: 104857600", "Transfer-Encoding: chunked"} {
		c, r := s.dial()
		fmt.Fprintf(c, "POST /topics/t HTTP/1.1\r\nHost: localhost\r\n%s\r\n\r\n", head)
		for range 100 {
			if _, err := fmt.Fprintf(c, "100000\r\n%s\r\n", strings.Repeat("x", 1<<20)); err != nil {
				t.Fatalf("%s: %v", head, err)
			}
		}
		if status, text := answered(t, r); status != 413 || !strings.Contains(text, "max_request_bytes") {
			t.Errorf("%s: %d %s", head, status, text)
		}
	}
}
