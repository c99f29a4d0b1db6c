package sidecar

import (
	"encoding/json"
	"maps"
	"net/url"
	"slices"
	"strings"
	"testing"

	"sidestream/sdk/api"
)

func TestSeveralTopicsOverHTTP(t *testing.T) {
	r := newRig(t, nil)
	for _, topic := range []string{"orders.eu", "orders.us", "orders", "dead.orders"} {
		into[api.Topic](t, r.do("PUT", "/topics/"+topic, `{"partitions":1}`), 201)
		into[api.Published](t, r.do("POST", "/topics/"+topic, "to "+topic), 200)
	}
	pull := func(topics string) api.Pulled {
		t.Helper()
		return into[api.Pulled](t, r.do("POST", "/groups/g/topics/"+topics+"/pull?wait=10s", ""), 200)
	}
	got := map[string]string{}
	r.until("both", func() bool {
		for _, m := range pull("orders.*").Messages {
			got[*m.Value] = m.Receipt
		}
		return len(got) >= 2
	})
	if names := slices.Sorted(maps.Keys(got)); !slices.Equal(names, []string{"to orders.eu", "to orders.us"}) {
		t.Fatalf("%v", names)
	}
	body := func(receipts ...string) string {
		b, err := json.Marshal(api.Receipts{Receipts: receipts})
		if err != nil {
			t.Fatal(err)
		}
		return string(b)
	}
	// Escaped or not, under the pattern or under the topic.
	into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/"+url.PathEscape("orders.*")+"/extend", body(got["to orders.eu"], got["to orders.us"])), 200)
	into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/orders,orders.*/ack", body(got["to orders.eu"])), 200)
	if a := r.do("POST", "/groups/g/topics/orders/ack", body(got["to orders.us"])); a.status != 400 {
		t.Errorf("a receipt of another topic: %s", a)
	}
	into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/orders.us/nack", body(got["to orders.us"])), 200)
	m := pull("orders%2Corders.*").Messages
	for len(m) < 2 {
		m = append(m, pull("orders%2Corders.*").Messages...)
	}
	n := map[string]int{}
	for _, x := range m {
		n[x.ID] = x.Attempt
	}
	if !maps.Equal(n, map[string]int{"orders/0/0": 1, "orders.us/0/0": 2}) {
		t.Errorf("%v", n)
	}
	if o := into[api.Offsets](t, r.do("GET", "/groups/g/topics/orders.*/offsets", ""), 200); len(o.Topics) != 2 || o.Lag != 1 || o.Partitions == nil {
		t.Errorf("%+v", o)
	}
	if s := into[api.Sought](t, r.do("PUT", "/groups/g/topics/orders.*/offsets", `{"to":"latest"}`), 200); s.Topics["orders.eu"].Offsets[0] != 1 || s.Topics["orders.us"].Offsets[0] != 1 {
		t.Errorf("%+v", s)
	}
	if d := into[api.Pulled](t, r.do("POST", "/groups/g/topics/none.*/pull?wait=3s", ""), 200); d.Reason == nil || *d.Reason != api.ReasonNoTopic {
		t.Errorf("%+v", d)
	}
	for topics, want := range map[string]string{
		"orders,": "single commas", "dead.*": "name them", "orders,nowhere": "nowhere", "orders.%3F": "not allowed", "a,b%2Fc": "b/c",
	} {
		a := r.do("POST", "/groups/g/topics/"+topics+"/pull", "")
		if a.status != 400 && a.status != 404 || !strings.Contains(string(a.body), want) {
			t.Errorf("%s: %s", topics, a)
		}
	}
	// What is of one topic takes no pattern.
	for _, path := range []string{"/topics/orders.*", "/groups/g/topics/orders.*/pause"} {
		if a := r.do("POST", path, "x"); a.status != 400 {
			t.Errorf("%s: %s", path, a)
		}
	}
}
