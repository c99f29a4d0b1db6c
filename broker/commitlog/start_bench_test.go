package commitlog

import (
	"fmt"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/broker/disk"
)

// startLogs is how many logs the start is measured with, startParallelism how
// many are opened at once, as the broker does.
const (
	startLogs        = 1000
	startParallelism = 8
)

func eachLog(b *testing.B, dir string, do func(name string) error) {
	b.Helper()
	names := make(chan string)
	var all sync.WaitGroup
	for range startParallelism {
		all.Go(func() {
			for name := range names {
				if err := do(name); err != nil {
					b.Error(err)
				}
			}
		})
	}
	for i := range startLogs {
		names <- filepath.Join(dir, fmt.Sprintf("orders-%d", i))
	}
	close(names)
	all.Wait()
}

// benchmarkStart opens all logs, each with tail bytes behind its recovery point.
func benchmarkStart(b *testing.B, tail int64) {
	dir := b.TempDir()
	value := strings.Repeat("x", 16<<10)
	grow := func(l *Log, bytes int64) error {
		for done := int64(0); done < bytes; done += int64(len(value)) {
			if _, _, err := l.Append([][]byte{idempotent(1, 0, int32(l.EndOffset()), value)}, 1, testStart); err != nil {
				return err
			}
		}
		return nil
	}
	eachLog(b, dir, func(name string) error {
		l, err := Open(disk.OS, name, DefaultConfig(), Options{})
		if err != nil {
			return err
		}
		if err := grow(l, 64<<10); err != nil {
			return err
		}
		return l.Close()
	})
	for b.Loop() {
		b.StopTimer()
		if tail > 0 { // killed: in the page cache, not flushed
			eachLog(b, dir, func(name string) error {
				l, err := Open(disk.OS, name, DefaultConfig(), Options{})
				if err == nil {
					err = grow(l, tail)
					l.closeFiles()
				}
				return err
			})
		}
		var mu sync.Mutex // guards open
		var open []*Log
		b.StartTimer()
		began := time.Now()
		eachLog(b, dir, func(name string) error {
			l, err := Open(disk.OS, name, DefaultConfig(), Options{Clean: tail == 0})
			if err != nil {
				return err
			}
			mu.Lock()
			defer mu.Unlock()
			open = append(open, l)
			return nil
		})
		b.ReportMetric(time.Since(began).Seconds(), "s/start")
		b.StopTimer()
		for _, l := range open {
			if err := l.Close(); err != nil {
				b.Fatal(err)
			}
		}
		b.StartTimer()
	}
}

// BenchmarkCleanStart opens 1,000 logs that were closed.
func BenchmarkCleanStart(b *testing.B) { benchmarkStart(b, 0) }

// BenchmarkCrashStart opens 1,000 logs that were killed, with 1 GB beyond their
// recovery points together.
func BenchmarkCrashStart(b *testing.B) { benchmarkStart(b, 1<<20) }

// BenchmarkCompaction compacts a log of 256 MB, in batches of 16 records of 1 KiB,
// whose 20,000 keys are each there about 12 times.
func BenchmarkCompaction(b *testing.B) {
	cfg := DefaultConfig()
	cfg.SegmentBytes, cfg.Cleanup, cfg.MinCleanableRatio = 32<<20, CleanupCompact, 0
	value := strings.Repeat("x", 1024)
	b.SetBytes(256 << 20)
	b.ReportAllocs()
	for b.Loop() {
		b.StopTimer()
		l, err := Open(disk.OS, filepath.Join(b.TempDir(), "orders-0"), cfg, compactOptions())
		must(b, err)
		for i := 0; l.Size() < 256<<20; i++ {
			var records []kv
			for j := range 16 {
				records = append(records, kv{fmt.Sprint("key", (i*16+j)*7919%20_000), value})
			}
			_, _, err := l.Append([][]byte{keyed(records...)}, 1, testStart)
			must(b, err)
		}
		must(b, l.Checkpoint())
		b.StartTimer()
		done, err := l.Compact(b.Context(), testStart, CompactOptions{})
		must(b, err)
		b.StopTimer()
		b.ReportMetric(float64(done.Reclaimed)/float64(256<<20), "reclaimed/byte")
		must(b, l.Close())
		b.StartTimer()
	}
}
