package measure

import (
	"errors"
	"math"
	"os"
	"os/exec"
	"testing"
	"time"
)

func TestParseProc(t *testing.T) {
	cpu, err := ParseCPU("12 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 25 0 0 20")
	if err != nil || cpu != 1750*time.Millisecond {
		t.Errorf("cpu %v, %v", cpu, err)
	}
	if _, err := ParseCPU("12 (a"); err == nil {
		t.Error("no error for a short line")
	}
	rss, err := ParseRSS("VmRSS:\t  900 kB\nRssAnon:\t   512 kB\n")
	if err != nil || rss != 512<<10 {
		t.Errorf("rss %d, %v", rss, err)
	}
	if n, err := RSSOf(os.Getpid()); err != nil || n < 1<<16 {
		t.Errorf("own rss %d, %v", n, err)
	}
}

func TestParseCounters(t *testing.T) {
	c, err := ParseCounters("# HELP a b\na 1.5e+03\nab 2\nb{x=\"y\"} 3\n", []string{"a", "ab"})
	if err != nil || c["a"] != 1500 || c["ab"] != 2 {
		t.Errorf("%v, %v", c, err)
	}
	if _, err := ParseCounters("a 1\n", []string{"missing"}); err == nil {
		t.Error("no error for a metric that is not there")
	}
}

func TestStatistics(t *testing.T) {
	for _, c := range []struct {
		in   []float64
		want float64
	}{{[]float64{3, 1, 2}, 2}, {[]float64{4, 1}, 2.5}, {[]float64{7}, 7}} {
		if got := Median(c.in); got != c.want {
			t.Errorf("median of %v is %v", c.in, got)
		}
	}
	if !math.IsNaN(Median(nil)) {
		t.Error("median of nothing is a number")
	}
	if got := Spread([]float64{2, 1, 3}); got != "2.00 [1.00–3.00]" {
		t.Error(got)
	}
	for v, want := range map[float64]string{2_500_000: "2.50 M", 12_345: "12 k", 1234: "1234", 12.34: "12.3", 0.1234: "0.123", math.Inf(1): "–"} {
		if got := Short(v); got != want {
			t.Errorf("%v is shown as %q", v, got)
		}
	}
	sorted := []time.Duration{1, 2, 3, 4}
	if Share(sorted, 0.5) != 3 || Share(sorted, 0.999) != 4 || Share(nil, 0.5) != 0 {
		t.Error("quantiles")
	}
}

func TestFigures(t *testing.T) {
	var fs Figures
	fs.Add("a rate", 2, ">=", 1.5)
	fs.Add("a cost", 2, "<=", 1.5)
	fs.Add("nothing", math.NaN(), "<=", 1)
	want := "```\nfigure=a-rate value=2 target=>=1.5 ok\nfigure=a-cost value=2 target=<=1.5 short\n```\n"
	if got := fs.Lines(); got != want {
		t.Errorf("got %s", got)
	}
}

// A process is measured while a load runs: what it used and held.
func TestMeter(t *testing.T) {
	s, err := Launch("sleeper", t.TempDir()+"/data", exec.Command("sleep", "60"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.Ended(); err != nil {
		t.Error(err)
	}
	m := Meter{Processes: []*Process{s}}
	r, err := m.Run(func() error { time.Sleep(30 * time.Millisecond); return nil })
	if err != nil || r.Took < 30*time.Millisecond || r.RSS <= 0 || r.CPU < 0 {
		t.Errorf("%+v, %v", r, err)
	}
	if _, err := m.Run(func() error { return os.ErrInvalid }); !errors.Is(err, os.ErrInvalid) {
		t.Errorf("got %v", err)
	}
	if err := s.Kill(); err != nil {
		t.Error(err)
	}
	if s.Ended() == nil {
		t.Error("it is said to run")
	}
}
