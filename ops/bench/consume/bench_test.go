package main

import (
	"os"
	"regexp"
	"strings"
	"testing"
	"time"

	"sidestream/ops/bench/measure"
)

func TestReport(t *testing.T) {
	b := newBench(options{rounds: 3, waiters: 1000, rate: 1000})
	if got := b.figures(); len(got) != 0 {
		t.Fatalf("figures of nothing: %v", got)
	}
	second := func(records int64, cpu time.Duration) outcome {
		return outcome{Result: measure.Result{Records: records, Bytes: 100 * records, Took: time.Second, CPU: cpu, RSS: 10e6}}
	}
	b.results[contender{sidestream, load{100, 8, batch}}] = []outcome{second(900, time.Second), second(2000, time.Second), second(3100, time.Second)}
	b.results[contender{jetStream, load{100, 8, batch}}] = []outcome{second(1000, time.Second), second(800, time.Second), second(1000, time.Second)}
	b.results[contender{jetStream, load{100, 1, batch}}] = []outcome{second(1000, time.Second), second(1000, 3*time.Second), second(1000, time.Second)}
	b.quiet = []measure.Result{second(0, 30*time.Millisecond).Result}
	ms := func(n ...time.Duration) (out []time.Duration) {
		for _, d := range n {
			out = append(out, d*time.Millisecond)
		}
		return out
	}
	b.soon = []arrival{{answered: ms(0, 1, 4), published: ms(2, 3, 6)}}
	text := b.report(time.Now(), "0 0 0")
	for _, want := range []string{
		"| pull 100B 8p | NATS JetStream | 1000 [800–1000] |",
		"| the publisher's answer | 1.00 | 4.00 | 4.00 |",
		"figure=pull-100B-rate/jetstream value=2 target=>=2 ok",
		"figure=pull-100B-cpu/jetstream value=0.4 target=<=0.5 ok",
		"figure=1000-waiting-pulls-cpu-% value=3 target=<=2 short",
		"figure=publish-answer-to-waiting-pull-p99-ms value=4 target=<=10 ok",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if !strings.HasSuffix(text, "```\n") {
		t.Errorf("figures are not the end of\n%s", text)
	}
}

// The whole runs: every server starts, is filled, read and stopped.
func TestBench(t *testing.T) {
	if testing.Short() {
		t.Skip("starts three servers")
	}
	err := run(t.Context(), options{
		dir: t.TempDir(), out: t.TempDir() + "/table", only: regexp.MustCompile("100B 8p|waiting"), theirs: true, rounds: 1,
		bytes: 1 << 20, most: 5000, touch: 1 << 20, waiters: 50, rate: 100, quiet: 200 * time.Millisecond, window: 500 * time.Millisecond,
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
