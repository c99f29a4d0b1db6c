package api

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

const asItGoes = "Accept: application/x-ndjson"

// told reads the answers of a batch that is answered as it goes.
func told(t *testing.T, text string) (lines []api.BatchLine, end api.BatchEnd) {
	t.Helper()
	all := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	for _, s := range all[:len(all)-1] {
		var l api.BatchLine
		if err := json.Unmarshal([]byte(s), &l); err != nil {
			t.Fatalf("%s: %v", s, err)
		}
		lines = append(lines, l)
	}
	if err := json.Unmarshal([]byte(all[len(all)-1]), &end); err != nil || end.Status != api.StreamEnded {
		t.Fatalf("it ends with %s: %v", all[len(all)-1], err)
	}
	return lines, end
}

func TestBatchAnsweredAsItGoes(t *testing.T) {
	s := serve(t, nil)
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		want       string // lines, "!" behind those that failed
		values     string
	}{
		"records":       {"/topics/t/batch", "{\"value\":1}\n\n{\"value\":\"b\",\"key\":\"k\"}", nil, "[1 3]", "[1 b]"},
		"bad ones":      {"/topics/t/batch", "{\"value\":1}\nx\n{\"valu\":2}\n{\"value\":3}\ny\n", nil, "[1 2! 3! 4 5!]", "[1 3]"},
		"raw":           {"/topics/t/batch?lines", "a\n\nb\r\nc\n", nil, "[1 3 4]", "[a b\r c]"},
		"by field":      {"/topics/t/batch?lines&key_field=k", "{\"k\":\"a\"}\n{}\n{\"k\":7}", nil, "[1 2! 3]", `[{"k":"a"} {"k":7}]`},
		"packed":        {"/topics/t/batch?lines", string(packed(t, "gzip", []byte("a\nb"))), []string{"Content-Encoding: gzip"}, "[1 2]", "[a b]"},
		"packed, zstd":  {"/topics/t/batch?lines", string(packed(t, "zstd", []byte("a\nb"))), []string{"Content-Encoding: zstd"}, "[1 2]", "[a b]"},
		"one long line": {"/topics/t/batch?lines", strings.Repeat("x", 900<<10) + "\ny", nil, "[1 2]", "[" + strings.Repeat("x", 900<<10) + " y]"},
		"bad ones last": {"/topics/t/batch", "{}\nx\ny", nil, "[1 2! 3!]", "[]"},
	} {
		n := len(s.sink.taken())
		status, text, headers := s.postFor(c.path, strings.NewReader(c.body), append(c.headers, asItGoes)...)
		if status != 200 || headers.Get("Content-Type") != api.ContentTypeNDJSON {
			t.Errorf("%s: %d %s %v", name, status, text, headers)
			continue
		}
		lines, end := told(t, text)
		var got []string
		failed := 0
		for _, l := range lines {
			s := fmt.Sprint(l.Line)
			if l.Error != nil {
				s += "!"
				failed++
				if l.Error.Code != api.CodeBadRecord || l.Error.Line != l.Line || strings.Contains(l.Error.Message, "nothing of this request") {
					t.Errorf("%s: %+v", name, l.Error)
				}
			}
			got = append(got, s)
		}
		if fmt.Sprint(got) != c.want || end.Error != nil || int(end.Failed) != failed || int(end.Written) != len(lines)-failed {
			t.Errorf("%s: %s %+v, want %s", name, got, end, c.want)
		}
		if got := values(s.sink.taken()[n:]); got != c.values {
			t.Errorf("%s: messages %.100s, want %.100s", name, got, c.values)
		}
	}
	for _, m := range s.sink.taken() {
		if string(m.Value) == "b" && string(m.Key) == "k" || string(m.Value) == `{"k":7}` && string(m.Key) == "7" {
			return
		}
	}
	t.Error("no key came through")
}

// What is refused before anything is sent has its own status.
func TestStreamedBatchIsRefused(t *testing.T) {
	s := serve(t, nil)
	s.sink.refuse = func(m publish.Message) *api.Error {
		return nil
	}
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		status     int
		says       string
	}{
		"nothing":     {"/topics/t/batch", " \n\n", nil, 400, "empty"},
		"no body":     {"/topics/t/batch", "", nil, 400, "empty"},
		"a key":       {"/topics/t/batch", "{}", []string{"Idempotency-Key: k"}, 400, "Idempotency-Key"},
		"an option":   {"/topics/t/batch?x", "{}", nil, 400, "unknown option"},
		"not packed":  {"/topics/t/batch", "{}", []string{"Content-Encoding: gzip"}, 400, "gzip"},
		"other":       {"/topics/t/batch", "{}", []string{"Content-Encoding: br"}, 400, "gzip or zstd"},
		"events":      {"/topics/t/batch", "[]", []string{"Content-Type: application/cloudevents-batch+json"}, 400, "CloudEvents"},
		"bad lines":   {"/topics/t/batch", "\nx\ny", nil, 422, "line 2: it is not a JSON object"},
		"bad, packed": {"/topics/t/batch?lines&key_field=a", string(packed(t, "gzip", []byte("x\ny"))), []string{"Content-Encoding: gzip"}, 422, "line 1: key_field a"},
		"an array":    {"/topics/t/batch", "\n [{}]", nil, 400, "an array is not answered as it goes"},
		"a long line": {"/topics/t/batch", strings.Repeat("x", 2<<20), nil, 413, "line 1"},
	} {
		status, text := s.post(c.path, strings.NewReader(c.body), append(c.headers, asItGoes)...)
		if status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s, want %d and %q", name, status, text, c.status, c.says)
		}
	}
	if n := len(s.sink.taken()); n > 0 {
		t.Errorf("%d messages", n)
	}
	s.sink.fail = api.NewError(api.CodeTopicNotFound, "there is no topic t")
	if status, text := s.post("/topics/t/batch?lines", strings.NewReader(strings.Repeat("a\n", 300_000)), asItGoes); status != 404 || !strings.Contains(text, "topic_not_found") {
		t.Errorf("%d %s", status, text)
	}
}

// Each line is answered when it is written, before the next is sent.
func TestAnswersComeAsItGoes(t *testing.T) {
	s := serve(t, nil)
	from, to := io.Pipe()
	r, err := http.NewRequest("POST", "http://"+s.addr+"/topics/t/batch?lines", from)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", api.ContentTypeNDJSON)
	go io.WriteString(to, "line 1\n")
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	in := bufio.NewReader(a.Body)
	for i := 1; i < 50; i++ {
		text, err := in.ReadString('\n')
		var l api.BatchLine
		if err != nil || json.Unmarshal([]byte(text), &l) != nil || l.Line != i || l.Error != nil || l.Offset != int64(i-1) {
			t.Fatalf("%q, %v", text, err)
		}
		if _, err := fmt.Fprintf(to, "line %d\n", i+1); err != nil {
			t.Fatal(err)
		}
	}
	to.Close()
	rest, err := io.ReadAll(in)
	if err != nil {
		t.Fatal(err)
	}
	if _, end := told(t, string(rest)); end.Written != 50 || end.Error != nil {
		t.Errorf("%+v", end)
	}
}

// endless is a body of so many lines that nobody keeps.
type endless struct {
	line []byte
	left int64
	sent atomic.Int64
}

func (e *endless) Read(to []byte) (n int, err error) {
	for n+len(e.line) <= len(to) && e.left > 0 {
		n += copy(to[n:], e.line)
		e.left -= int64(len(e.line))
	}
	e.sent.Add(int64(n))
	if n == 0 {
		return 0, io.EOF
	}
	return n, nil
}

// A batch that is larger than all that may be held at a time takes little memory,
// and its answers are all there.
func TestLargeUploadTakesLittleMemory(t *testing.T) {
	if testing.Short() {
		t.Skip("it sends 60 MB")
	}
	s := serve(t, func(o *Options) { o.MaxBodyMemory = 4 << 20 })
	s.sink.forget = true
	const lines = 60_000
	body := &endless{line: []byte(strings.Repeat("x", 999) + "\n"), left: lines * 1000}
	r, err := http.NewRequest("POST", "http://"+s.addr+"/topics/t/batch?lines", body)
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", api.ContentTypeNDJSON)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	before, most := live(), uint64(0)
	next, last := 1, ""
	in := bufio.NewScanner(a.Body)
	for in.Scan() {
		if next%10_000 == 0 {
			most = max(most, live())
		}
		last = in.Text()
		if strings.HasPrefix(last, fmt.Sprintf(`{"line":%d,`, next)) {
			next++
		}
	}
	if _, end := told(t, last); in.Err() != nil || next != lines+1 || end.Written != lines {
		t.Fatalf("%d lines, %+v, %v", next-1, end, in.Err())
	}
	if most > before+32<<20 {
		t.Errorf("%d MB of heap, %d before", most>>20, before>>20)
	}
}

// live is how much memory is in use.
func live() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// A client that takes no answers is not read on.
func TestClientThatTakesNoAnswers(t *testing.T) {
	s := serve(t, func(o *Options) { o.WriteTimeout = 500 * time.Millisecond })
	s.sink.forget = true
	c, _ := s.dial()
	fmt.Fprintf(c, "POST /topics/t/batch?lines HTTP/1.1\r\nHost: localhost\r\n%s\r\nContent-Length: 1000000000\r\n\r\n", asItGoes)
	body := &endless{line: []byte("x\n"), left: 1e9}
	_, err := io.CopyBuffer(struct{ io.Writer }{c}, body, make([]byte, 64<<10))
	if err == nil || body.sent.Load() > 200<<20 {
		t.Errorf("%d bytes were taken, %v", body.sent.Load(), err)
	}
}

// Of a body that breaks off what came whole is written and answered; the line
// that was cut is not.
func TestUploadThatBreaksOff(t *testing.T) {
	s := serve(t, func(o *Options) { o.ReadTimeout = 300 * time.Millisecond })
	long := strings.Repeat("x", 9000) // the first 8 KiB of a body whose length is known are waited for
	for name, c := range map[string]struct {
		head, body string
		half       bool
		says       string
	}{
		"half closed":          {"Content-Length: 10000", long + "\nb\nhalf a li", true, "was not sent"},
		"half closed, chunked": {"Transfer-Encoding: chunked", "4\r\na\nb\n\r\n9\r\nhalf a li", true, "was not sent"},
		"stalled":              {"Content-Length: 10000", long + "\nb\nhalf a li", false, "in time"},
		"a chunk of no size":   {"Transfer-Encoding: chunked", "4\r\na\nb\n\r\nxx\r\n", false, "a chunk of the body is broken"},
		"a broken chunk":       {"Transfer-Encoding: chunked", "4\r\na\nb\nxx", false, "was not sent"},
	} {
		n := len(s.sink.taken())
		conn, r := s.dial()
		fmt.Fprintf(conn, "POST /topics/t/batch?lines HTTP/1.1\r\nHost: localhost\r\n%s\r\n%s\r\n\r\n%s", asItGoes, c.head, c.body)
		if c.half {
			_ = conn.(interface{ CloseWrite() error }).CloseWrite()
		}
		status, text := answered(t, r)
		lines, end := told(t, text)
		if status != 200 || len(lines) != 2 || end.Written != 2 || end.Error == nil || !strings.Contains(end.Error.Message, c.says) {
			t.Errorf("%s: %d %s", name, status, text)
		}
		if got := values(s.sink.taken()[n:]); got != "[a b]" && got != "["+long+" b]" {
			t.Errorf("%s: messages %s", name, got)
		}
		if _, err := r.ReadByte(); !errors.Is(err, io.EOF) {
			t.Errorf("%s: the connection is not closed: %v", name, err)
		}
	}
}

// Pipelined requests around one are answered in order, and its connection goes on.
func TestStreamedBatchAmongOthers(t *testing.T) {
	s := serve(t, nil)
	c, r := s.dial()
	one := "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1\r\n\r\nx"
	stream := "POST /topics/t/batch?lines HTTP/1.1\r\nHost: localhost\r\n" + asItGoes + "\r\n"
	io.WriteString(c, one+stream+"Content-Length: 4\r\n\r\na\nb\n"+one+stream+"Transfer-Encoding: chunked\r\n\r\n3\r\nc\nd\r\n1\r\n\n\r\n0\r\n\r\n"+one)
	for i, want := range []string{`"offset":0`, `"written":2`, `"offset":3`, `"written":2`, `"offset":6`} {
		if status, text := answered(t, r); status != 200 || !strings.Contains(text, want) {
			t.Errorf("answer %d: %d %s", i, status, text)
		}
	}
	if got := values(s.sink.taken()); got != "[x a b x c d x]" {
		t.Error(got)
	}
}

// What a limit refuses is not lost: it is read more slowly. What cannot be sent
// is told of alone.
func TestStreamedBatchMeetsLimits(t *testing.T) {
	s := serve(t, nil)
	var asked atomic.Int64
	s.sink.before = func(ms []publish.Message) *api.Error {
		if asked.Add(1)%3 == 1 {
			e := api.NewError(api.CodeRateLimited, "slowly")
			e.RetryAfterMillis = 20
			return e
		}
		if len(ms) > 100 {
			return api.NewError(api.CodeRequestTooLarge, "fewer")
		}
		for i, m := range ms {
			if string(m.Value) == "large" {
				e := api.NewError(api.CodeMessageTooLarge, fmt.Sprintf("message %d of the batch: too large; nothing was sent", i+1))
				e.Line = i + 1
				return e
			}
		}
		return nil
	}
	var body strings.Builder
	var want []string
	for i := range 1000 {
		if i%400 == 150 {
			body.WriteString("large\n")
			continue
		}
		fmt.Fprintf(&body, "%d\n", i)
		want = append(want, fmt.Sprint(i))
	}
	status, text := s.post("/topics/t/batch?lines", strings.NewReader(body.String()), asItGoes)
	lines, end := told(t, text)
	if status != 200 || end.Written != int64(len(want)) || end.Failed != 3 || len(lines) != 1000 {
		t.Fatalf("%d %+v", status, end)
	}
	for i, l := range lines {
		if l.Line != i+1 || (l.Error != nil) != (i%400 == 150) || l.Error != nil && l.Error.Message != "too large" {
			t.Errorf("%+v", l)
		}
	}
	if got := values(s.sink.taken()); got != fmt.Sprint(want) {
		t.Errorf("the order is %s", got)
	}
}

// Under a limit answers come as its records pass, not all at once at the end.
func TestStreamedBatchTricklesUnderLimits(t *testing.T) {
	s := serve(t, nil)
	firstTold, late := make(chan struct{}), atomic.Bool{}
	s.sink.before = func(ms []publish.Message) *api.Error {
		if len(ms) > 500 {
			return api.NewError(api.CodeRequestTooLarge, "fewer")
		}
		if string(ms[0].Value) != "first" { // those behind the first portion, in whatever order they come here
			select {
			case <-firstTold:
			case <-time.After(10 * time.Second):
				late.Store(true)
			}
		}
		return nil
	}
	r, err := http.NewRequest("POST", "http://"+s.addr+"/topics/t/batch?lines", strings.NewReader("first\n"+strings.Repeat("x\n", 1499)))
	if err != nil {
		t.Fatal(err)
	}
	r.Header.Set("Accept", api.ContentTypeNDJSON)
	a, err := http.DefaultClient.Do(r)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	in := bufio.NewReader(a.Body)
	first, err := in.ReadString('\n')
	close(firstTold)
	rest, err2 := io.ReadAll(in)
	if err := errors.Join(err, err2); err != nil {
		t.Fatal(err)
	}
	if lines, end := told(t, first+string(rest)); late.Load() || len(lines) != 1500 || end.Written != 1500 {
		t.Errorf("late %v, %d lines, %+v", late.Load(), len(lines), end)
	}
}

// What waits for long is sent in smaller parts, and in larger ones again.
func TestPartsOfAnUpload(t *testing.T) {
	u := &upload{s: &Server{ctx: t.Context()}, ctx: t.Context()}
	u.atOnce.Store(pieceMessages)
	held := api.NewError(api.CodeRateLimited, "")
	synctest.Test(t, func(t *testing.T) {
		u.s.ctx, u.ctx = t.Context(), t.Context()
		for _, after := range []int64{500, 1500, 2500} {
			held.RetryAfterMillis = after
			u.hold(held, int(u.atOnce.Load()))
		}
	})
	if n := u.atOnce.Load(); n != pieceMessages/4 {
		t.Errorf("%d at once", n)
	}
	u.quicken(time.Second)
	u.quicken(time.Millisecond)
	if n := u.atOnce.Load(); n != pieceMessages/2 {
		t.Errorf("%d at once", n)
	}
}

// A server that drains ends the reading, and says so.
func TestStreamedBatchInDrain(t *testing.T) {
	s := serve(t, nil)
	c, r := s.dial()
	fmt.Fprintf(c, "POST /topics/t/batch?lines HTTP/1.1\r\nHost: localhost\r\n%s\r\nTransfer-Encoding: chunked\r\n\r\n2\r\na\n\r\n", asItGoes)
	waitFor(t, func() bool { return len(s.sink.taken()) == 1 })
	s.BeginDrain()
	status, text := answered(t, r)
	if lines, end := told(t, text); status != 200 || len(lines) != 1 || end.Error == nil || end.Error.Code != api.CodeDraining {
		t.Errorf("%d %s", status, text)
	}
}

// Answers are what encoding/json reads back.
func TestBatchLineIsJSON(t *testing.T) {
	for _, l := range []api.BatchLine{{Line: 1}, {Line: 7, BatchResult: api.BatchResult{Partition: 3, Offset: 9, SpoolID: "x", Error: api.NewError(api.CodeBadRecord, "no")}}} {
		want, err := json.Marshal(l)
		if err != nil {
			t.Fatal(err)
		}
		if got := l.AppendJSON(nil); !bytes.Equal(got, want) {
			t.Errorf("%s, want %s", got, want)
		}
	}
}

// The parts of a batch that the spool may take know of each other.
func TestStreamedBatchIsOneSequence(t *testing.T) {
	s := serve(t, nil)
	body := strings.Repeat(strings.Repeat("x", 99)+"\n", 10_000) // of several pieces
	if status, text := s.post("/topics/t/batch?lines", strings.NewReader(body), asItGoes, "Prefer: respond-async"); status != 200 {
		t.Fatalf("%d %s", status, text)
	}
	s.sink.mu.Lock()
	defer s.sink.mu.Unlock()
	for i, o := range s.sink.options {
		if o.Sequence == nil || o.Sequence != s.sink.options[0].Sequence {
			t.Errorf("part %d of %d is no part of the sequence", i+1, len(s.sink.options))
		}
	}
	if len(s.sink.options) < 2 {
		t.Errorf("it was sent in %d parts, want some", len(s.sink.options))
	}
}
