package commitlog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sidestream/broker/disk"
)

func TestEpochEnd(t *testing.T) {
	e := epochs{{2, 10}, {3, 20}, {7, 50}}
	for _, c := range []struct {
		ask, found int32
		end        int64
	}{
		{-1, -1, -1}, {0, 0, 10}, {1, 1, 10}, {2, 2, 20}, {3, 3, 50}, {4, 3, 50}, {6, 3, 50}, {7, 7, 99}, {8, -1, -1},
	} {
		if found, end := e.end(c.ask, 99); found != c.found || end != c.end {
			t.Errorf("epoch %d: %d, %d; want %d, %d", c.ask, found, end, c.found, c.end)
		}
	}
	if found, end := (epochs{}).end(0, 99); found != -1 || end != -1 {
		t.Errorf("no epochs: %d, %d", found, end)
	}
}

func TestEpochsAssignAndCut(t *testing.T) {
	var e epochs
	for _, s := range []epochStart{{-1, 0}, {1, 0}, {1, 5}, {3, 10}, {2, 11}, {4, 20}, {6, 20}, {6, 30}} {
		e, _ = e.assign(s.epoch, s.start)
	}
	want := epochs{{1, 0}, {3, 10}, {6, 20}}
	if !slices.Equal(e, want) {
		t.Fatalf("assigned %v, want %v", e, want)
	}
	for end, want := range map[int64]epochs{0: {}, 1: {{1, 0}}, 10: {{1, 0}}, 11: {{1, 0}, {3, 10}}, 99: want} {
		if got, changed := e.cutEnd(end); !slices.Equal(got, want) || changed != (len(got) != len(e)) {
			t.Errorf("cut to %d: %v, want %v", end, got, want)
		}
	}
	for start, want := range map[int64]epochs{0: want, 4: {{1, 4}, {3, 10}, {6, 20}}, 10: {{3, 10}, {6, 20}}, 15: {{3, 15}, {6, 20}}, 40: {{6, 40}}} {
		if got, _ := e.cutStart(start); !slices.Equal(got, want) {
			t.Errorf("cut from %d: %v, want %v", start, got, want)
		}
	}
	if !slices.Equal(e, want) {
		t.Errorf("cutting changed the original to %v", e)
	}
}

func TestEpochFile(t *testing.T) {
	e := epochs{{0, 0}, {4, 17}}
	if got := string(e.encode()); got != "0\n2\n0 0\n4 17\n" {
		t.Errorf("got %q", got)
	}
	for text, want := range map[string]string{
		"0\n2\n0 0\n4 17\n": "[{0 0} {4 17}]", "0\n0\n": "[]",
		"": "error", "1\n0\n": "error", "0\n1\n": "error", "0\n2\n4 0\n3 5\n": "error",
		"0\n2\n1 9\n2 5\n": "error", "0\n1\nx 5\n": "error", "0\nx\n": "error", "0\n1\n-1 5\n": "error",
	} {
		got, err := parseEpochs([]byte(text))
		if s := fmt.Sprint(got); err == nil && s != want || err != nil && want != "error" {
			t.Errorf("%q: %v, %v; want %s", text, got, err, want)
		}
	}
}

func TestEpochsLiveWithTheLog(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	for epoch := range int32(5) {
		for range 6 {
			if _, _, err := l.Append([][]byte{batch(valueAt(l.EndOffset()))}, epoch, testStart); err != nil {
				t.Fatal(err)
			}
		}
	}
	ends := func(l *Log) string {
		var list []string
		for epoch := range int32(6) {
			found, end := l.EpochEnd(epoch)
			list = append(list, fmt.Sprintf("%d:%d", found, end))
		}
		return strings.Join(list, " ")
	}
	const whole = "0:6 1:12 2:18 3:24 4:30 -1:-1"
	if got := ends(l); got != whole {
		t.Fatalf("got %s, want %s", got, whole)
	}
	killed := open(t, m, smallConfig())
	if got := ends(killed); got != whole {
		t.Errorf("after a kill %s, want %s", got, whole)
	}
	must(t, killed.TruncateTo(13))
	if got := ends(killed); got != "0:6 1:12 2:13 -1:-1 -1:-1 -1:-1" {
		t.Errorf("after truncation %s", got)
	}
	must(t, killed.DeleteBefore(9))
	must(t, killed.Close())
	b, err := disk.ReadFile(m, testDir+"/"+epochFile)
	must(t, err)
	if string(b) != "0\n2\n1 9\n2 12\n" {
		t.Errorf("the file has %q", b)
	}
	if got := ends(open(t, m, smallConfig())); got != "0:9 1:12 2:13 -1:-1 -1:-1 -1:-1" {
		t.Errorf("after restart %s", got)
	}
}
