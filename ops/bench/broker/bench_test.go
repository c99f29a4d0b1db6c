package main

import (
	"context"
	"errors"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/broker/record"
	"sidestream/ops/bench/measure"
)

func TestParseStrace(t *testing.T) {
	got := parseStrace(`71 read(9, ""..., 4096) = 55
72 sendfile(9, 10, [0] => [100], 1048576) = 100
71 read(9,  <unfinished ...>
72 sendfile(9, 10, [0] => [200], 1048576) = -1 EAGAIN (Resource temporarily unavailable)
71 <... read resumed>""..., 4096) = 5
72 sendfile(9, 10, [0] => [100], 948576) = 20
`)
	if len(got) != 2 || got["sendfile"] != 120 || got["read"] != 60 {
		t.Errorf("%v", got)
	}
}

func TestFigures(t *testing.T) {
	b := &bench{results: map[string]map[string][]result{}, starts: map[string][]starting{}, idle: map[string]int64{}}
	if got := b.figures(); len(got) != 0 {
		t.Fatalf("figures of nothing: %v", got)
	}
	second := func(records int64, cpu time.Duration) result {
		return result{Result: measure.Result{Records: records, Bytes: 100 * records, Took: time.Second, CPU: cpu, RSS: 10e6}}
	}
	b.results["produce default 100B 1p"] = map[string][]result{
		sidestream:  {second(900, 3*time.Second), second(1000, time.Second), second(1100, time.Second)},
		kafka:       {second(1000, 4*time.Second), second(1000, 4*time.Second), second(1000, 4*time.Second)},
		bareProduce: {second(1000, time.Second), second(1000, time.Second), second(1000, time.Second)},
	}
	b.starts[sidestream] = []starting{{clean: time.Second, crash: 4 * time.Second, idle: 1e6}}
	var lines []string
	for _, f := range b.figures() {
		lines = append(lines, f.String())
	}
	text := strings.Join(lines, "\n")
	for _, want := range []string{
		"figure=produce-default-100B-1p-cpu/bare-loop value=1 target=<=1.5 ok",
		"figure=produce-default-100B-1p-rate/kafka value=1 target=>=0.95 ok",
		"figure=produce-default-100B-1p-cpu/kafka value=0.25 target=<=0.3333 ok",
		"figure=peak-memory/kafka value=1 target=<=0.1 short",
		"figure=crash-start-of-1000-partitions-s value=4 target=<=3 short",
		"figure=clean-start-of-1000-partitions-s value=1 target=<=1 ok",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("no %q in\n%s", want, text)
		}
	}
	if report := b.report(time.Now(), "0 0 0"); !strings.Contains(report, "| produce default 100B 1p | kafka |") || !strings.HasSuffix(report, "```\n") {
		t.Errorf("report:\n%s", report)
	}
}

func TestStepsAreNamedApart(t *testing.T) {
	seen := map[string]bool{}
	for _, st := range allSteps() {
		if seen[st.name] {
			t.Errorf("two steps are named %q", st.name)
		}
		seen[st.name] = true
	}
	for _, used := range []string{"fetch 8c", "produce default 100B 64p fsync", "single 1KiB 64p fsync"} {
		if !seen[used] {
			t.Errorf("a figure uses step %q, which is not there", used)
		}
	}
}

// The bare produce loop takes what kgo sends, and what it writes is a log.
func TestBareProduceLoop(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	b := &bareBroker{dir: t.TempDir(), addr: l.Addr().(*net.TCPAddr), topics: map[string]*bareTopic{}}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			go func() { _, _ = b.serve(c), c.Close() }()
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	cl, err := kgo.NewClient(kgo.SeedBrokers(l.Addr().String()), kgo.DefaultProduceTopic("t-2p"))
	if err != nil {
		t.Fatal(err)
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	for range 3 {
		if err := cl.ProduceSync(ctx, &kgo.Record{Value: []byte("a")}, &kgo.Record{Value: []byte("b")}).FirstErr(); err != nil {
			t.Fatal(err)
		}
	}
	files, err := filepath.Glob(filepath.Join(b.dir, "t-2p-*.log"))
	if err != nil || len(files) != 2 {
		t.Fatalf("files %v, %v", files, err)
	}
	records := int32(0)
	for _, f := range files {
		text, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		next := int64(0)
		for batch, err := range record.Split(text) {
			h, headErr := record.Check(batch, 1<<20)
			if err := errors.Join(err, headErr); err != nil || h.BaseOffset != next {
				t.Fatalf("%s: offset %d, want %d, %v", f, h.BaseOffset, next, err)
			}
			next = h.NextOffset()
			records += h.Count
		}
	}
	if records != 6 {
		t.Errorf("%d records, want 6", records)
	}
}

func TestBareDiskLoop(t *testing.T) {
	dir := t.TempDir()
	if err := diskRole([]string{dir, "2", "4096", "20ms"}); err != nil {
		t.Fatal(err)
	}
	if left, err := os.ReadDir(dir); err != nil || len(left) != 0 {
		t.Errorf("files left: %v, %v", left, err)
	}
	if err := diskRole([]string{dir, "2", "many", "20ms"}); err == nil {
		t.Error("no error for a bad size")
	}
}

func TestSendRequests(t *testing.T) {
	st := &stock{records: 80, size: 100}
	plan := []answers{make(answers, 4), make(answers, 2)}
	sends := planSends([]string{"a", "b"}, plan, st)
	if len(sends) != 2 || len(sends[0]) != 4 || len(sends[1]) != 2 {
		t.Fatalf("%v", sends)
	}
	if got, want := string(sends[1][1]), string(sendRequest{1, 2000, 2000}.append(nil)); got != want {
		t.Errorf("% x, want % x", got, want)
	}
	if len(sends[0][0]) != sendRequestBytes {
		t.Errorf("%d bytes", len(sends[0][0]))
	}
}
