package sidecar

import (
	"fmt"
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// From a message that fails to its letter, and back.
func TestDeadLettersOverHTTP(t *testing.T) {
	r := newRig(t, nil)
	g := into[api.Group](t, r.do("PUT", "/groups/g", `{"max_attempts":1}`), 200)
	if *g.Config.MaxAttempts != 1 || g.Config.Dead != "dead.g" || g.Config.Unreadable != "dead" {
		t.Fatalf("%+v", g.Config)
	}
	const base = "/groups/g/topics/one/"
	if d := into[api.DeadLetters](t, r.do("GET", base+"dead", ""), 200); d.Topic != "dead.g" || len(d.Letters) != 0 || d.Next != "" {
		t.Errorf("before anything: %+v", d)
	}
	into[api.Published](t, r.do("POST", "/topics/one?key=k", "poison", "Record-Header: trace=abc"), 200)
	into[api.Published](t, r.do("POST", "/topics/one", "good"), 200)
	d := into[api.Pulled](t, r.do("POST", base+"pull?max=1&wait=10s", ""), 200)
	if len(d.Messages) != 1 {
		t.Fatalf("%+v", d)
	}
	into[api.ReceiptResponse](t, r.do("POST", base+"nack", fmt.Sprintf(`{"receipts":[%q],"error":"no stock"}`, d.Messages[0].Receipt)), 200)
	d = into[api.Pulled](t, r.do("POST", base+"pull?wait=10s&ack=auto", ""), 200)
	if len(d.Messages) != 1 || *d.Messages[0].Value != "good" {
		t.Fatalf("%+v", d)
	}
	dead := into[api.DeadLetters](t, r.do("GET", base+"dead?max=5&reason=max_attempts", ""), 200)
	if len(dead.Letters) != 1 {
		t.Fatalf("%+v", dead)
	}
	l := dead.Letters[0]
	if l.Error != "no stock" || l.Attempts != 1 || l.Offset != 0 || *l.Message.Value != "poison" || len(l.Message.Headers) != 1 {
		t.Errorf("%+v", l)
	}
	for name, a := range map[string]answer{
		"max":         r.do("GET", base+"dead?max=0", ""),
		"cursor":      r.do("GET", base+"dead?after=x", ""),
		"option":      r.do("GET", base+"dead?kee=1", ""),
		"body":        r.do("POST", base+"dead/redrive", `{"id":"x"}`),
		"redrive max": r.do("POST", base+"dead/redrive", `{"max":-1}`),
		"reason":      r.do("GET", base+"dead?reason=tired", ""),
		"its reason":  r.do("POST", base+"dead/redrive", `{"reason":"tired"}`),
	} {
		if a.status != 400 || a.code() != api.CodeBadRequest {
			t.Errorf("%s: %s", name, a)
		}
	}
	if a := r.do("GET", "/groups/nobody/topics/one/dead", ""); a.status != 404 || a.code() != api.CodeGroupNotFound {
		t.Errorf("%s", a)
	}
	if a := r.do("GET", base+"dead?reason=tired", ""); !strings.Contains(string(a.body), "max_attempts, window_full, undecodable or oversized") {
		t.Errorf("does not name the reasons: %s", a)
	}
	if a := r.do("POST", "/groups/nobody/topics/one/dead/redrive", `{"ids":["x"]}`); a.status != 404 || a.code() != api.CodeGroupNotFound {
		t.Errorf("%s", a)
	}
	if none := into[api.Redriven](t, r.do("POST", base+"dead/redrive", `{"ids":["made up"]}`), 200); none.Redriven != 0 || len(none.NotFound) != 1 || none.NotFound[0] != "made up" {
		t.Errorf("an id of no letter: %+v", none)
	}
	back := into[api.Redriven](t, r.do("POST", base+"dead/redrive", ""), 200)
	if back.Redriven != 1 || back.Next != "" || back.Error != nil {
		t.Fatalf("%+v", back)
	}
	if again := into[api.Redriven](t, r.do("POST", base+"dead/redrive", fmt.Sprintf(`{"ids":[%q]}`, l.ID)), 200); again.Redriven != 0 || len(again.NotFound) != 0 {
		t.Errorf("again: %+v", again)
	}
	d = into[api.Pulled](t, r.do("POST", base+"pull?wait=10s&ack=auto", ""), 200)
	if len(d.Messages) != 1 || *d.Messages[0].Value != "poison" || *d.Messages[0].Key != "k" || d.Messages[0].Offset != 2 {
		t.Fatalf("%+v", d)
	}
	var names []string
	for _, h := range d.Messages[0].Headers {
		names = append(names, h.Name)
	}
	if strings.Join(names, " ") != "trace sidestream-redriven" {
		t.Errorf("headers %v", names)
	}
	if d := into[api.DeadLetters](t, r.do("GET", base+"dead?all=1", ""), 200); len(d.Letters) != 1 || !d.Letters[0].Redriven {
		t.Errorf("%+v", d)
	}
}
