package compat

import (
	"context"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// schemathesis makes requests of an OpenAPI document, good and bad ones, and
// compares the answers with it. The other packages are what it makes data with.
var schemathesis = []string{"schemathesis==4.32.5", "hypothesis==6.170.17", "jsonschema-rs==0.60.3"}

// What it checks: no fault, no status, media type, header or JSON that is not
// documented, nothing taken that the document forbids, 405 with Allow.
const schemathesisChecks = "status_code_conformance,content_type_conformance,response_headers_conformance," +
	"response_schema_conformance,unsupported_method,allow_header_conformance,negative_data_rejection"

// limitFuzz is for one run, on a busy machine.
const limitFuzz = 10 * time.Minute

// A development server answers whatever it is asked as its /openapi.json says.
// With brokers and store there is nothing of which 503 or 504 would be true, so
// all of 5xx is a fault; in the drain, 503 is what new work must be answered.
func TestOpenAPI(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), limitDownload)
	defer cancel()
	python, packages, err := pythonPackages(ctx, schemathesis...)
	if errors.Is(err, errMissing) {
		leaveOut(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
	s := startServer(t)
	base := sidecarOf(t, s)
	// The document's examples name these.
	for path, body := range map[string]string{
		"PUT /topics/orders": "", "POST /topics/orders": "hi", "PUT /groups/billing": "", "POST /groups/billing/topics/orders/pull?ack=auto&wait=5s": "",
	} {
		method, path, _ := strings.Cut(path, " ")
		if err := call(t.Context(), method, base+path, []byte(body), nil); err != nil {
			t.Fatalf("%s %s: %v", method, path, err)
		}
	}
	run := func(t *testing.T, args ...string) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limitFuzz)
		defer cancel()
		cmd := exec.CommandContext(ctx, python, append([]string{"-m", "schemathesis.cli", "run", base + "/openapi.json", "--no-color",
			"--continue-on-failure", "--request-timeout=60", "--seed=1", "--warnings=off"}, args...)...)
		cmd.Dir = t.TempDir() // it keeps what it found in its folder
		cmd.Env = append(os.Environ(), "PYTHONPATH="+packages, "PYTHONDONTWRITEBYTECODE=1")
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Errorf("%v: %v\n%s", cmd.Args[3:], err, out)
		}
		if !strings.Contains(string(out), "Test cases:") {
			t.Errorf("it tested nothing:\n%s", out)
		}
	}
	t.Run("serving", func(t *testing.T) { // a stream has no end, and the drain is for later
		run(t, "--exclude-path-regex=/(stream|drain)$", "--phases=examples,coverage,fuzzing", "--max-examples=20",
			"--checks=not_a_server_error,"+schemathesisChecks)
		noFaults(t, base, "")
	})
	t.Run("draining", func(t *testing.T) {
		if err := call(t.Context(), http.MethodPost, base+"/drain", nil, nil); err != nil {
			t.Fatal(err)
		}
		run(t, "--include-path-regex=/(topics/{topic}|batch|pull|stream|redrive|readyz|drain)$", "--phases=examples,coverage", "--checks="+schemathesisChecks)
		noFaults(t, base, "503")
	})
}

// noFaults reads from the sidecar's metrics whether it ever answered 5xx, but for
// the one that is right.
func noFaults(t *testing.T, base, right string) {
	t.Helper()
	resp, err := http.Get(base + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	requests := 0
	for line := range strings.Lines(string(text)) {
		if !strings.HasPrefix(line, "sidestream_http_requests_total{") {
			continue
		}
		requests++
		_, status, _ := strings.Cut(line, `status="`)
		if status, _, _ = strings.Cut(status, `"`); strings.HasPrefix(status, "5") && status != right {
			t.Errorf("it answered a request by a fault: %s", line)
		}
	}
	if requests == 0 {
		t.Error("the metrics count no requests")
	}
}

// sidecarOf is the address of a development server's sidecar.
func sidecarOf(t *testing.T, s server) string {
	t.Helper()
	var info struct{ Sidecars []string }
	text, err := os.ReadFile(filepath.Join(s.dir, "dev.json"))
	if err == nil {
		err = json.Unmarshal(text, &info)
	}
	if err != nil || len(info.Sidecars) == 0 {
		t.Fatalf("dev.json: %v: %s", err, text)
	}
	return info.Sidecars[0]
}
