package main

import (
	"encoding/json"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

func TestSpoolCommands(t *testing.T) {
	dir := t.TempDir()
	rejects := filepath.Join(dir, "rejects.ndjson")
	st := api.SpoolStatus{MaxBytes: 100, RejectFile: rejects}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /spool", func(w http.ResponseWriter, _ *http.Request) { _ = json.NewEncoder(w).Encode(st) })
	mux.HandleFunc("GET /spool/{id}", func(w http.ResponseWriter, r *http.Request) {
		ev := api.SpoolEvent{ID: r.PathValue("id"), State: api.SpoolState(r.PathValue("id")), Topic: "t", Partition: 3, Offset: -1}
		switch ev.State {
		case api.SpoolWritten:
			ev.Offset = 12
		case api.SpoolRejected:
			ev.Error = api.NewError(api.CodeBadRecord, "no key")
		}
		_ = json.NewEncoder(w).Encode(ev)
	})
	s := httptest.NewServer(mux)
	defer func() { s.Close(); http.DefaultClient.CloseIdleConnections() }()
	run := func(args ...string) string {
		t.Helper()
		r := command(t.Context(), "", append(append([]string{"spool"}, args...), "--sidecar", s.URL)...)
		if r.code != 0 {
			t.Fatalf("%v: %+v", args, r)
		}
		return r.out + r.err
	}
	if got := run("status"); !strings.Contains(got, "nothing waits") || !strings.Contains(got, "0 of 100 bytes") {
		t.Error(got)
	}
	if got := run("rejects"); !strings.Contains(got, "no rejected messages") {
		t.Error(got)
	}
	st.Pending, st.Partitions, st.OldestSeconds, st.RejectBytes = 5, 2, 61, 9
	st.AwayPartitions, st.Away = 1, []api.SpoolAway{{Topic: "t", Partition: 3, Pending: 4, Since: time.Now(), Cause: "its broker is away"}}
	if got := run("status"); !strings.Contains(got, "5 messages wait for 2 partitions") || !strings.Contains(got, "1m1s") || !strings.Contains(got, "its broker is away") || !strings.Contains(got, rejects) {
		t.Error(got)
	}
	for id, want := range map[string]string{"pending": "pending for t/3", "written": "written at t/3/12", "rejected": "no key"} {
		if got := run("show", id); !strings.Contains(got, want) {
			t.Errorf("%s: %s", id, got)
		}
	}
	lines := `{"id":"n-1","topic":"t","partition":3,"key":"k","value":"v\"1","headers":[{"name":"h","value":"w"},{"name":"h","value64":"/w=="},{"name":"none"}],"ts":5,"rejected":"2026-01-02T03:04:05Z","error":{"code":"bad_record","message":"no"}}
{"id":"n-2","topic":"other","partition":0,"value64":"/w==","ts":6,"rejected":"2026-01-02T03:04:05Z","error":{"code":"bad_record","message":"no"}}
{"id":"n-3","top`
	if err := os.WriteFile(rejects, []byte(lines), 0o600); err != nil {
		t.Fatal(err)
	}
	if got := run("rejects"); !strings.Contains(got, "n-1") || !strings.Contains(got, "base64:/w==") {
		t.Error(got)
	}
	if got := run("rejects", rejects, "--records", "--topic", "t"); got != `{"value":"v\"1","key":"k","ts":5,"headers":[{"name":"h","value":"w"},{"name":"h","value64":"/w=="},{"name":"none"}]}`+"\n" {
		t.Error(got)
	}
}
