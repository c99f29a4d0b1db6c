package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// moment is a point in time as it is written down.
type moment struct {
	age  time.Duration // on the clock, which only goes forward
	wall int64         // Unix milliseconds
	up   int64         // milliseconds since the machine was started; its sleep counts
	boot uint64        // names that start of the machine; 0: not known
}

// clock counts the time since the first key that this host was given, across
// restarts: what the window is measured by. A wall clock that is set does not
// move it while the process runs, nor between two processes of one start of the
// machine. Only over a start of the machine the wall clock must be believed,
// and then not if it went backwards: keys are kept for longer rather than for
// less.
type clock struct {
	base  time.Duration
	began time.Time
	boot  uint64
}

// newClock goes on from the last moment that was written down; the zero one
// begins anew.
func newClock(last, now moment) *clock {
	c := &clock{began: time.Now(), boot: now.boot}
	if last != (moment{}) {
		c.base = last.age + away(last, now)
	}
	return c
}

// away is how long nobody counted.
func away(last, now moment) time.Duration {
	passed := now.wall - last.wall
	if last.boot != 0 && last.boot == now.boot {
		passed = now.up - last.up
	}
	return max(0, time.Duration(passed)*time.Millisecond)
}

// now is the age of the clock.
func (c *clock) now() time.Duration { return c.base + time.Since(c.began) }

// moment is now, to be written down.
func (c *clock) moment() moment {
	return moment{age: c.now(), wall: time.Now().UnixMilli(), up: uptime(), boot: c.boot}
}

// systemMoment is now as the machine tells it.
func systemMoment() moment {
	return moment{wall: time.Now().UnixMilli(), up: uptime(), boot: bootID()}
}

func uptime() int64 {
	var t unix.Timespec
	if unix.ClockGettime(unix.CLOCK_BOOTTIME, &t) != nil {
		return 0
	}
	return t.Nano() / int64(time.Millisecond)
}

func bootID() uint64 {
	b, err := os.ReadFile("/proc/sys/kernel/random/boot_id")
	if err != nil || uptime() == 0 {
		return 0
	}
	sum := sha256.Sum256(b)
	return binary.BigEndian.Uint64(sum[:])
}
