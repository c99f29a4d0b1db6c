package sidecar

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// rawPull pulls to the letter: the answer, and how large its head was.
func rawPull(t *testing.T, r *rig, options string) (a *http.Response, body string, head, lines int) {
	t.Helper()
	c, err := net.Dial("tcp", r.sidecar.Addr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	fmt.Fprintf(c, "POST /groups/g/topics/one/pull?raw%s HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n", options)
	b, err := io.ReadAll(c)
	if err != nil {
		t.Fatal(err)
	}
	before, _, _ := strings.Cut(string(b), "\r\n\r\n")
	if a, err = http.ReadResponse(bufio.NewReader(strings.NewReader(string(b))), nil); err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	text, err := io.ReadAll(a.Body)
	if err != nil {
		t.Fatal(err)
	}
	return a, string(text), len(before) + 4, strings.Count(before, "\r\n")
}

// A key of 17000 bytes came in the head of the answer, which Node refuses (16
// KiB), as nginx (4 KiB) and Python (64 KiB, 100 lines) do for others: with
// ack=auto the message was gone, without it the partition stood still until the
// message was a dead letter.
func TestRawPullsHaveHeadsThatClientsTake(t *testing.T) {
	r := newRig(t, nil)
	long := strings.Repeat("k", 17_000)
	many := make([]map[string]string, 200)
	for i := range many {
		many[i] = map[string]string{"name": "n", "value": "v"}
	}
	event := []map[string]string{{"name": "ce_specversion", "value": "1.0"}, {"name": "ce_id", "value": "1"}, {"name": "ce_source", "value": strings.Repeat("s", 3000)},
		{"name": "ce_type", "value": "t"}, {"name": "content-type", "value": "application/json; a=" + strings.Repeat("x", 5000)}}
	for _, c := range []struct {
		name    string
		record  map[string]any
		leftOut string
		key     string
	}{
		{"nothing large", map[string]any{"key": "k", "headers": map[string]string{"a": "b"}}, "", "k"},
		{"a key", map[string]any{"key": long, "headers": map[string]string{"a": "b"}}, "key", ""},
		{"a key of 64 KiB", map[string]any{"key": strings.Repeat("k", 64<<10)}, "key", ""},
		{"a key that is as base64", map[string]any{"key": strings.Repeat("ö", 1500)}, "key", ""},
		{"a header", map[string]any{"key": "k", "headers": map[string]string{"a": long}}, "headers", "k"},
		{"many headers", map[string]any{"key": "k", "headers": many}, "headers", "k"},
		{"a trace", map[string]any{"key": "k", "headers": map[string]string{"traceparent": long}}, "trace, headers", "k"},
		{"an event", map[string]any{"key": "k", "headers": event}, "headers", "k"},
		{"an event of more", map[string]any{"key": "k", "headers": append(event[:2:2], map[string]string{"name": "ce_source", "value": long})}, "event, headers", "k"},
		{"all", map[string]any{"key": long, "headers": map[string]string{"a": long}}, "key, headers", ""},
	} {
		c.record["value"] = "v"
		b, err := json.Marshal(c.record)
		if err != nil {
			t.Fatal(err)
		}
		at := into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", string(b)), 200).Results[0]
		a, body, head, lines := rawPull(t, r, "&ack=auto&wait=10s")
		h := a.Header
		if a.StatusCode != 200 || body != "v" || h.Get("Sidestream-Left-Out") != c.leftOut || h.Get("Sidestream-Key") != c.key {
			t.Fatalf("%s: %d %q, left out %q", c.name, a.StatusCode, body, h.Get("Sidestream-Left-Out"))
		}
		if head > 4<<10 || lines > 80 {
			t.Errorf("%s: a head of %d bytes and %d lines", c.name, head, lines)
		}
		if c.leftOut == "" {
			if h.Get("Sidestream-Receipt") != "" {
				t.Errorf("%s: a receipt with ack=auto", c.name)
			}
			continue
		}
		// It is not acknowledged, and where it says there is all of it.
		shown := into[api.Peeked](t, r.do("GET", h.Get("Sidestream-Peek"), ""), 200)
		if len(shown.Messages) != 1 || shown.Messages[0].Offset != at.Offset || shown.Messages[0].Partition != at.Partition || *shown.Messages[0].Key != c.record["key"] {
			t.Fatalf("%s: peeked %+v", c.name, shown)
		}
		if len(shown.Messages[0].Headers) == 0 && c.record["headers"] != nil {
			t.Errorf("%s: no headers peeked", c.name)
		}
		again := into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/one/nack", `{"receipts":["`+h.Get("Sidestream-Receipt")+`"]}`), 200)
		if again.OK != 1 {
			t.Errorf("%s: it was acknowledged: %+v", c.name, again)
		}
		a, _, head, _ = rawPull(t, r, "&wait=10s")
		if a.Header.Get("Sidestream-Left-Out") != c.leftOut || a.Header.Get("Sidestream-Id") != h.Get("Sidestream-Id") || head > 4<<10 {
			t.Errorf("%s, without ack=auto: %v", c.name, a.Header)
		}
		into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/one/ack", `{"receipts":["`+a.Header.Get("Sidestream-Receipt")+`"]}`), 200)
	}
	// What ack=auto acknowledged does not come again.
	if a, _, _, _ := rawPull(t, r, "&wait=1s"); a.StatusCode == 200 {
		t.Errorf("again: %v", a.Header)
	}
}
