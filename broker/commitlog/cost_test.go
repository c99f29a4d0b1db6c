package commitlog

import (
	"fmt"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sidestream/broker/disk"
)

// An append and a read cost the same few small allocations however large the
// batch is.
func TestAllocationsDoNotGrowWithTheBatch(t *testing.T) {
	l, err := Open(disk.OS, t.TempDir()+"/p-0", DefaultConfig(), Options{})
	must(t, err)
	defer l.Close()
	for _, size := range []int{100, 900_000} {
		b := [][]byte{batch(strings.Repeat("x", size))}
		const most = 4096 // bytes for one append and one read, index entries included
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		const rounds = 50
		for range rounds {
			first, _, err := l.Append(b, 1, testStart)
			must(t, err)
			s, err := l.Read(first, 1<<20, first+1)
			must(t, err)
			s.Release()
		}
		runtime.ReadMemStats(&after)
		if each := (after.TotalAlloc - before.TotalAlloc) / rounds; each > most {
			t.Errorf("batch of %d bytes: %d bytes allocated a round, want at most %d", size, each, most)
		}
	}
}

// A broker with 1,000 partitions holds 1,000 open logs.
func TestIdleLogIsSmall(t *testing.T) {
	dir := t.TempDir()
	const logs = 200
	for i := range logs {
		l, err := Open(disk.OS, filepath.Join(dir, fmt.Sprintf("p-%d", i)), smallConfig(), Options{})
		must(t, err)
		appendValues(t, l, 20)
		must(t, l.Close())
	}
	goroutines := runtime.NumGoroutine()
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var open []*Log
	for i := range logs {
		l, err := Open(disk.OS, filepath.Join(dir, fmt.Sprintf("p-%d", i)), smallConfig(), Options{Clean: true})
		must(t, err)
		open = append(open, l)
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	each := int64(after.HeapAlloc-before.HeapAlloc) / logs
	if each > 8<<10 {
		t.Errorf("an open log takes %d bytes, want at most 8 KiB", each)
	}
	if n := runtime.NumGoroutine(); n > goroutines {
		t.Errorf("%d goroutines for idle logs", n-goroutines)
	}
	for _, l := range open {
		must(t, l.Close())
	}
	t.Logf("%d bytes a log", each)
}
