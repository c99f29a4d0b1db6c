//go:build testclock

package clock

import (
	"os"
	"strings"
	"sync/atomic"
	"time"
)

// The binary is built with -tags testclock, and TESTCLOCK names a
// file that says by how much the wall clock is wrong, such as "720h", and after a
// space "synchronised" when the kernel is to be a witness of the right time. It
// is read again each second, so a test moves the clock of a process that runs.

var (
	moved   atomic.Int64
	witness atomic.Bool
	readAt  atomic.Int64 // by the real clock, ms
)

func reread() {
	now := time.Now().UnixMilli()
	if last := readAt.Load(); now-last < 500 || !readAt.CompareAndSwap(last, now) {
		return
	}
	b, err := os.ReadFile(os.Getenv("TESTCLOCK"))
	if err != nil {
		return
	}
	by, rest, _ := strings.Cut(strings.TrimSpace(string(b)), " ")
	if d, err := time.ParseDuration(by); err == nil {
		moved.Store(d.Milliseconds())
		witness.Store(rest == "synchronised")
	}
}

func offset() int64 {
	reread()
	return moved.Load()
}

func testSynchronised() bool {
	reread()
	return witness.Load()
}
