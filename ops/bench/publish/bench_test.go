package main

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sidestream/ops/bench/measure"
)

func TestReport(t *testing.T) {
	b := newBench(options{rounds: 3, window: time.Second})
	if got := b.figures(); len(got) != 0 {
		t.Fatalf("figures of nothing: %v", got)
	}
	second := func(records int64, p99 time.Duration) outcome {
		return outcome{Result: measure.Result{Records: records, Took: time.Second, CPU: time.Second, Latencies: []time.Duration{p99}}, front: 20e6}
	}
	b.results[contender{bare, single}] = []outcome{second(1000, 1), second(2000, 1), second(3000, 1)}
	b.results[contender{sidestream, single}] = []outcome{second(700, 1), second(1000, 1), second(2100, 1)}
	b.results[contender{sidestream, single.at(true)}] = []outcome{second(350, 3*time.Millisecond)}
	b.results[contender{sidestream, lines}] = []outcome{second(1_200_000, 1)}
	text := b.report(time.Now(), "0 0 0")
	for _, want := range []string{
		"| single 64c | bare HTTP | 2000 [1000–3000] |",
		"| single 64c | sidestream | 1000 [700–2100] |",
		"| 0.700 [0.500–0.700] |\n",
		"figure=single-64c-rate/bare value=0.7 target=>=0.6 ok",
		"figure=lines-events/s value=1.2e+06 target=>=1e+06 ok",
		"figure=single-half-p99-ms value=3 target=<=10 ok",
		"figure=sidecar-memory-MB value=20 target=<=150 ok",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !strings.HasSuffix(text, "```\n") {
		t.Errorf("figures are not the end of\n%s", text)
	}
}

// Every event has the size that the table claims, and is valid where JSON is asked for.
func TestEvents(t *testing.T) {
	values := measure.Payloads(eventSize, true)
	for line := range strings.Lines(string(bodyOf("ndjson", 1000, values))) {
		var r struct{ Value json.RawMessage }
		if err := json.Unmarshal([]byte(line), &r); err != nil || len(r.Value) != eventSize {
			t.Fatalf("%v: %d bytes in %s", err, len(r.Value), line)
		}
	}
	for line := range strings.Lines(string(bodyOf("lines", 1000, values))) {
		if len(line) != eventSize+1 {
			t.Fatalf("%d bytes in %s", len(line), line)
		}
	}
}

// The whole runs: every server starts, is written to and stopped.
func TestBench(t *testing.T) {
	if testing.Short() {
		t.Skip("starts five servers")
	}
	err := run(t.Context(), options{
		dir: t.TempDir(), out: t.TempDir() + "/table", only: regexp.MustCompile("64c|8c"), theirs: true, rounds: 1,
		window: 200 * time.Millisecond, touch: 1 << 20,
	})
	if err != nil {
		t.Fatal(err)
	}
}

// TestMain is also one of the servers: a role starts the program anew.
func TestMain(m *testing.M) {
	if len(os.Args) > 2 && os.Args[1] == "role" {
		main()
		return
	}
	os.Exit(m.Run())
}
