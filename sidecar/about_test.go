package sidecar

import (
	"encoding/json"
	"strings"
	"testing"
)

// A bare GET was 404, and /status one line of kilobytes.
func TestWhatPeopleSeeFirst(t *testing.T) {
	r := newRig(t, nil)
	a := r.do("GET", "/", "")
	if a.status != 200 || !strings.HasPrefix(a.header.Get("Content-Type"), "text/plain") || !strings.Contains(string(a.body), r.sidecar.Addr()+"/topics/hello") {
		t.Errorf("%s", a)
	}
	if a := r.do("GET", "/status", ""); a.status != 200 || !json.Valid(a.body) || !strings.Contains(string(a.body), "{\n  \"id\": ") {
		t.Errorf("%s", a)
	}
	if a := r.do("GET", "//", ""); a.status != 404 {
		t.Errorf("%s", a)
	}
}
