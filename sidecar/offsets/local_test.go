package offsets

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
	bolt "go.etcd.io/bbolt"
	"go.uber.org/zap/zaptest"
)

func openLocal(t *testing.T, path string) *Local {
	t.Helper()
	l, err := OpenLocal(path, zaptest.NewLogger(t))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l
}

func TestLocalMergesAndKeeps(t *testing.T) {
	path := filepath.Join(t.TempDir(), "offsets.db")
	ctx := context.Background()
	l := openLocal(t, path)
	key := Key{"g", "orders", 3}
	for _, p := range []Position{
		{Topic: "A", Low: 5, Acked: []Range{{8, 9}}},
		{Topic: "A", Low: 4, Acked: []Range{{5, 6}, {10, 12}}}, // an older low edge rewinds nothing
	} {
		if err := l.Merge(ctx, key, p); err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Merge(ctx, Key{"g", "orders-2", 3}, Position{Low: 1}); err != nil {
		t.Fatal(err)
	}
	want := Position{Topic: "A", Low: 6, HandOut: 6, Acked: []Range{{8, 9}, {10, 12}}}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	l = openLocal(t, path)
	if l.SetAside() != "" {
		t.Errorf("a sound file was set aside as %s", l.SetAside())
	}
	if got, ok, err := l.Get(key); err != nil || !ok || !got.Equal(want) {
		t.Errorf("got %+v, %v, %v; want %+v", got, ok, err, want)
	}
	if all, err := l.All("g", "orders"); err != nil || len(all) != 1 || !all[3].Equal(want) {
		t.Errorf("all of orders: %+v, %v", all, err)
	}

	// A seek replaces, a late acknowledgement of the epoch before does not.
	sought := Position{Topic: "A", SeekEpoch: 1, Low: 2, HandOut: 2}
	for _, p := range []Position{sought, {Topic: "A", SeekEpoch: 0, Low: 50}} {
		if err := l.Merge(ctx, key, p); err != nil {
			t.Fatal(err)
		}
	}
	if got, _, _ := l.Get(key); !got.Equal(sought) {
		t.Errorf("after a seek: %+v", got)
	}
	// A topic made again replaces what was known of its namesake.
	again := Position{Topic: "B", Low: 1, HandOut: 1}
	if err := l.Merge(ctx, key, again); err != nil {
		t.Fatal(err)
	}
	if got, _, _ := l.Get(key); !got.Equal(again) {
		t.Errorf("after the topic was made again: %+v", got)
	}

	if groups, err := l.Groups(); err != nil || len(groups) != 1 || groups[0] != "g" {
		t.Errorf("groups %v, %v", groups, err)
	}
	if err := l.DeleteGroup(ctx, "g"); err != nil {
		t.Fatal(err)
	}
	if err := l.DeleteGroup(ctx, "g"); err != nil {
		t.Errorf("deleting a group twice: %v", err)
	}
	if _, ok, err := l.Get(key); ok || err != nil {
		t.Errorf("a position outlived its group: %v", err)
	}
	if all, err := l.All("g", "orders"); err != nil || len(all) != 0 {
		t.Errorf("all of a deleted group: %v, %v", all, err)
	}
	if err := l.Merge(ctx, Key{Topic: "orders"}, sought); err == nil {
		t.Error("a key without a group was taken")
	}
}

func TestLocalGroupCommit(t *testing.T) {
	l := openLocal(t, filepath.Join(t.TempDir(), "offsets.db"))
	reg := prometheus.NewRegistry()
	if err := l.Register(reg); err != nil {
		t.Fatal(err)
	}
	const mergers, each = 64, 8
	var wg sync.WaitGroup
	for i := range mergers {
		wg.Go(func() {
			key := Key{"g", "orders", int32(i % 4)}
			for j := range each {
				offset := int64(i/4*each + j)
				p := Position{Topic: "A"}
				p.Ack(offset)
				if err := l.Merge(context.Background(), key, p); err != nil {
					t.Error(err)
					return
				}
				if got, ok, err := l.Get(key); err != nil || !ok || !got.IsAcked(offset) {
					t.Errorf("offset %d is not there after its merge was answered: %+v, %v", offset, got, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for part, p := range must(l.All("g", "orders")) {
		if p.Low != mergers/4*each || p.Acked != nil {
			t.Errorf("partition %d: %+v", part, p)
		}
	}
	merges, commits := metric(t, reg, "sidestream_offsets_local_merges_total"), metric(t, reg, "sidestream_offsets_local_commit_seconds")
	if merges != mergers*each || commits > mergers*each/4 {
		t.Errorf("%v merges took %v transactions: they must share", merges, commits)
	}
}

// metric sums a metric's counters, gauges or sample counts over its labels.
func metric(t *testing.T, reg *prometheus.Registry, name string) (sum float64) {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != name {
			continue
		}
		for _, m := range f.GetMetric() {
			sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
		}
	}
	return sum
}

func TestLocalCloseDrains(t *testing.T) {
	path := filepath.Join(t.TempDir(), "offsets.db")
	l := openLocal(t, path)
	ctx := context.Background()
	results := make(chan error, 100)
	var wg sync.WaitGroup
	for i := range cap(results) {
		wg.Go(func() {
			results <- l.Merge(ctx, Key{"g", "orders", int32(i)}, Position{Low: int64(i) + 1})
		})
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	wg.Wait()
	close(results)
	answered := 0
	for err := range results {
		switch {
		case err == nil:
			answered++
		case !errors.Is(err, ErrClosed):
			t.Errorf("merge while closing: %v", err)
		}
	}
	if err := l.Close(); err != nil {
		t.Errorf("closing twice: %v", err)
	}
	if err := l.Merge(ctx, Key{"g", "orders", 1}, Position{}); !errors.Is(err, ErrClosed) {
		t.Errorf("merge after close: %v", err)
	}
	if all := must(openLocal(t, path).All("g", "orders")); len(all) != answered {
		t.Errorf("%d merges were answered, %d are there", answered, len(all))
	}
}

func TestLocalHonoursContext(t *testing.T) {
	l := openLocal(t, filepath.Join(t.TempDir(), "offsets.db"))
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	// Either the answer or the context may come first; both are right.
	if err := l.Merge(ctx, Key{"g", "orders", 1}, Position{Low: 1}); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestLocalFailureIsFinal(t *testing.T) {
	l := openLocal(t, filepath.Join(t.TempDir(), "offsets.db"))
	ctx := context.Background()
	if err := l.db.Close(); err != nil { // every later transaction fails
		t.Fatal(err)
	}
	for range 2 {
		if err := l.Merge(ctx, Key{"g", "orders", 1}, Position{Low: 1}); !errors.Is(err, ErrFailed) {
			t.Errorf("merge into a failed store: %v", err)
		}
	}
}

func TestLocalSetsAsideWhatItCannotRead(t *testing.T) {
	sound := func(t *testing.T, path string) {
		l := openLocal(t, path)
		for i := range int32(200) {
			if err := l.Merge(context.Background(), Key{"g", "orders", i}, Position{Topic: strings.Repeat("x", 100), Low: 7}); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	edit := func(change func([]byte) []byte) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			sound(t, path)
			b, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, change(b), 0o600); err != nil {
				t.Fatal(err)
			}
		}
	}
	boltEdit := func(change func(*bolt.Tx) error) func(*testing.T, string) {
		return func(t *testing.T, path string) {
			sound(t, path)
			db, err := bolt.Open(path, 0o600, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer db.Close()
			if err := db.Update(change); err != nil {
				t.Fatal(err)
			}
		}
	}
	page := os.Getpagesize()
	for name, damage := range map[string]func(*testing.T, string){
		"text":      edit(func([]byte) []byte { return []byte("not a database\n") }),
		"cut short": edit(func(b []byte) []byte { return b[:2*page] }),
		"cut to half": edit(func(b []byte) []byte {
			return b[:len(b)/2/page*page]
		}),
		"both metas": edit(func(b []byte) []byte { clear(b[:2*page]); return b }),
		"all pages":  edit(func(b []byte) []byte { clear(b[2*page:]); return b }),
		"garbage":    edit(func(b []byte) []byte { copy(b[2*page:], bytes.Repeat([]byte{0xa5}, len(b)-2*page)); return b }),
		"newer format": boltEdit(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketMeta).Put(keyFormat, []byte("99"))
		}),
		"bad position": boltEdit(func(tx *bolt.Tx) error {
			return tx.Bucket(bucketPositions).Bucket([]byte("g")).Put(partitionKey("orders", 3), []byte("?"))
		}),
	} {
		t.Run(name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "offsets.db")
			damage(t, path)
			l := openLocal(t, path)
			if !strings.HasPrefix(l.SetAside(), path+".bad-") {
				t.Fatalf("set aside as %q", l.SetAside())
			}
			if _, err := os.Stat(l.SetAside()); err != nil {
				t.Error(err)
			}
			key := Key{"g", "orders", 3}
			if _, ok, err := l.Get(key); ok || err != nil {
				t.Errorf("the fresh store has the old position: %v", err)
			}
			if err := l.Merge(context.Background(), key, Position{Low: 9}); err != nil {
				t.Error(err)
			}
		})
	}
}

func TestLocalRefusesASecondOpener(t *testing.T) {
	path := filepath.Join(t.TempDir(), "offsets.db")
	openLocal(t, path)
	if _, err := OpenLocal(path, nil); err == nil || !strings.Contains(err.Error(), "another process") {
		t.Errorf("second opener: %v", err)
	}
	if _, err := OpenLocal(filepath.Join(t.TempDir(), "no", "folder"), nil); err == nil {
		t.Error("a file in a folder that is not there was opened")
	}
}

// TestLocalSurvivesKill kills a process in the middle of its merges and expects
// every merge that it reported as answered.
func TestLocalSurvivesKill(t *testing.T) {
	path := filepath.Join(t.TempDir(), "offsets.db")
	answered := map[string]bool{}
	for round := range 3 {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), "OFFSETS_TEST_VICTIM="+path, fmt.Sprintf("OFFSETS_TEST_ROUND=%d", round))
		cmd.Stderr = os.Stderr
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		lines := bufio.NewScanner(out)
		for n := 0; lines.Scan(); n++ {
			if n == 40 {
				if err := cmd.Process.Kill(); err != nil { // SIGKILL
					t.Fatal(err)
				}
			}
			answered[lines.Text()] = true
		}
		if err := cmd.Wait(); err == nil {
			t.Fatal("the process ended by itself")
		}
	}
	l := openLocal(t, path)
	if l.SetAside() != "" {
		t.Fatalf("a kill made the file unreadable: %s", l.SetAside())
	}
	for line := range answered {
		var part int32
		var offset int64
		if _, err := fmt.Sscanf(line, "acked %d %d", &part, &offset); err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		if p, _, err := l.Get(Key{"g", "orders", part}); err != nil || !p.IsAcked(offset) {
			t.Errorf("%s was answered and is not in %+v (%v)", line, p, err)
		}
	}
	if len(answered) < 3*40 {
		t.Errorf("only %d merges were answered", len(answered))
	}
}

// victim merges until it is killed, and reports each answer.
func victim(path string) {
	l, err := OpenLocal(path, nil)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	var round int64
	fmt.Sscan(os.Getenv("OFFSETS_TEST_ROUND"), &round)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for part := range int32(4) {
		wg.Go(func() {
			for i := int64(0); ; i++ {
				p := Position{Topic: "A"}
				offset := round*1_000_000 + 2*i // every other one: ranges pile up
				p.Ack(offset)
				if err := l.Merge(context.Background(), Key{"g", "orders", part}, p); err != nil {
					fmt.Fprintln(os.Stderr, err)
					os.Exit(1)
				}
				mu.Lock()
				fmt.Printf("acked %d %d\n", part, offset)
				mu.Unlock()
			}
		})
	}
	wg.Wait()
}

func must[T any](v T, err error) T {
	if err != nil {
		panic(err)
	}
	return v
}
