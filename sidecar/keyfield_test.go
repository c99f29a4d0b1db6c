package sidecar

import (
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// A topic's key field by the configuration gives single posts and batches their
// keys, where they bring none and ask for no other field.
func TestKeyFieldOfATopic(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Publish.Topics = map[string]string{"one": "key_field=/user/id compression=zstd:3"} })
	const value = `{"user":{"id":7},"visitor":"v"}`
	for _, query := range []string{"", "?key=own", "?key_field=visitor"} {
		into[api.Published](t, r.do("POST", "/topics/one"+query, value), 200)
	}
	b := into[api.BatchPublished](t, r.do("POST", "/topics/one/batch?lines=1", value+"\n"+value), 200)
	if b.Written != 2 {
		t.Errorf("%+v", b)
	}
	var keys []string
	for _, m := range r.peek("one", 0) {
		key := "none"
		if m.Key != nil {
			key = *m.Key
		}
		keys = append(keys, key)
	}
	if got := strings.Join(keys, " "); got != "7 own v 7 7" {
		t.Errorf("keys %s", got)
	}
	// Who names a partition needs no key, unless it is asked for.
	into[api.Published](t, r.do("POST", "/topics/one?partition=0", "no JSON"), 200)
	into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", `{"partition":0,"value":"no JSON"}`), 200)
	if a := r.do("POST", "/topics/one/batch", `{"partition":0,"value":"no JSON"}`, "Accept: application/x-ndjson"); a.status != 200 || !strings.Contains(string(a.body), `"written":1`) {
		t.Errorf("%s", a)
	}
	for _, m := range r.peek("one", 0)[5:] {
		if m.Key != nil || *m.Value != "no JSON" {
			t.Errorf("%+v", m)
		}
	}
	into[api.Published](t, r.do("POST", "/topics/t?key_field=visitor", value), 200)
	for _, c := range []struct {
		path, body string
		want       int
	}{
		{"/topics/one", `{"user":{}}`, 422},
		{"/topics/one", "no JSON", 422},
		{"/topics/one?partition=0&key_field=visitor", "no JSON", 422},
		{"/topics/t?key_field=", value, 400},
		{"/topics/t?key_field=nope", value, 422},
	} {
		if a := r.do("POST", c.path, c.body); a.status != c.want {
			t.Errorf("%s of %s: got %s, want %d", c.path, c.body, a, c.want)
		}
	}
	if ms := r.peek("one", 0); len(ms) != 8 {
		t.Errorf("%d messages: what was refused is written", len(ms))
	}
}
