package api

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A body that is announced as too large is refused before any of it is there; one
// that is answered as it goes may be of any size.
func TestAnnouncedBodiesAreRefusedAtOnce(t *testing.T) {
	s := serve(t, nil)
	for name, extra := range map[string]string{"said": "", "asked": "Expect: 100-continue\r\n"} {
		c, r := s.dial()
		fmt.Fprintf(c, "POST /topics/t HTTP/1.1\r\nHost: localhost\r\n%sContent-Length: 1048577\r\n\r\n", extra)
		_ = c.SetReadDeadline(time.Now().Add(10 * time.Second))
		if status, text := answered(t, r); status != 413 || !strings.Contains(text, "1048577 bytes") {
			t.Errorf("%s: %d %s", name, status, text)
		}
	}
	body := strings.Repeat("x\n", 1<<20)
	if status, text := s.post("/topics/t/batch?lines", strings.NewReader(body), asItGoes); status != 200 || !strings.Contains(text, `"written":1048576`) {
		t.Errorf("%d %.200s", status, text)
	}
}

// What would have no effect, or another than is meant, is refused, and the error
// says what is right.
func TestBatchesAreRefused(t *testing.T) {
	s := serve(t, nil)
	const event = `{"id":"1","specversion":"1.0","source":"s","type":"t"}`
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		status     int
		says       string
	}{
		"a header":           {"/topics/t/batch", "{}", []string{"Record-Header: a=b"}, 400, "single message"},
		"a header, base64":   {"/topics/t/batch?lines", "x", []string{"Record-Header64: YQ==YQ=="}, 400, "single message"},
		"a header, streamed": {"/topics/t/batch", "{}", []string{"Record-Header: a=b", asItGoes}, 400, "single message"},
		"a header of events": {"/topics/t/batch", "[" + event + "]", []string{"Record-Header: a=b", "Content-Type: " + typeEvents}, 400, "single message"},
		"a header, at topic": {"/topics/t", "[" + event + "]", []string{"Record-Header: a=b", "Content-Type: " + typeEvents}, 400, "single message"},
		"events as lines":    {"/topics/t/batch?lines=1", "[" + event + "]", []string{"Content-Type: " + typeEvents}, 400, "leave lines out"},
		"one event":          {"/topics/t/batch", event, []string{"Content-Type: " + typeEvent}, 400, "/topics/t, or"},
		"an event, no type":  {"/topics/t/batch", event, nil, 422, "Content-Type: application/cloudevents+json"},
		"too long":           {"/topics/t?timeout=1h", "x", nil, 400, "from 1ms to 1m\""},
		"too short":          {"/topics/t?timeout=0", "x", nil, 400, "from 1ms to 1m\""},
		"two callers":        {"/topics/t", "x", []string{"Sidestream-Caller: a", "Sidestream-Caller: b"}, 400, "several times"},
		"a name":             {"/topics/bad%20name", "x", nil, 400, "bad name"},
		"a name, batch":      {"/topics/bad%20name/batch", "x", nil, 400, "bad name"},
		"a name, streamed":   {"/topics/bad%20name/batch", "x", []string{asItGoes}, 400, "bad name"},
	} {
		if status, text := s.post(c.path, strings.NewReader(c.body), c.headers...); status != c.status || !strings.Contains(text, c.says) {
			t.Errorf("%s: %d %s, want %d and %q", name, status, text, c.status, c.says)
		}
	}
	if n := len(s.sink.taken()); n > 0 {
		t.Errorf("%d messages", n)
	}
}
