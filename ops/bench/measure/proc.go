package measure

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"sync"
	"time"
)

// CPUOf is the processor time that a process has used, with that of its threads
// (proc(5): utime and stime are the 14th and 15th field, in ticks of 1/100 s).
func CPUOf(pid int) (time.Duration, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return 0, err
	}
	return ParseCPU(string(text))
}

func ParseCPU(stat string) (time.Duration, error) {
	end := strings.LastIndexByte(stat, ')') // the name may hold anything
	fields := strings.Fields(stat[end+1:])
	if end < 0 || len(fields) < 13 {
		return 0, fmt.Errorf("/proc/…/stat has %d fields after the name", len(fields))
	}
	var ticks int64
	for _, f := range fields[11:13] {
		n, err := strconv.ParseInt(f, 10, 64)
		if err != nil {
			return 0, err
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond, nil
}

// RSSOf is the anonymous memory of a process in bytes: what it holds itself,
// without the pages of files.
func RSSOf(pid int) (int64, error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	return ParseRSS(string(text))
}

func ParseRSS(status string) (int64, error) {
	for line := range strings.Lines(status) {
		if value, ok := strings.CutPrefix(line, "RssAnon:"); ok {
			n, err := strconv.ParseInt(strings.TrimSuffix(strings.TrimSpace(value), " kB"), 10, 64)
			return n << 10, err
		}
	}
	return 0, fmt.Errorf("/proc/…/status has no RssAnon")
}

// Watch samples the memory of a process until stop is called, which returns the
// highest.
func Watch(pid int) (stop func() int64) {
	end := make(chan struct{})
	var wg sync.WaitGroup
	var peak int64
	wg.Go(func() {
		tick := time.NewTicker(10 * time.Millisecond)
		defer tick.Stop()
		for {
			if n, err := RSSOf(pid); err == nil {
				peak = max(peak, n)
			}
			select {
			case <-tick.C:
			case <-end:
				return
			}
		}
	})
	return func() int64 {
		close(end)
		wg.Wait()
		return peak
	}
}
