package clock

import (
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// machine is where the time comes from.
type machine interface {
	read() reading
	// wall is what the wall clock says when the process reads this time of it.
	wall(now time.Time) int64
}

type realMachine struct{}

func (realMachine) read() reading {
	return reading{wall: time.Now().UnixMilli() + offset(), up: uptime(), boot: bootID()}
}

func (realMachine) wall(now time.Time) int64 { return now.UnixMilli() + offset() }

// Kernel is what the kernel's clock says, if the kernel says that something
// keeps it right (NTP, PTP).
func Kernel() (at time.Time, ok bool) {
	if testSynchronised() {
		return time.Now(), true
	}
	var t unix.Timex // no modes: it only asks
	state, err := unix.Adjtimex(&t)
	return time.Now(), err == nil && state != unix.TIME_ERROR && t.Status&unix.STA_UNSYNC == 0
}

var started = time.Now()

// uptime is for how long the machine is up, or where that cannot be read this
// process.
func uptime() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return time.Since(started).Milliseconds()
	}
	return t.Nano() / int64(time.Millisecond)
}

// bootID names this start of the machine, or where that cannot be read this
// process.
func bootID() string {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if id := strings.TrimSpace(string(b)); err == nil && id != "" {
		return id
	}
	return "process " + started.UTC().Format(time.RFC3339Nano)
}
