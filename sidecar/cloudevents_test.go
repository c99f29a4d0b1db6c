package sidecar

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// A CloudEvent that is posted in any mode is on the log as Kafka's binding has it,
// and comes back in HTTP's.
func TestCloudEventsThereAndBack(t *testing.T) {
	r := newRig(t, nil)
	const trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	structured := `{"specversion":"1.0","id":"1","source":"/shop","type":"made","subject":"café","partitionkey":"k","data":{"total":3}}`
	into[api.Published](t, r.do("POST", "/topics/one", structured, "Content-Type: application/cloudevents+json", "traceparent: "+trace), 200)
	into[api.Published](t, r.do("POST", "/topics/one", "hi", "Content-Type: text/plain", "ce-specversion: 1.0", "ce-id: 2", "ce-source: /shop", "ce-type: said"), 200)
	batch := into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", "["+structured+"]", "Content-Type: application/cloudevents-batch+json"), 200)
	if batch.Written != 1 {
		t.Errorf("%+v", batch)
	}
	into[api.Published](t, r.do("POST", "/topics/one", "no event"), 200)

	m := r.peek("one", 0)[0]
	var headers []string
	for _, h := range m.Headers {
		headers = append(headers, h.Name+"="+*h.Value)
	}
	if got, want := strings.Join(headers, " "), "ce_id=1 ce_partitionkey=k ce_source=/shop ce_specversion=1.0 ce_subject=café ce_type=made content-type=application/json traceparent="+trace; got != want || *m.Key != "k" || *m.Value != `{"total":3}` {
		t.Errorf("%s %q %q, want %s", got, *m.Key, *m.Value, want)
	}

	raw := r.do("POST", "/groups/raw/topics/one/pull?raw&wait=10s", "")
	if h := raw.header; raw.status != 200 || h.Get("Ce-Id") != "1" || h.Get("Ce-Subject") != "caf%C3%A9" || h.Get("Content-Type") != "application/json" || h.Get("Traceparent") != trace || string(raw.body) != `{"total":3}` {
		t.Errorf("%s %v", raw, raw.header)
	}

	var events []map[string]any
	pulled := r.do("POST", "/groups/g/topics/one/pull?wait=10s", "", "Accept: application/cloudevents-batch+json")
	if err := json.Unmarshal(pulled.body, &events); err != nil || pulled.status != 200 || pulled.header.Get("Content-Type") != "application/cloudevents-batch+json" || len(events) != 4 {
		t.Fatalf("%s %v: %v", pulled, pulled.header, err)
	}
	if e := events[0]; e["id"] != "1" || e["subject"] != "café" || e["traceparent"] != trace || fmt.Sprint(e["data"]) != "map[total:3]" || e["sidestreamid"] != "one/0/0" {
		t.Errorf("%v", e)
	}
	if e := events[1]; e["id"] != "2" || e["data"] != "hi" || e["datacontenttype"] != "text/plain" {
		t.Errorf("%v", e)
	}
	if e := events[3]; e["id"] != "one/0/3" || e["type"] != "sidestream.message" || e["source"] != "/topics/one" || e["data_base64"] != "bm8gZXZlbnQ=" {
		t.Errorf("%v", e)
	}
	var receipts []string
	for _, e := range events {
		receipts = append(receipts, fmt.Sprintf("%q", e["sidestreamreceipt"]))
	}
	acked := into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/one/ack", `{"receipts":[`+strings.Join(receipts, ",")+`]}`), 200)
	if acked.OK != 4 {
		t.Errorf("%+v", acked)
	}
	if a := r.do("POST", "/groups/g/topics/one/pull", "", "Accept: application/cloudevents-batch+json"); strings.TrimSpace(string(a.body)) != "[]" || a.header.Get("Sidestream-Reason") != "at_end" {
		t.Errorf("%s %v", a, a.header)
	}
}
