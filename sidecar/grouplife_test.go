package sidecar

import (
	"slices"
	"testing"
	"time"

	"sidestream/sdk/api"
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
