package sidecar

import (
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// Errors of durations name the range that holds, and how a number was read: lease
// was said to be from 0, and 5000 for 5 seconds was out of range without a reason.
func TestErrorsOfDurations(t *testing.T) {
	r := newRig(t, nil)
	for path, says := range map[string]string{
		"/groups/g/topics/one/pull?lease=50ms":       "from 100ms to",
		"/groups/g/topics/one/pull?lease=0":          "from 100ms to",
		"/groups/g/topics/one/pull?lease=1000h":      "from 100ms to",
		"/groups/g/topics/one/stream?heartbeat=1ms":  "from 100ms to",
		"/groups/g/topics/one/pull?wait=5000":        "5000 without a unit is seconds: did you mean 5000ms?",
		"/groups/g/topics/one/stream?heartbeat=2000": "did you mean 2000ms?",
		"/topics/one?timeout=1000":                   "did you mean 1000ms?",
	} {
		if a := r.do("POST", path, ""); a.status != 400 || !strings.Contains(string(a.body), says) {
			t.Errorf("%s: %s, want %q", path, a, says)
		}
	}
	if a := r.do("PUT", "/groups/g", `{"lease":"90000"}`); a.code() != api.CodeBadRequest || !strings.Contains(string(a.body), "did you mean 90000ms?") {
		t.Errorf("%s", a)
	}
}

// Media types have no case.
func TestAcceptIsComparedWithoutCase(t *testing.T) {
	r := newRig(t, nil)
	for accept, want := range map[string]string{
		strings.ToUpper(api.ContentTypeBehind): api.ContentTypeBehind,
		api.ContentTypeBehind + ";q=0.9, */*":  api.ContentTypeBehind,
		"Application/CloudEvents-Batch+JSON":   "application/cloudevents-batch+json",
	} {
		if a := r.do("POST", "/groups/g/topics/one/pull", "", "Accept: "+accept); a.header.Get("Content-Type") != want {
			t.Errorf("%s: %s", accept, a.header.Get("Content-Type"))
		}
	}
}
