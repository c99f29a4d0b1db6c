package sidecar

import (
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// A pull took wait=5 as five seconds while a group's "lease":"5" was refused
// with an error that did not name the form: the query and the bodies had
// readers of their own. All places take the same forms and name them.
func TestDurationsHaveOneForm(t *testing.T) {
	r := newRig(t, nil)
	into[api.Published](t, r.do("POST", "/topics/one?timeout=5", "v"), 200)
	for _, form := range []string{"5", "5s", "5000ms"} {
		if g := into[api.Group](t, r.do("PUT", "/groups/g", `{"lease":"`+form+`"}`), 200); g.Config.Lease != "5s" {
			t.Errorf("lease %q became %q", form, g.Config.Lease)
		}
	}
	p := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=10&lease=30", ""), 200)
	if len(p.Messages) != 1 {
		t.Fatalf("%+v", p)
	}
	body := `{"receipts":["` + p.Messages[0].Receipt + `"],`
	into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/one/extend", body+`"lease":"60"}`), 200)
	into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/one/nack", body+`"delay":"1"}`), 200)

	for path, body := range map[string]string{
		"POST /topics/one?timeout=soon":             "v",
		"POST /groups/g/topics/one/pull?wait=1.5":   "",
		"POST /groups/g/topics/one/pull?lease=1day": "",
		"PUT /groups/g":                    `{"lease":"1day"}`,
		"POST /groups/g/topics/one/nack":   `{"receipts":["x"],"delay":"1d"}`,
		"POST /groups/g/topics/one/extend": `{"receipts":["x"],"lease":"1 m"}`,
	} {
		method, path, _ := strings.Cut(path, " ")
		a := r.do(method, path, body)
		if a.status != 400 || !strings.Contains(string(a.body), "500ms, 30s or 2m") || !strings.Contains(string(a.body), "whole number of seconds") {
			t.Errorf("%s %s: %s", method, path, a)
		}
	}
	if a := r.do("PUT", "/groups/g", `{"lease":5}`); a.status != 400 || !strings.Contains(string(a.body), "where a string belongs") {
		t.Errorf("got %s", a)
	}
}
