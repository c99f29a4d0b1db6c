package sidecar

import (
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// A name of a header that is not UTF-8 was shown with U+FFFD in it, which is
// another name. It comes as name64 wherever messages are shown, and goes back so.
func TestNamesOfHeadersThatAreNotUTF8(t *testing.T) {
	r := newRig(t, nil)
	into[api.Published](t, r.do("POST", "/topics/one", "v", "Record-Header64: /w=dg", "Record-Header64: bg=dg"), 200)
	const want = `"headers":[{"name":"","name64":"/w==","value":"v"},{"name":"n","value":"v"}]`
	for round := range 2 {
		if got := r.last(); len(got.Headers) != 2 || got.Headers[0].Name64 == nil || *got.Headers[0].Name64 != "/w==" || got.Headers[0].Name != "" || got.Headers[1].Name64 != nil {
			t.Errorf("peeked %+v", got.Headers)
		}
		for _, accept := range []string{"application/json", api.ContentTypeBehind} {
			a := r.do("POST", "/groups/g/topics/one/pull?wait=10s", "", "Accept: "+accept)
			if !strings.Contains(string(a.body), want) {
				t.Errorf("pulled %s", a)
			}
			id := firstReceipt(t, a)
			into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/one/nack", `{"unhandled":true,"receipts":["`+id+`"]}`), 200)
		}
		a := r.do("POST", "/groups/g/topics/one/pull?raw&wait=10s&ack=auto", "")
		if got := strings.Join(a.header.Values("Record-Header64"), " "); got != "/w=dg bg=dg" {
			t.Errorf("raw %q", got)
		}
		if round == 0 { // as it was pulled it goes back
			into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", `{"value":"v",`+want+`}`), 200)
		}
	}
	for _, wrong := range []string{`{"name":"a","name64":"/w=="}`, `{"name64":"!"}`, `{"name64":""}`, `{"name":"","value":"v"}`} {
		if a := r.do("POST", "/topics/one/batch", `{"value":"v","headers":[`+wrong+`]}`); a.code() != api.CodeBadRecord {
			t.Errorf("%s: %s", wrong, a)
		}
	}
}

// firstReceipt is the receipt of the first message, whatever the form of the answer.
func firstReceipt(t *testing.T, a answer) string {
	t.Helper()
	_, after, ok := strings.Cut(string(a.body), `"receipt":"`)
	receipt, _, _ := strings.Cut(after, `"`)
	if !ok || receipt == "" {
		t.Fatalf("no receipt in %s", a)
	}
	return receipt
}
