package sidecar

import (
	"encoding/json"
	"slices"
	"testing"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// until repeats what is asked until it is so.
func (r *rig) until(what string, ok func() bool) {
	r.t.Helper()
	for end := time.Now().Add(30 * time.Second); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			r.t.Fatalf("not in 30 s: %s", what)
		}
	}
}

func TestPauseOverHTTP(t *testing.T) {
	r := newRig(t, nil)
	const pull = "/groups/g/topics/one/pull?wait=5s"
	into[api.Published](t, r.do("POST", "/topics/one", "first"), 200)
	if d := into[api.Pulled](t, r.do("POST", pull+"&ack=auto", ""), 200); len(d.Messages) != 1 {
		t.Fatalf("%+v", d)
	}
	if a := r.do("POST", "/groups/nobody/pause", ""); a.status != 404 || a.code() != api.CodeGroupNotFound {
		t.Errorf("a group that is not there: %s", a)
	}
	if g := into[api.Group](t, r.do("POST", "/groups/g/topics/one/pause", ""), 200); g.Paused || !slices.Equal(g.PausedTopics, []string{"one"}) {
		t.Errorf("%+v", g)
	}
	into[api.Published](t, r.do("POST", "/topics/one", "second"), 200)
	d := into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?wait=300ms", ""), 200)
	if len(d.Messages) != 0 || d.Reason == nil || *d.Reason != api.ReasonPaused {
		t.Errorf("while it is paused: %+v", d)
	}
	if o := into[api.Offsets](t, r.do("GET", "/groups/g/topics/one/offsets", ""), 200); !o.Paused || o.Lag != 1 {
		t.Errorf("%+v", o)
	}
	if g := into[api.Group](t, r.do("POST", "/groups/g/pause", ""), 200); !g.Paused {
		t.Errorf("%+v", g)
	}
	if a := r.do("POST", "/groups/g/topics/one/resume", ""); a.status != 409 || a.code() != api.CodeGroupConfig {
		t.Errorf("one topic of a group that is paused as a whole: %s", a)
	}
	if g := into[api.Group](t, r.do("POST", "/groups/g/resume", ""), 200); g.Paused || len(g.PausedTopics) > 0 {
		t.Errorf("%+v", g)
	}
	if d := into[api.Pulled](t, r.do("POST", pull, ""), 200); len(d.Messages) != 1 || *d.Messages[0].Value != "second" {
		t.Errorf("after it was resumed: %+v", d)
	}
	if g := into[api.Group](t, r.do("GET", "/groups/g", ""), 200); len(g.History) != 1 || g.History[0].Cause == "" || g.History[0].To == "" {
		t.Errorf("history %+v", g.History)
	}
}

func TestCeilingOverHTTP(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Consume.MaxGroupPartitions = 4 })
	into[api.Pulled](t, r.do("POST", "/groups/g/topics/t/pull?wait=1s", ""), 200)
	r.until("the beginning", func() bool {
		a := r.do("POST", "/groups/more/topics/one/pull", "")
		return a.status == 429 && a.code() == api.CodeGroupLimit && a.header.Get("Retry-After") == "60"
	})
	if g := into[api.GroupList](t, r.do("GET", "/groups", ""), 200); !slices.Equal(g.Groups, []string{"g"}) && !slices.Equal(g.Groups, []string{"g", "more"}) {
		t.Errorf("%+v", g)
	}
	into[api.Pulled](t, r.do("POST", "/groups/g/topics/t/pull", ""), 200)
	yes := into[api.Group](t, r.do("PUT", "/groups/brief", `{"ephemeral":true,"from":"latest"}`), 200)
	if yes.Config.Ephemeral == nil || !*yes.Config.Ephemeral {
		t.Errorf("%+v", yes.Config)
	}
	if no := into[api.Group](t, r.do("PUT", "/groups/brief", `{"ephemeral":false}`), 200); no.Config.Ephemeral != nil {
		t.Errorf("%+v", no.Config)
	}
}

// An application that acknowledges with its next pull does so during the drain
// too, and then nothing of it comes again.
func TestDrainTakesAcks(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Consume.ReleaseWait = 20 * time.Second })
	for _, v := range []string{"a", "b", "c"} {
		into[api.Published](t, r.do("POST", "/topics/one", v), 200)
	}
	const pull = "/groups/g/topics/one/pull?wait=5s"
	d := into[api.Pulled](t, r.do("POST", pull, ""), 200)
	if len(d.Messages) != 3 {
		t.Fatalf("%+v", d)
	}
	into[api.Health](t, r.do("POST", "/drain", ""), 200)
	refused := r.do("POST", pull, `{"ack":["`+d.Messages[0].Receipt+`"]}`)
	var with struct {
		Acks api.ReceiptResponse `json:"acks"`
	}
	if err := json.Unmarshal(refused.body, &with); err != nil || refused.status != 503 || refused.code() != api.CodeDraining || with.Acks.OK != 1 || refused.header.Get("Retry-After") == "" {
		t.Fatalf("%s %v", refused, err)
	}
	if a := into[api.ReceiptResponse](t, r.do("POST", "/groups/g/topics/one/ack", `{"receipts":["`+d.Messages[1].Receipt+`","`+d.Messages[2].Receipt+`"]}`), 200); a.OK != 2 {
		t.Errorf("%+v", a)
	}
	// With nothing out any more it does not wait out its twenty seconds.
	r.until("left", func() bool {
		st := r.sidecar.consumer.Status().(consume.Status)
		return len(st.Groups) == 0
	})
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	r.start()
	into[api.Published](t, r.do("POST", "/topics/one", "d"), 200)
	again := into[api.Pulled](t, r.do("POST", pull, ""), 200)
	if len(again.Messages) != 1 || *again.Messages[0].Value != "d" {
		t.Errorf("after the restart: %+v", again.Messages)
	}
}

// What Consul's absence does is told by the API.
func TestStoreAwayOverHTTP(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Consume.StrictAfter = time.Second })
	for range 4 {
		into[api.Published](t, r.do("POST", "/topics/one", "x"), 200)
	}
	into[api.Group](t, r.do("PUT", "/groups/strict", `{"exclusive":"strict"}`), 200)
	into[api.Group](t, r.do("PUT", "/groups/g", `{"max_attempts":0}`), 200) // it is pulled again and again
	pull := func(group string) api.Pulled {
		return into[api.Pulled](t, r.do("POST", "/groups/"+group+"/topics/one/pull?max=1&wait=5s", ""), 200)
	}
	ack := func(group string, d api.Pulled) api.ReceiptResponse {
		return into[api.ReceiptResponse](t, r.do("POST", "/groups/"+group+"/topics/one/ack", `{"receipts":["`+d.Messages[0].Receipt+`"]}`), 200)
	}
	for _, g := range []string{"g", "strict"} {
		if a := ack(g, pull(g)); a.Results[0].Provisional {
			t.Errorf("with the store there: %+v", a)
		}
	}
	r.store.SetDown(true)
	var d api.Pulled
	r.until("unproven", func() bool {
		d = into[api.Pulled](t, r.do("POST", "/groups/g/topics/one/pull?max=1&lease=100ms", ""), 200)
		return d.Ownership == "unproven" && len(d.Messages) == 1
	})
	if a := ack("g", d); !a.Results[0].Provisional {
		t.Errorf("an ack that nobody can prove: %+v", a)
	}
	none := into[api.Pulled](t, r.do("POST", "/groups/strict/topics/one/pull?max=1", ""), 200)
	if len(none.Messages) != 0 || none.Reason == nil || *none.Reason != api.ReasonUnproven {
		t.Errorf("exclusive=strict: %+v", none)
	}
	if a := r.do("POST", "/groups/strict/pause", ""); a.status != 503 || a.code() != api.CodeStoreUnavailable {
		t.Errorf("a pause without the store: %s", a)
	}
	r.store.SetDown(false)
	r.until("proven again", func() bool {
		d := into[api.Pulled](t, r.do("POST", "/groups/strict/topics/one/pull?max=1", ""), 200)
		return len(d.Messages) == 1 && d.Ownership == ""
	})
}
