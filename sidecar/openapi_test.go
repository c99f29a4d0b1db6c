package sidecar

import (
	"io"
	"net/http"
	"testing"

	"sidestream/sidecar/api/conform"
)

// conforms holds an answer against the description of the API that the sidecar
// serves. Every answer that a test asks for by do is held so.
func (r *rig) conforms(method, path string, a answer) {
	r.t.Helper()
	r.describe.Do(func() {
		resp, err := http.Get(r.base + "/openapi.json")
		if err != nil {
			return // a test that wants no answers
		}
		defer resp.Body.Close()
		b, err := io.ReadAll(resp.Body)
		if err == nil {
			r.described, err = conform.Parse(b)
		}
		if err != nil {
			r.t.Errorf("/openapi.json: %v", err)
		}
	})
	if r.described == nil {
		return
	}
	header := a.header
	if header.Get("Sidestream-Id") != "" { // raw: a message, of whatever type
		header = header.Clone()
		header.Set("Content-Type", "application/octet-stream")
	}
	if err := r.described.Answer(method, path, a.status, header, a.body); err != nil {
		r.t.Errorf("not as /openapi.json says: %v", err)
	}
}

// One good answer of each kind, and some that are refused: do compares them with
// the description.
func TestAnswersAreAsDescribed(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		method, path, body string
		status             int
	}{
		{"GET", "/openapi.json", "", 200},
		{"HEAD", "/openapi.json", "", 200},
		{"GET", "/healthz", "", 200},
		{"GET", "/readyz", "", 200},
		{"GET", "/status", "", 200},
		{"GET", "/metrics", "", 200},
		{"GET", "/metrics?name[]=sidestream_http_requests_total", "", 200},
		{"PUT", "/topics/new", `{"partitions":2}`, 201},
		{"PUT", "/topics/new", `{"partitions":2}`, 200},
		{"PUT", "/topics/new", `{"partitions":3}`, 409},
		{"PUT", "/topics/new", `{"partitions":-1}`, 400},
		{"GET", "/topics", "", 200},
		{"GET", "/topics/new", "", 200},
		{"GET", "/topics/none", "", 404},
		{"DELETE", "/topics/new", "", 405},
		{"POST", "/topics/one?key=a", "hi", 200},
		{"POST", "/topics/one?ack=spool", "hi", 202},
		{"POST", "/topics/one?partition=9", "hi", 404},
		{"POST", "/topics/one/batch", `[{"value":"x"},{}]`, 200},
		{"POST", "/topics/one/batch?ack=spool", `{"value":"x"}`, 202},
		{"POST", "/topics/one/batch", `[{"value":"x"},{"partition":9}]`, 422},
		{"GET", "/spool", "", 200},
		{"GET", "/spool/none", "", 404},
		{"GET", "/topics/one/partitions/0/messages", "", 200},
		{"GET", "/topics/one/partitions/7/messages", "", 404},
		{"GET", "/topics/one/partitions/x/messages", "", 400},
		{"GET", "/groups", "", 200},
		{"GET", "/groups/g", "", 404},
		{"GET", "/groups/g/topics/one/offsets", "", 404},
		{"DELETE", "/groups/g", "", 404},
		{"POST", "/groups/g/pause", "", 404},
		{"PUT", "/groups/g", `{"order":"key"}`, 200},
		{"GET", "/groups/g/topics/one/offsets", "", 200},
		{"POST", "/groups/g/topics/one/pull?wait=10s", "", 200},
		{"POST", "/groups/g/topics/one/pull?from=latest", "", 409},
		{"PUT", "/groups/late", `{"from":"latest"}`, 200},
		{"POST", "/groups/late/topics/one/pull?raw", "", 204},
		{"POST", "/groups/g/topics/one,t/pull", "", 200},
		{"POST", "/groups/g/topics/one/ack", `{"receipts":["x"]}`, 400},
		{"POST", "/groups/g/topics/one/nack", `{"receipts":[]}`, 400},
		{"POST", "/groups/g/topics/one/extend", `{}`, 400},
		{"POST", "/groups/g/topics/one/stream", `x`, 400},
		{"HEAD", "/groups/g/topics/one/stream", ``, 200},
		{"GET", "/groups/g", "", 200},
		{"GET", "/groups/g/topics/one/offsets", "", 200},
		{"GET", "/groups/g/topics/one,t/offsets", "", 200},
		{"PUT", "/groups/g/topics/one/offsets", `{"to":"earliest"}`, 200},
		{"PUT", "/groups/g/topics/*/offsets", `{"to":"earliest"}`, 200},
		{"PUT", "/groups/g/topics/one/offsets", `{"offsets":{"7":1}}`, 404},
		{"GET", "/groups/g/topics/one/dead", "", 200},
		{"GET", "/groups/g/topics/one/dead?dead=", "", 400},
		{"GET", "/groups/g/topics/one/dead?reason=", "", 400},
		{"POST", "/groups/g/topics/one/dead/redrive", "", 200},
		{"POST", "/groups/g/topics/one/pause", "", 200},
		{"POST", "/groups/g/topics/one/resume", "", 200},
		{"POST", "/groups/g/pause", "", 200},
		{"POST", "/groups/g/topics/one/resume", "", 409},
		{"POST", "/groups/g/resume", "", 200},
		{"DELETE", "/groups/g", "", 409},
		{"PUT", "/groups/other", "", 200},
		{"DELETE", "/groups/other", "", 204},
		{"GET", "/nothing", "", 404},
		{"GET", "/topics?x", "", 400},
		{"POST", "/drain", "", 200},
		{"GET", "/readyz", "", 503},
		{"POST", "/topics/one", "x", 503},
		{"POST", "/groups/g/topics/one/pull", "", 503},
		{"GET", "/groups/g/topics/one/stream", "", 503},
	} {
		if a := r.do(c.method, c.path, c.body); a.status != c.status {
			t.Errorf("%s %s %s: got %s, want %d", c.method, c.path, c.body, a, c.status)
		}
	}
	if a := r.do("GET", "/healthz", "", "Origin: http://example.com"); a.status != 403 {
		t.Errorf("got %s", a)
	}
}
