package chaos

import (
	"bufio"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"
	"time"
)

type pageview struct {
	Visitor string `json:"visitor"`
	Path    string `json:"path"`
	Bytes   int64  `json:"bytes"`
	line    string
}

func pageviews(t testing.TB) []pageview {
	t.Helper()
	f, err := os.Open(filepath.Join(repoRoot(), "examples", "pageviews", "pageviews.ndjson"))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var out []pageview
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		v := pageview{line: lines.Text()}
		if err := json.Unmarshal(lines.Bytes(), &v); err != nil {
			t.Fatal(err)
		}
		out = append(out, v)
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return out
}

// The main job across processes and a real Consul: every view posted to one
// sidecar comes out of the two sidecars of a group once, whole and in the
// order of its visitor, and both sidecars have a share.
func TestPageViewsThroughTheCluster(t *testing.T) {
	c := Start(t, 3, 2, Options{})
	views := pageviews(t)
	c.CreateTopic("views", 8)

	// Both join while the topic is still empty, as two running applications do.
	eventually(t, 60*time.Second, func() error {
		for _, s := range c.Sidecars {
			if _, err := pull(s.HTTP, "top-pages", "views", "max=1&wait=0s"); err != nil {
				return err
			}
		}
		return c.shared("top-pages", 8)
	})
	l := NewLedger()
	posted := map[string][]string{} // by visitor
	for start := 0; start < len(views); start += 500 {
		batch := views[start:min(start+500, len(views))]
		body := ""
		for _, v := range batch {
			body += v.line + "\n"
			posted[v.Visitor] = append(posted[v.Visitor], v.line)
		}
		res := c.postLines(c.Sidecars[0], "views", body, "visitor")
		for i, r := range res.Results {
			if err := l.Published("views", r.Partition, r.Offset, batch[i].line); err != nil {
				t.Fatal(err)
			}
		}
	}

	var wg sync.WaitGroup
	for _, s := range c.Sidecars {
		wg.Go(func() {
			for idle := 0; idle < 5; {
				n, err := pullAndAck(l, s, "top-pages", "views", "max=500&wait=300ms")
				if err != nil {
					t.Errorf("%s: %v", s.Name, err)
					return
				}
				if idle++; n > 0 {
					idle = 0
				}
			}
		})
	}
	wg.Wait()

	if s := l.Skipped(); len(s) > 0 {
		t.Errorf("not delivered: %s", few(s))
	}
	if w := l.WrongValues(); len(w) > 0 {
		t.Errorf("wrong values: %s", few(w))
	}
	if o := l.OutOfOrder(); len(o) > 0 {
		t.Errorf("out of order: %s", few(o))
	}
	_, delivered, _ := l.Counts()
	if delivered != len(views) {
		t.Errorf("delivered %d messages of %d: some twice or none", delivered, len(views))
	}
	share, got, bytes := map[string]int{}, map[string][]string{}, int64(0)
	for _, d := range l.FirstSeen() {
		share[d.By]++
		var v pageview
		if err := json.Unmarshal([]byte(d.Value), &v); err != nil {
			t.Fatal(err)
		}
		bytes += v.Bytes
		got[v.Visitor] = append(got[v.Visitor], d.Value)
	}
	if len(share) != 2 {
		t.Errorf("deliveries by sidecar: %v, both should have a share", share)
	}
	if bytes != 2_747_282_505 {
		t.Errorf("bytes add up to %d", bytes)
	}
	for visitor, want := range posted {
		if fmt.Sprint(got[visitor]) != fmt.Sprint(want) {
			t.Fatalf("%s: views are not in the order posted", visitor)
		}
	}
}
