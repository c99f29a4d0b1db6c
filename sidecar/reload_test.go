package sidecar

import (
	"errors"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

func TestReloadPutsTheLiveKeysInForce(t *testing.T) {
	r := newRig(t, nil)
	value := `{"user":"a"}`
	post := func(headers ...string) answer { t.Helper(); return r.do("POST", "/topics/one", value, headers...) }
	into[api.Published](t, post(api.HeaderCaller+": billing"), 200)
	if a := post("Host: sidecar.example"); a.status != 403 {
		t.Errorf("another host: %s", a)
	}
	if a := r.do("GET", "/status", ""); strings.Contains(a.compact(), `"limits"`) {
		t.Errorf("limits in the status, and there are none: %s", a)
	}

	cfg := r.cfg
	cfg.AllowedHosts = []string{"sidecar.example"}
	cfg.Limits.MaxWait, cfg.Limits.Callers = 0, map[string]string{"billing": "1"}
	cfg.Publish.Topics = map[string]string{"t": "key_field=user"}
	cfg.CheckpointInterval, cfg.DrainTimeout = time.Hour, 3*time.Second
	if err := r.sidecar.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	into[api.Published](t, post("Host: sidecar.example"), 200)
	into[api.Published](t, post(api.HeaderCaller+": billing"), 200)
	if a := post(api.HeaderCaller + ": billing"); a.status != 429 {
		t.Errorf("a caller over its limit: %s", a)
	}
	if got := r.sidecar.publisher.KeyField("t"); got != "user" {
		t.Errorf("the key field of the topic is %q", got)
	}
	if live := r.sidecar.live.Load(); live.CheckpointInterval != time.Hour || live.DrainTimeout != 3*time.Second {
		t.Errorf("in force: %+v", live)
	}

	bad := cfg
	bad.AllowedHosts, bad.Limits.MaxWait = nil, -1
	if err := r.sidecar.Reload(bad); err == nil || !strings.HasPrefix(err.Error(), "limits.max_wait: ") {
		t.Errorf("a bad configuration: %v", err)
	}
	if a := post("Host: sidecar.example", api.HeaderCaller+": other"); a.status != 200 {
		t.Errorf("after a bad configuration: %s", a)
	}
	r.sidecar.NoteReload(nil, errors.New("limits.max_wait: wrong"))
	for _, want := range []string{`"error":"limits.max_wait: wrong"`, `"failed_at":"`, `"callers":{"billing":"1"}`} {
		if a := r.do("GET", "/status", ""); !strings.Contains(a.compact(), want) {
			t.Errorf("%s lacks %s", a, want)
		}
	}
	if a := r.do("GET", "/metrics", ""); !strings.Contains(string(a.body), "sidestream_config_reload_failing 1") {
		t.Error("the metrics do not tell that the last reload failed")
	}
	if err := r.sidecar.Reload(r.cfg); err != nil {
		t.Fatal(err)
	}
	r.sidecar.NoteReload([]string{"listen"}, nil)
	if a := r.do("GET", "/status", ""); strings.Contains(a.compact(), "failed_at") || !strings.Contains(a.compact(), `"needs_restart":["listen"]`) {
		t.Errorf("after a good one: %s", a)
	}
	if a := post("Host: sidecar.example"); a.status != 403 {
		t.Errorf("a host that is allowed no more: %s", a)
	}
}
