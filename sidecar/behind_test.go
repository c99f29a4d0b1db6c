package sidecar

import (
	"bytes"
	"encoding/json"
	"net/http"
	"testing"

	"sidestream/sdk/api"
)

// A pull that accepts it gets the values as they are, behind the JSON.
func TestValuesBehindTheAnswer(t *testing.T) {
	r := newRig(t, nil)
	values := [][]byte{[]byte(`{"a":"b"}`), {0xff, 0, '"'}, {}, bytes.Repeat([]byte("x\n"), 5000)}
	for _, v := range values {
		into[api.Published](t, r.do("POST", "/topics/one", string(v)), http.StatusOK)
	}
	into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", `{"key":"k","value":null}`), http.StatusOK)
	a := r.do("POST", "/groups/g/topics/one/pull?wait=10s&max=10", "", "Accept: "+api.ContentTypeBehind)
	if got := a.header.Get("Content-Type"); a.status != http.StatusOK || got != api.ContentTypeBehind {
		t.Fatalf("%d, type %q", a.status, got)
	}
	var pulled api.Pulled
	if err := pulled.DecodeBehind(a.body); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if len(pulled.Messages) != len(values)+1 {
		t.Fatalf("%d messages", len(pulled.Messages))
	}
	var acks []string
	for i, m := range pulled.Messages {
		acks = append(acks, m.Receipt)
		if i == len(values) {
			if !m.Tombstone() {
				t.Errorf("%+v is no tombstone", m)
			}
			continue
		}
		if got, err := m.ValueBytes(); err != nil || !bytes.Equal(got, values[i]) || m.Tombstone() {
			t.Errorf("value %d is %q, %v", i, got, err)
		}
	}
	body, err := json.Marshal(api.PullBody{Ack: append(acks, "none")})
	if err != nil {
		t.Fatal(err)
	}
	a = r.do("POST", "/groups/g/topics/one/pull", string(body), "Accept: "+api.ContentTypeBehind)
	if err := pulled.DecodeBehind(a.body); err != nil {
		t.Fatalf("%v: %s", err, a.body)
	}
	if s := pulled.Acks; s == nil || s.OK != len(acks) || s.Failed != 1 || len(s.Results) != 1 || s.Results[0].Receipt != "none" {
		t.Errorf("acks %+v", s)
	}
	if code := r.do("POST", "/groups/g/topics/none/pull", "", "Accept: "+api.ContentTypeBehind).code(); code != api.CodeTopicNotFound {
		t.Errorf("an error is %q", code)
	}
	for _, accept := range []string{"*/*", "application/json"} { // all others get JSON
		into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull", "", "Accept: "+accept), http.StatusOK)
	}
}
