package main

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"

	"sidestream/ops/devserver"
	"sidestream/ops/sidestream/settings"
)

func fieldsOf(cfg any) []settings.Field { return settings.Fields(cfg) }

// dev runs a development server in this process until stop is called.
type dev struct {
	devserver.Info
	dir  string
	stop func()
}

func startDev(t *testing.T, dir string, sidecars int) dev {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	var banner bytes.Buffer // read after done
	go func() {
		done <- runDev(ctx, devOptions{dataDir: dir, sidecars: sidecars, freePorts: true}, zap.NewNop(), &banner)
	}()
	stopped := false
	d := dev{dir: dir, stop: func() {
		if stopped {
			return
		}
		stopped = true
		cancel()
		if err := <-done; err != nil {
			t.Errorf("dev stopped with %v", err)
		}
		if !strings.Contains(banner.String(), "is ready") {
			t.Errorf("banner %q", banner.String())
		}
		if _, err := devserver.Read(dir); !os.IsNotExist(err) {
			t.Errorf("the address file is still there: %v", err)
		}
		http.DefaultTransport.(*http.Transport).CloseIdleConnections()
	}}
	t.Cleanup(d.stop)
	deadline := time.Now().Add(60 * time.Second)
	for {
		info, err := devserver.Read(dir)
		if err == nil {
			d.Info = info
			return d
		}
		select {
		case err := <-done:
			done <- err
			t.Fatalf("dev ended: %v", err)
		case <-time.After(20 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			t.Fatal("dev does not serve")
		}
	}
}

// sh runs a command that must succeed, against the server.
func (d dev) sh(t *testing.T, stdin string, args ...string) string {
	t.Helper()
	r := command(t.Context(), stdin, args...)
	if r.failure != nil {
		t.Fatalf("%v: %v", args, r.failure)
	}
	return r.out
}

// The README's quick start, letter by letter, with HTTP and with the commands.
func TestQuickStart(t *testing.T) {
	d := startDev(t, t.TempDir(), 1)
	sidecar := d.Sidecars[0]

	status, body := request(t, "POST", sidecar+"/topics/hello", "hi")
	var published struct {
		Partition *int32
		Offset    *int64
	}
	if err := json.Unmarshal([]byte(body), &published); err != nil || status != 200 || published.Partition == nil || published.Offset == nil || *published.Offset != 0 {
		t.Fatalf("publish: %d %s", status, body)
	}
	status, body = request(t, "POST", sidecar+"/groups/g/topics/hello/pull?wait=5s", "")
	var pulled struct {
		Messages []struct{ Receipt, Value string }
		Reason   *string
	}
	if err := json.Unmarshal([]byte(body), &pulled); err != nil || status != 200 || len(pulled.Messages) != 1 || !strings.Contains(body, `"value":"hi"`) {
		t.Fatalf("pull: %d %s", status, body)
	}
	status, body = request(t, "POST", sidecar+"/groups/g/topics/hello/ack", `{"receipts":["`+pulled.Messages[0].Receipt+`"]}`)
	if status != 200 {
		t.Fatalf("ack: %d %s", status, body)
	}
	status, body = request(t, "POST", sidecar+"/groups/g/topics/hello/pull", "")
	if status != 200 || !strings.Contains(body, `"messages":[]`) || !strings.Contains(body, `"reason":"`) {
		t.Fatalf("second pull: %d %s", status, body)
	}
	if _, body = request(t, "GET", sidecar+"/groups/g/topics/hello/offsets", ""); !strings.Contains(body, `"lag":0`) {
		t.Errorf("offsets: %s", body)
	}
}

func request(t *testing.T, method, url, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, url, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded") // as curl -d does
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(text)
}

// The commands against a server, and that a restart finds everything again.
func TestCommandsAndRestart(t *testing.T) {
	dir := t.TempDir()
	d := startDev(t, dir, 2)
	t.Setenv(envSidecar, d.Sidecars[0])
	t.Setenv(envBootstrap, d.Broker)

	d.sh(t, "", "topic", "create", "orders", "--partitions", "2", "--config", "retention.ms=86400000")
	if out := d.sh(t, "", "topic", "list"); !strings.Contains(out, "orders") {
		t.Errorf("topic list:\n%s", out)
	}
	d.sh(t, "", "topic", "create", "wider", "--partitions", "2")
	d.sh(t, "", "topic", "alter", "wider", "--partitions", "3")
	if r := command(t.Context(), "", "topic", "alter", "wider", "--partitions", "1"); r.code != exitFailed || !strings.Contains(r.err, "a new count must be higher") {
		t.Errorf("taking partitions away: %d %s", r.code, r.err)
	}
	if r := command(t.Context(), "", "topic", "alter", "wider", "--partitions", "0"); r.code != exitUsage {
		t.Errorf("no partitions: %d %s", r.code, r.err)
	}
	if out := d.sh(t, "", "topic", "list", "--json"); !strings.Contains(out, `"partitions": 3`) || !strings.Contains(out, `"messages": 0`) || !strings.Contains(out, `"bytes": 0`) || !strings.Contains(out, `"source": "brokers `) {
		t.Errorf("topic list --json:\n%s", out)
	}
	if r := command(t.Context(), "", "status", "--agent", d.Agent); r.code != exitOK || !strings.HasPrefix(r.out, "well (") {
		t.Errorf("status: %d\n%s", r.code, r.out)
	}
	if out := d.sh(t, "", "topic", "create", "defaults"); out != "created topic defaults with 4 partitions\n" {
		t.Errorf("topic create: %q", out)
	}
	if r := command(t.Context(), "", "topic", "describe", "nowhere"); r.code != exitFailed || r.err != "topic nowhere does not exist" {
		t.Errorf("describing what is not there: %d %s", r.code, r.err)
	}
	if out := d.sh(t, "", "topic", "describe", "orders"); !strings.HasPrefix(out, "retention.ms=86400000\n\nPARTITION") {
		t.Errorf("topic describe:\n%s", out)
	}
	d.sh(t, "", "topic", "alter", "orders", "--config", "segment.bytes=1048576", "--delete-config", "retention.ms")
	if out := d.sh(t, "", "topic", "describe", "orders", "--json"); !strings.Contains(out, `"configs": {
    "segment.bytes": "1048576"
  }`) {
		t.Errorf("altered:\n%s", out)
	}
	if out := d.sh(t, "", "topic", "describe", "orders", "--all-configs"); !strings.Contains(out, "retention.ms=604800000\n") {
		t.Errorf("all configs:\n%s", out)
	}
	for _, bad := range [][2]string{{"orders", "segment.bytes=x"}, {"nowhere", "segment.bytes=1048576"}} {
		if r := command(t.Context(), "", "topic", "alter", bad[0], "--config", bad[1]); r.code != exitFailed || !strings.Contains(r.err, "topic "+bad[0]) {
			t.Errorf("alter %v: %d %s", bad, r.code, r.err)
		}
	}
	if r := command(t.Context(), "", "topic", "create", "orders"); r.code != exitFailed || !strings.Contains(r.err, "exists") {
		t.Errorf("creating twice: %d %s", r.code, r.err)
	}

	out := d.sh(t, "one\n\ntwo\r\nthree\n", "produce", "orders", "--key", "k", "--print")
	if lines := strings.Fields(out); len(lines) != 3 || !strings.HasPrefix(lines[0], "orders/") {
		t.Errorf("produce printed %q", out)
	}
	d.sh(t, `{"key":"k","value":{"total":3},"headers":{"h":"v"}}`+"\n", "produce", "orders", "--json")
	r := command(t.Context(), "\nnonsense\n", "produce", "orders", "--json")
	if r.code != exitFailed || !strings.Contains(r.err, "line 2: not written: bad_record: it is not a JSON object") || !strings.Contains(r.err, "0 messages written") {
		t.Errorf("a bad line: %d %s", r.code, r.err)
	}

	if out := d.sh(t, "", "consume", "orders", "-g", "a", "--max", "2"); out != "one\ntwo\r\n" {
		t.Errorf("consumed %q", out)
	}
	if out := d.sh(t, "", "consume", "orders", "-g", "a", "--until-end", "--json"); strings.Count(out, "\n") != 2 || !strings.Contains(out, `"value":"three"`) || !strings.Contains(out, `"h"`) {
		t.Errorf("consumed %q", out)
	}
	if out := d.sh(t, "", "group", "list"); out != "a\n" {
		t.Errorf("groups %q", out)
	}
	if out := d.sh(t, "", "group", "describe", "a"); !strings.Contains(out, "topic orders: lag 0") || !strings.Contains(out, "(planner)") {
		t.Errorf("group describe:\n%s", out)
	}
	if out := d.sh(t, "", "topic", "describe", "orders"); !strings.Contains(out, "PARTITION") || !strings.Contains(out, "4") {
		t.Errorf("topic describe:\n%s", out)
	}

	d.stop()
	dumpOfRestart(t, dir)

	d = startDev(t, dir, 2)
	t.Setenv(envSidecar, d.Sidecars[1])
	t.Setenv(envBootstrap, d.Broker)
	if out := d.sh(t, "", "topic", "list"); !strings.Contains(out, "orders") {
		t.Errorf("after the restart, topic list:\n%s", out)
	}
	if out := d.sh(t, "", "consume", "orders", "-g", "a", "--until-end"); out != "" {
		t.Errorf("after the restart the group consumed %q again", out)
	}
	d.sh(t, "", "group", "seek", "a", "orders", "--to", "earliest")
	if out := d.sh(t, "", "consume", "orders", "-g", "a", "--until-end"); strings.Count(out, "\n") != 4 || !strings.HasPrefix(out, "one\ntwo\r\nthree\n") {
		t.Errorf("after the seek the group consumed %q", out)
	}
	d.sh(t, "", "topic", "delete", "orders")
	if r := command(t.Context(), "", "topic", "delete", "orders"); r.code != exitFailed || !strings.Contains(r.err, "topic orders does not exist") {
		t.Errorf("deleting twice: %d %s", r.code, r.err)
	}
}

// dumpOfRestart dumps the segments that a stopped server left, whole and
// damaged.
func dumpOfRestart(t *testing.T, dir string) {
	t.Helper()
	segments, err := filepath.Glob(filepath.Join(dir, "agent", "orders-*", "*.log"))
	if err != nil || len(segments) != 2 {
		t.Fatalf("segments %v, %v", segments, err)
	}
	r := command(t.Context(), "", append([]string{"log", "dump", "--records"}, segments...)...)
	if r.failure != nil {
		t.Fatal(r.failure)
	}
	for _, want := range []string{`key "k"  value "one"`, `value "{\"total\":3}"  h="v"`, "crc", " ok, producer "} {
		if !strings.Contains(r.out, want) {
			t.Errorf("no %q in\n%s", want, r.out)
		}
	}
	full := segments[0]
	if info, err := os.Stat(full); err != nil || info.Size() == 0 {
		full = segments[1]
	}
	text, err := os.ReadFile(full)
	if err != nil {
		t.Fatal(err)
	}
	for name, damaged := range map[string][]byte{
		"torn tail": text[:len(text)-3],
		"bit flip":  append(bytes.Clone(text[:len(text)-1]), text[len(text)-1]^1),
	} {
		file := filepath.Join(t.TempDir(), "00000000000000000000.log")
		if err := os.WriteFile(file, damaged, 0o600); err != nil {
			t.Fatal(err)
		}
		r := command(t.Context(), "", "log", "dump", file)
		if r.code != exitFailed || !strings.Contains(r.err, "damaged") {
			t.Errorf("%s: exit code %d, %q\n%s", name, r.code, r.err, r.out)
		}
	}
	var batch batchView
	r = command(t.Context(), "", "log", "dump", "--json", filepath.Dir(full))
	line, _, _ := strings.Cut(r.out, "\n")
	if err := json.Unmarshal([]byte(line), &batch); err != nil || !batch.CRCValid || batch.BaseOffset != 0 || batch.File != full {
		t.Errorf("--json: %v, %+v", err, batch)
	}
}

func TestTwoDevsCannotShareAFolder(t *testing.T) {
	d := startDev(t, t.TempDir(), 1)
	err := runDev(t.Context(), devOptions{dataDir: d.dir, sidecars: 1, freePorts: true}, zap.NewNop(), io.Discard)
	if err == nil || !strings.Contains(err.Error(), "in use by another sidestream dev") {
		t.Errorf("got %v", err)
	}
	if _, err := devserver.Read(d.dir); err != nil {
		t.Errorf("the first one's address file: %v", err)
	}
}

// Settings that have no effect are said to have none.
func TestDevNamesVariablesThatItDoesNotRead(t *testing.T) {
	t.Setenv("SIDESTREAM_SPOOL_FALLBACK", "true")
	t.Setenv("SIDESTREAM_SIDECAR", "127.0.0.1:1") // for other commands
	file := filepath.Join(t.TempDir(), "file")
	if err := os.WriteFile(file, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	r := command(t.Context(), "", "dev", "--free-ports", "--data-dir", file)
	if r.code == exitOK || !strings.Contains(r.err, "dev does not read SIDESTREAM_SPOOL_FALLBACK:") {
		t.Errorf("%+v", r)
	}
}

func TestTakenPortIsAClearError(t *testing.T) {
	d := startDev(t, t.TempDir(), 1)
	port := d.Sidecars[0][strings.LastIndexByte(d.Sidecars[0], ':')+1:]
	r := command(t.Context(), "", "dev", "--data-dir", t.TempDir(), "--agent-port", "0", "--broker-port", "0", "--sidecar-port", port)
	if r.code != exitFailed || !strings.Contains(r.err, port) || !strings.Contains(r.err, "in use") || !strings.Contains(r.err, "--free-ports") {
		t.Errorf("exit code %d, %q", r.code, r.err)
	}
}

// Every metric that a server exposes is in the documentation.
func TestMetricsAreDocumented(t *testing.T) {
	d := startDev(t, t.TempDir(), 1)
	text, err := os.ReadFile("../docs/metrics.md")
	if err != nil {
		t.Fatal(err)
	}
	request(t, "POST", d.Sidecars[0]+"/topics/hello", "hi") // so that labelled metrics are there
	request(t, "POST", d.Sidecars[0]+"/groups/g/topics/hello/pull?wait=5s", "")
	for _, url := range []string{d.Agent, d.Sidecars[0]} {
		_, page := request(t, "GET", url+"/metrics", "")
		for line := range strings.Lines(page) {
			name, found := strings.CutPrefix(line, "# TYPE ")
			if name, _, _ = strings.Cut(name, " "); !found || !strings.HasPrefix(name, "sidestream_") {
				continue
			}
			if !bytes.Contains(text, []byte("`"+name+"`")) {
				t.Errorf("%s is not in ops/docs/metrics.md", name)
			}
		}
	}
}
