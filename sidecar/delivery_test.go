package sidecar

import (
	"encoding/json"
	"testing"

	"sidestream/sdk/api"
)

// body writes a JSON body.
func body(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// TestDeliveryByKey: over HTTP, a key whose message fails holds up no other, a
// pull that is repeated with its token gets the same messages, and attempts are
// counted.
func TestDeliveryByKey(t *testing.T) {
	r := newRig(t, nil)
	into[api.Topic](t, r.do("PUT", "/topics/keys", `{"partitions":1}`), 201)
	for _, key := range []string{"a", "a", "b"} {
		into[api.Published](t, r.do("POST", "/topics/keys?key="+key, key), 200)
	}
	g := into[api.Group](t, r.do("PUT", "/groups/g", `{"order":"key","lease":"1m"}`), 200)
	if g.Config.Order != "key" {
		t.Fatalf("%+v", g.Config)
	}
	pull := func(query string) []api.Message {
		t.Helper()
		return into[api.Pulled](t, r.do("POST", "/groups/g/topics/keys/pull?wait=30s"+query, ""), 200).Messages
	}
	first := pull("&max=1&attempt_token=t1")
	again := pull("&max=1&attempt_token=t1")
	if len(first) != 1 || len(again) != 1 || first[0].Offset != 0 || again[0].Receipt != first[0].Receipt || again[0].Attempt != 1 {
		t.Fatalf("%+v, then %+v", first, again)
	}
	other := pull("&max=10")
	if len(other) != 1 || *other[0].Key != "b" {
		t.Fatalf("while a is out: %+v", other)
	}
	nack := body(t, api.Receipts{Receipts: []string{first[0].Receipt}, Delay: "50ms", Error: "no stock"})
	into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/keys/nack", nack), 200)
	back := pull("&max=10")
	if len(back) != 1 || back[0].Offset != 0 || back[0].Attempt != 2 {
		t.Fatalf("after the nack: %+v", back)
	}
	ack := body(t, api.Receipts{Receipts: []string{back[0].Receipt}})
	into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/keys/ack", ack), 200)
	if rest := pull("&max=10"); len(rest) != 1 || rest[0].Offset != 1 {
		t.Fatalf("after the ack: %+v", rest)
	}
	for _, query := range []string{"attempt_token=", "attempt_token=t&ack=auto"} {
		if a := r.do("POST", "/groups/g/topics/keys/pull?"+query, ""); a.status != 400 || a.code() != api.CodeBadRequest {
			t.Errorf("%s: %s", query, a)
		}
	}
}
