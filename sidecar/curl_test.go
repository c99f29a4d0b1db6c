package sidecar

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/sdk/api"
)

func readAnswer(t *testing.T, c net.Conn) answer {
	t.Helper()
	return nextAnswer(t, bufio.NewReader(c))
}

func nextAnswer(t *testing.T, br *bufio.Reader) answer {
	t.Helper()
	resp, err := http.ReadResponse(br, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return answer{resp.StatusCode, resp.Header, b}
}

// curl -d says that every body is a form.
func TestCurlFormContentType(t *testing.T) {
	r := newRig(t, nil)
	form := "Content-Type: application/x-www-form-urlencoded"
	for _, body := range []string{"hi", "a=b&c=%20+", `{"x":1}`} {
		into[api.Published](t, r.do("POST", "/topics/one", body, form), 200)
		if got := r.last(); got.Value == nil || *got.Value != body {
			t.Errorf("%q came back as %v", body, got.Value)
		}
	}
	into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", `{"value":"x"}`, form), 200)
	into[api.Topic](t, r.do("PUT", "/topics/made", `{"partitions":2}`, form), 201)
	into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull", `{"ack":[]}`, form), 200)
}

// A multipart form is a message like any other.
func TestCurlMultipartBody(t *testing.T) {
	r := newRig(t, nil)
	body := "--x\r\nContent-Disposition: form-data; name=\"f\"\r\n\r\nv\r\n--x--\r\n"
	into[api.Published](t, r.do("POST", "/topics/one", body, "Content-Type: multipart/form-data; boundary=x"), 200)
	if got := r.last(); *got.Value != body {
		t.Errorf("came back as %q", *got.Value)
	}
}

// curl -d @file strips the newlines: that must not pass as one strange event.
func TestCurlStrippedNewlines(t *testing.T) {
	r := newRig(t, nil)
	a := r.do("POST", "/topics/one/batch", `{"value":"a"}{"value":"b"}`)
	if a.status != 422 || a.code() != api.CodeBadRecord || !strings.Contains(string(a.body), "--data-binary") {
		t.Errorf("got %s", a)
	}
	if ms := r.peek("one", 0); len(ms) != 0 {
		t.Errorf("%d messages were written", len(ms))
	}
}

// From 1 MiB on curl asks before it sends.
func TestCurlExpect100Continue(t *testing.T) {
	r := newRig(t, nil)
	c, err := net.Dial("tcp", r.sidecar.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	body := strings.Repeat("y", 1000)
	fmt.Fprintf(c, "POST /topics/one HTTP/1.1\r\nHost: localhost:4100\r\nContent-Length: %d\r\nExpect: 100-continue\r\n\r\n", len(body))
	br := bufio.NewReader(c)
	line, err := br.ReadString('\n')
	if err != nil || !strings.HasPrefix(line, "HTTP/1.1 100") {
		t.Fatalf("got %q, %v", line, err)
	}
	if _, err := br.ReadString('\n'); err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, body)
	if a := nextAnswer(t, br); a.status != 200 {
		t.Errorf("got %s", a)
	}
	if got := r.last(); *got.Value != body {
		t.Errorf("%d bytes came back", len(*got.Value))
	}
}

// A body piped into curl has no length.
func TestCurlChunkedBody(t *testing.T) {
	r := newRig(t, nil)
	a := r.raw("POST /topics/one HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n2\r\n\x00\xff\r\n0\r\n\r\n")
	if a.status != 200 {
		t.Fatalf("got %s", a)
	}
	if got := r.last(); got.Value64 == nil || *got.Value64 != "YWJjAP8=" {
		t.Errorf("%+v", got)
	}
}

func TestCurlContentTypeWithCharset(t *testing.T) {
	r := newRig(t, nil)
	for _, ct := range []string{"text/plain; charset=utf-8", "application/json; charset=utf-8", "application/octet-stream", ""} {
		into[api.Published](t, r.do("POST", "/topics/one", "v", "Content-Type: "+ct), 200)
		into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", `[{"value":1}]`, "Content-Type: "+ct), 200)
	}
}

// Names of HTTP headers have no case; names and values of records have.
func TestCurlHeaderNameCase(t *testing.T) {
	r := newRig(t, nil)
	for _, name := range []string{"Record-Header", "record-header", "RECORD-HEADER", "rEcOrD-hEaDeR"} {
		a := r.raw("POST /topics/one HTTP/1.1\r\nhOST: localhost\r\ncontent-length: 1\r\n" + name + ": TraceId=AbC=1\r\n" + name + ": traceid=\r\n\r\nv")
		if a.status != 200 {
			t.Fatalf("%s: got %s", name, a)
		}
		h := r.last().Headers
		if len(h) != 2 || h[0].Name != "TraceId" || *h[0].Value != "AbC=1" || h[1].Name != "traceid" || *h[1].Value != "" {
			t.Errorf("%s: %+v", name, h)
		}
	}
	if a := r.do("POST", "/topics/one", "v", "Record-Header: nothing"); a.code() != api.CodeBadRequest {
		t.Errorf("got %s", a)
	}
}

func TestCurlNULAndInvalidUTF8(t *testing.T) {
	r := newRig(t, nil)
	into[api.Published](t, r.do("POST", "/topics/one?key=a%00b%ff", "v\x00\xfe\xff"), 200)
	got := r.last()
	if got.Value != nil || *got.Value64 != "dgD+/w==" || got.Key != nil || *got.Key64 != "YQBi/w==" {
		t.Errorf("%+v", got)
	}
	into[api.Published](t, r.do("POST", "/topics/one?key=a%00b", "v\x00"), 200)
	got = r.last()
	if got.Value == nil || *got.Value != "v\x00" || *got.Key != "a\x00b" {
		t.Errorf("%+v", got)
	}
	pulled := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10s", ""), 200)
	if len(pulled.Messages) == 0 || *pulled.Messages[0].Value64 != "dgD+/w==" || *pulled.Messages[0].Key64 != "YQBi/w==" {
		t.Errorf("%+v", pulled.Messages)
	}
	if a := r.do("POST", "/topics/one/batch", "{\"value\":\"\xff\"}"); a.code() != api.CodeBadRecord {
		t.Errorf("got %s", a)
	}
}

// Integers beyond 2^53 come back byte for byte.
func TestCurlBigIntegers(t *testing.T) {
	r := newRig(t, nil)
	const body = `{"id": 9007199254740993, "f": 1.10, "e": 1e400}`
	into[api.Published](t, r.do("POST", "/topics/one", body), 200)
	if got := r.last(); *got.Value != body {
		t.Errorf("came back as %s", *got.Value)
	}
	into[api.BatchPublished](t, r.do("POST", "/topics/one/batch?key_field=id", `{"value":`+body+`}`), 200)
	if got := r.last(); *got.Value != body || *got.Key != "9007199254740993" {
		t.Errorf("came back as %s with key %s", *got.Value, *got.Key)
	}
}

// curl -X POST sends no length, which is no body: where that is the message it is
// refused, since a client that forgot the length of one sends the same head.
func TestCurlXPostWithoutBody(t *testing.T) {
	r := newRig(t, nil)
	if a := r.raw("POST /topics/one HTTP/1.1\r\nHost: localhost\r\n\r\n"); a.status != 411 || a.code() != api.CodeLengthRequired {
		t.Fatalf("got %s", a)
	}
	if a := r.raw("POST /groups/g/topics/one/pull HTTP/1.1\r\nHost: localhost\r\n\r\n"); a.status != 200 {
		t.Fatalf("got %s", a)
	}
	if a := r.raw("POST /topics/one HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\n\r\n"); a.status != 200 {
		t.Fatalf("got %s", a)
	}
	if got := r.last(); got.Value == nil || *got.Value != "" {
		t.Errorf("an empty message came back as %+v: it is no tombstone", got)
	}
}

func TestPipelinedRequests(t *testing.T) {
	r := newRig(t, nil)
	c, err := net.Dial("tcp", r.sidecar.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	var all strings.Builder
	for i := range 20 {
		fmt.Fprintf(&all, "POST /topics/one HTTP/1.1\r\nHost: localhost\r\nContent-Length: 2\r\n\r\n%02d", i)
	}
	_, _ = io.WriteString(c, all.String())
	br := bufio.NewReader(c)
	for i := range 20 {
		if done := into[api.Published](t, nextAnswer(t, br), 200); done.Offset != int64(i) {
			t.Errorf("answer %d has offset %d", i, done.Offset)
		}
	}
}

// fasthttp reuses the memory of a request: no event may end up as another.
func TestBodiesAreNotShared(t *testing.T) {
	r := newRig(t, nil)
	const workers, each = 16, 30
	var wg sync.WaitGroup
	var mu sync.Mutex
	want := map[string]string{}
	for w := range workers {
		wg.Go(func() {
			for i := range each {
				body := strings.Repeat(fmt.Sprintf("%d-%d;", w, i), 50+i)
				key := fmt.Sprintf("key-%d-%d", w, i)
				resp, err := http.Post(r.base+"/topics/t?key="+key, "", strings.NewReader(body))
				if err != nil {
					t.Error(err)
					return
				}
				var done api.Published
				err = json.NewDecoder(resp.Body).Decode(&done)
				resp.Body.Close()
				if err != nil || resp.StatusCode != 200 {
					t.Errorf("status %d, %v", resp.StatusCode, err)
					return
				}
				mu.Lock()
				want[fmt.Sprintf("t/%d/%d", done.Partition, done.Offset)] = key + "=" + body
				mu.Unlock()
			}
		})
	}
	wg.Wait()
	n := 0
	for p := range 4 {
		for _, m := range r.peek("t", p) {
			n++
			if got := *m.Key + "=" + *m.Value; want[m.ID] != got {
				t.Errorf("at %s is %.60s, answered was %.60s", m.ID, got, want[m.ID])
			}
		}
	}
	if n != workers*each {
		t.Errorf("%d messages, want %d", n, workers*each)
	}
}

func TestWebPagesAreRefused(t *testing.T) {
	r := newRig(t, func(c *Config) { c.AllowedHosts = []string{"app.internal"} })
	for name, c := range map[string]struct {
		header string
		status int
	}{
		"origin":                 {"Origin: https://example.com", 403},
		"own origin":             {"Origin: " + r.base, 403},
		"foreign host":           {"Host: evil.example", 403},
		"foreign host with port": {"Host: evil.example:4100", 403},
		"localhost":              {"Host: LocalHost:4100", 200},
		"loopback":               {"Host: 127.0.0.1", 200},
		"loopback, IPv6":         {"Host: [::1]:4100", 200},
		"allowed":                {"Host: app.internal:80", 200},
	} {
		a := r.do("POST", "/topics/one", "x", c.header)
		if a.status != c.status || c.status == 403 && a.code() != api.CodeForbidden {
			t.Errorf("%s: got %s", name, a)
		}
	}
}

// A long poll ends soon after its client has gone, and leases nothing to it.
func TestPollOfAClientThatLeft(t *testing.T) {
	r := newRig(t, nil)
	into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10ms", ""), 200) // joins
	c, err := net.Dial("tcp", r.sidecar.Addr())
	if err != nil {
		t.Fatal(err)
	}
	_, _ = io.WriteString(c, "POST /groups/g/topics/one/pull?wait=60s HTTP/1.1\r\nHost: localhost\r\n\r\n")
	time.Sleep(200 * time.Millisecond)
	c.Close()
	time.Sleep(2 * time.Second)
	into[api.Published](t, r.do("POST", "/topics/one", "v"), 200)
	pulled := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10s", ""), 200)
	if len(pulled.Messages) != 1 || pulled.Messages[0].Attempt != 1 {
		t.Errorf("%+v: the message went to the client that left", pulled)
	}
}

func TestEveryErrorIsJSON(t *testing.T) {
	r := newRig(t, nil)
	for name, c := range map[string]struct {
		a      answer
		status int
		code   api.Code
	}{
		"nothing there":      {r.do("GET", "/nothing", ""), 404, api.CodeNotFound},
		"not built":          {r.do("GET", "/groups/g/topics/one/nosuch", ""), 404, api.CodeNotFound},
		"wrong method":       {r.do("DELETE", "/topics/one", ""), 405, api.CodeMethodNotAllowed},
		"unknown option":     {r.do("POST", "/topics/one?kee=1", "x"), 400, api.CodeBadRequest},
		"option twice":       {r.do("POST", "/topics/one?key=1&key=2", "x"), 400, api.CodeBadRequest},
		"bad duration":       {r.do("POST", "/topics/one?timeout=soon", "x"), 400, api.CodeBadRequest},
		"timeout too long":   {r.do("POST", "/topics/one?timeout=24h", "x"), 400, api.CodeBadRequest},
		"bad partition":      {r.do("POST", "/topics/one?partition=-1", "x"), 400, api.CodeBadRequest},
		"no such partition":  {r.do("POST", "/topics/one?partition=9", "x"), 404, api.CodePartitionNotFound},
		"both keys":          {r.do("POST", "/topics/one?key=a&key64=YQ==", "x"), 400, api.CodeBadRequest},
		"ack":                {r.do("POST", "/topics/one?ack=none", "x"), 400, api.CodeBadRequest},
		"spool id":           {r.do("GET", "/spool/x", ""), 404, api.CodeNotFound},
		"bad flag":           {r.do("POST", "/groups/g/topics/one/pull?raw=maybe", ""), 400, api.CodeBadRequest},
		"bad topic":          {r.do("POST", "/topics/a%2Fb", "x"), 400, api.CodeBadRequest},
		"bad group":          {r.do("GET", "/groups/a%20b", ""), 400, api.CodeBadRequest},
		"unknown group":      {r.do("GET", "/groups/none", ""), 404, api.CodeGroupNotFound},
		"no receipts":        {r.do("POST", "/groups/g/topics/one/ack", "{}"), 400, api.CodeBadRequest},
		"not JSON":           {r.do("POST", "/groups/g/topics/one/ack", "receipts"), 400, api.CodeBadRequest},
		"unknown field":      {r.do("POST", "/groups/g/topics/one/ack", `{"receipt":["x"]}`), 400, api.CodeBadRequest},
		"seek to nothing":    {r.do("PUT", "/groups/g/topics/one/offsets", "{}"), 400, api.CodeBadRequest},
		"order not there":    {r.do("PUT", "/groups/g", `{"order":"age"}`), 400, api.CodeBadRequest},
		"empty batch":        {r.do("POST", "/topics/one/batch", ""), 400, api.CodeBadRequest},
		"not HTTP":           {r.raw("hello\r\n\r\n"), 400, api.CodeBadRequest},
		"head too large":     {r.raw("GET / HTTP/1.1\r\nHost: localhost\r\nX: " + strings.Repeat("x", 20<<10) + "\r\n\r\n"), 431, api.CodeBadRequest},
		"peek before offset": {r.do("GET", "/topics/one/partitions/0/messages?offset=-1", ""), 400, api.CodeBadRequest},
	} {
		if c.a.status != c.status || c.a.code() != c.code {
			t.Errorf("%s: got %.200s, want %d %s", name, c.a, c.status, c.code)
		}
		if ct := c.a.header.Get("Content-Type"); ct != api.ContentTypeJSON {
			t.Errorf("%s: Content-Type %q", name, ct)
		}
	}
	if a := r.do("DELETE", "/topics/one", ""); a.header.Get("Allow") != "GET, POST, PUT" {
		t.Errorf("Allow: %q", a.header.Get("Allow"))
	}
	if a := r.do("POST", "/topics/one?kee=1", "x"); !strings.Contains(string(a.body), "key64") {
		t.Errorf("%s does not name the options that there are", a)
	}
	if a := r.do("POST", "/topics/one?timeout=5", "x"); a.status != 200 {
		t.Errorf("bare seconds: got %s", a)
	}
}

// A body that is not what a request takes is answered with what it takes.
func TestBodiesAreExplained(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct{ method, path, body, want string }{
		{"POST", "/groups/g/topics/one/ack", `{"receipt":["x"]}`, `it has receipts, delay, error, unhandled, lease`},
		{"POST", "/groups/g/topics/one/ack", `["x"]`, `not a JSON object: send one such as {\"receipts\":[\"…\"]}`},
		{"POST", "/groups/g/topics/one/ack", ``, `such as {\"receipts\":[\"…\"]}`},
		{"POST", "/groups/g/topics/one/pull", `AQEA`, `such as {\"ack\":[\"…\"]}`},
		{"PUT", "/groups/g/topics/one/offsets", `"earliest"`, `such as {\"to\":\"earliest\"}`},
		{"PUT", "/groups/g", `{"leese":"1s"}`, "it has order, "},
		{"PUT", "/topics/two", `4`, `such as {\"partitions\":4}`},
		{"POST", "/groups/g/topics/one/dead/redrive", `{"id":"x"}`, "it has max, ids, "},
	} {
		if a := r.do(c.method, c.path, c.body); a.status != 400 || a.code() != api.CodeBadRequest || !strings.Contains(string(a.body), c.want) {
			t.Errorf("%s %s %s: %s lacks %q", c.method, c.path, c.body, a, c.want)
		}
	}
}

func TestGroupConflicts(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Consume.LeaveAfter = time.Second })
	into[api.Group](t, r.do("PUT", "/groups/g", `{"from":"latest"}`), 200)
	if a := r.do("POST", "/groups/g/topics/one/pull?from=earliest", ""); a.status != 409 || a.code() != api.CodeGroupConfig {
		t.Errorf("got %s", a)
	}
	if a := r.do("POST", "/groups/g/topics/one/ack", `{"receipts":["made up"]}`); a.status == 200 {
		t.Errorf("got %s", a)
	}
	into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull", ""), 200)
	if a := r.do("DELETE", "/groups/g", ""); a.status != 409 || a.code() != api.CodeGroupConfig {
		t.Errorf("a group whose consumer pulled just now: got %s", a)
	}
	r.until("deleted once its member has left", func() bool { return r.do("DELETE", "/groups/g", "").status == 204 })
	if a := r.do("GET", "/groups/g", ""); a.status != 404 {
		t.Errorf("got %s", a)
	}
}

// An ack after its lease was given to another is told, not swallowed.
func TestLeaseLostIs409(t *testing.T) {
	r := newRig(t, nil)
	into[api.Published](t, r.do("POST", "/topics/one", "v"), 200)
	pulled := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10s&lease=200ms", ""), 200)
	if len(pulled.Messages) != 1 {
		t.Fatalf("%+v", pulled)
	}
	time.Sleep(400 * time.Millisecond)
	body, _ := json.Marshal(api.Receipts{Receipts: []string{pulled.Messages[0].Receipt}, Lease: "10s"})
	if a := r.do("POST", "/groups/g/topics/one/extend", string(body)); a.status != 409 || a.code() != api.CodeLeaseLost {
		t.Errorf("got %s", a)
	}
	again := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10s", ""), 200)
	if len(again.Messages) != 1 || again.Messages[0].Attempt != 2 {
		t.Errorf("%+v", again)
	}
}

// A compressed body would be stored as it is and read by nobody.
func TestCompressedBodiesAreRefused(t *testing.T) {
	r := newRig(t, nil)
	if a := r.do("POST", "/topics/one", "\x1f\x8b", "Content-Encoding: gzip"); a.status != 400 || a.code() != api.CodeBadRequest {
		t.Errorf("got %s", a)
	}
}

// A connection that never asked for anything does not hold up the stop.
func TestStopWithSilentConnections(t *testing.T) {
	r := newRig(t, nil)
	c, err := net.Dial("tcp", r.sidecar.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	into[api.Health](t, r.do("GET", "/healthz", ""), 200)
	begun := time.Now()
	if err := r.stop(); err != nil {
		t.Error(err)
	}
	if took := time.Since(begun); took > 4*time.Second {
		t.Errorf("the stop took %s", took)
	}
}
