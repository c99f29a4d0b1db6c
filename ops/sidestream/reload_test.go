package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"sidestream/ops/sidestream/settings"
	"sidestream/sidecar"
)

// A server is reloaded by SIGHUP: from the file, through to what is answered.
func TestHangupReloadsTheSidecar(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "orders"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	dir := t.TempDir()
	file, sock := filepath.Join(dir, "c.yaml"), filepath.Join(dir, "s")
	configure := func(more string) {
		t.Helper()
		text := fmt.Sprintf("data_dir: %s/data\nlisten: 127.0.0.1:0\nlisten_unix: %s\ndrain_timeout: 1s\nkafka: {bootstrap: [%q]}\nconsul: {address: 127.0.0.1:1}\n%s\n",
			dir, sock, cluster.ListenAddrs()[0], more)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	configure("limits: {max_wait: 0s}\nlog: {level: error}")
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan result, 1)
	go func() { ended <- command(ctx, "", "sidecar", "--config", file) }()
	defer func() {
		cancel()
		if r := <-ended; r.code != exitOK {
			t.Errorf("exit code %d: %s", r.code, r.err)
		}
	}()
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", sock)
	}}}
	defer client.CloseIdleConnections()
	do := func(method, path string) (int, string) {
		req, err := http.NewRequestWithContext(ctx, method, "http://sidecar"+path, strings.NewReader("x"))
		if err != nil {
			t.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			return 0, err.Error()
		}
		defer func() { _ = resp.Body.Close() }()
		body, _ := io.ReadAll(resp.Body)
		return resp.StatusCode, string(body)
	}
	status := func() (st struct{ Config sidecar.ReloadStatus }) {
		t.Helper()
		code, body := do("GET", "/status")
		if err := json.Unmarshal([]byte(body), &st); err != nil {
			t.Fatalf("%d %s", code, body)
		}
		return st
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(30 * time.Second); !done(); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatal(what)
			}
		}
	}
	hangup := func() {
		t.Helper()
		if err := unix.Kill(os.Getpid(), unix.SIGHUP); err != nil {
			t.Fatal(err)
		}
	}
	until("the sidecar does not serve", func() bool { code, _ := do("POST", "/topics/orders"); return code == 200 })
	before := status().Config
	if before.LoadedAt.IsZero() || before.FailedAt != nil || len(before.NeedsRestart) > 0 {
		t.Errorf("at the start: %+v", before)
	}

	configure("limits: {max_wait: 0s, topics: {orders: \"1\"}}\nlog: {level: error}")
	hangup()
	until("the limit is not in force", func() bool { code, _ := do("POST", "/topics/orders"); return code == 429 })

	configure("limits: {max_wait: -1s, topics: {orders: \"many\"}}\nlog: {level: error}")
	hangup()
	until("the errors are not in the status", func() bool {
		text := status().Config.Error
		return strings.Contains(text, `limits.topics.orders: got "many"`) && strings.Contains(text, "limits.max_wait: got")
	})
	until("the limit is gone", func() bool { code, _ := do("POST", "/topics/orders"); return code == 429 })

	// A writer that empties the file first does not take the limits away.
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	hangup()
	until("the empty file is not refused", func() bool { return strings.Contains(status().Config.Error, "has no keys any more") })
	if code, _ := do("POST", "/topics/orders"); code != 429 {
		t.Errorf("the limit is gone with an empty file: %d", code)
	}

	configure("limits: {max_wait: 0s}\nmax_request_bytes: 2048\nlog: {level: error}")
	hangup()
	until("the error stays in the status", func() bool { return status().Config.FailedAt == nil })
	if st := status().Config; !slices.Equal(st.NeedsRestart, []string{"max_request_bytes"}) {
		t.Errorf("what waits for a restart: %+v", st)
	}
	for range 3 {
		if code, body := do("POST", "/topics/orders"); code != 200 {
			t.Errorf("without the limit: %d %s", code, body)
		}
	}
	if _, page := do("GET", "/metrics"); !strings.Contains(page, `sidestream_config_reloads_total{result="ok"} 2`) || !strings.Contains(page, `sidestream_config_reloads_total{result="error"} 2`) {
		t.Error("the metrics do not count the reloads")
	}
}

// What waits for a restart is compared with what the server was started with,
// again at each reload, and is never passed on.
func TestReloadKeepsWhatCannotChange(t *testing.T) {
	running, next := defaultSidecar(), defaultSidecar()
	var applied *sidecarSettings
	var waiting []string
	var failure error
	r := &reloader[*sidecarSettings]{
		running: running, log: zap.NewNop(),
		read: func() (*sidecarSettings, error) { c := *next; return &c, next.Validate() },
		apply: func(c *sidecarSettings) error {
			applied = c
			return failure
		},
		note: func(keys []string, err error) { waiting = append(keys, fmt.Sprint(err)) },
	}
	next.Listen, next.Limits.MessagesPerSecond = "127.0.0.1:1", 5
	r.reload()
	if applied.Listen != running.Listen || applied.Limits.MessagesPerSecond != 5 || !slices.Equal(waiting, []string{"listen", "<nil>"}) {
		t.Errorf("applied %s, %d; waiting %q", applied.Listen, applied.Limits.MessagesPerSecond, waiting)
	}
	next.Limits.MessagesPerSecond, failure = 6, errors.New("no")
	r.reload()
	if r.running.Limits.MessagesPerSecond != 5 || !slices.Equal(waiting, []string{"no"}) {
		t.Errorf("after a failure %d is said to be in force; noted %q", r.running.Limits.MessagesPerSecond, waiting)
	}
	next.Listen, failure = running.Listen, nil
	r.reload()
	if r.running.Limits.MessagesPerSecond != 6 || !slices.Equal(waiting, []string{"<nil>"}) {
		t.Errorf("%d is in force; noted %q", r.running.Limits.MessagesPerSecond, waiting)
	}
}

// A key that says that SIGHUP changes it must be one that something reads anew:
// who adds one adds it here, and to the test of Sidecar.Reload.
func TestLiveKeys(t *testing.T) {
	for _, c := range []struct {
		cfg  any
		want []string
	}{
		{defaultAgent(), []string{
			"broker.quota.produce_bytes_per_second", "broker.quota.fetch_bytes_per_second", "broker.quota.produce_clients", "broker.quota.fetch_clients", "log.level",
		}},
		{defaultSidecar(), []string{
			"allowed_hosts", "callers", "drain_timeout", "checkpoint_interval", "publish.topics",
			"limits.messages_per_second", "limits.bytes_per_second", "limits.max_wait", "limits.topics", "limits.callers", "log.level",
		}},
	} {
		var live []string
		for _, f := range settings.Fields(c.cfg) {
			if f.Live {
				live = append(live, f.Path)
			}
		}
		if !slices.Equal(live, c.want) {
			t.Errorf("live keys of %T:\n got %q\nwant %q", c.cfg, live, c.want)
		}
	}
}

func TestReloadChangesTheLogLevel(t *testing.T) {
	log, level, err := newLogger(logSettings{Level: "error", Format: "json"})
	if err != nil {
		t.Fatal(err)
	}
	if log.Core().Enabled(zap.InfoLevel) {
		t.Fatal("info is logged")
	}
	if err := level.UnmarshalText([]byte("info")); err != nil || !log.Core().Enabled(zap.InfoLevel) || log.Core().Enabled(zap.DebugLevel) {
		t.Errorf("the level did not change to info (%v)", err)
	}
}
