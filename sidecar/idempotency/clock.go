package idempotency

import (
	"crypto/sha256"
	"encoding/binary"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// moment is a point in time as it is written down.
type moment struct {
	age  time.Duration // on the clock, which only goes forward
	wall int64         // the data folder's time, Unix milliseconds; 0: not known
	up   int64         // milliseconds since the machine was started; its sleep counts
	boot uint64        // names that start of the machine; 0: not known
}

// clock counts the time since the first key that this host was given, across
// restarts: what the window is measured by. A wall clock that is set does not
// move it while the process runs, nor between two processes of one start of the
// machine. How long the machine was off the data folder's time tells, as soon as
// it is known: until then keys are kept for longer rather than for less.
type clock struct {
	began  time.Time
	boot   uint64
	folder func() time.Time // the data folder's; the zero time while it is not known

	mu   sync.Mutex // guards what follows
	base time.Duration
	last *moment // how long ago that was is not known yet; nil: it is
}

// newClock goes on from the last moment that was written down; the zero one
// begins anew.
func newClock(last moment, folder func() time.Time) *clock {
	if folder == nil {
		folder = time.Now
	}
	now := systemMoment(folder)
	c := &clock{began: time.Now(), boot: now.boot, folder: folder}
	if last == (moment{}) {
		return c
	}
	c.base = last.age
	if passed, known := away(last, now); known {
		c.base += passed
	} else {
		c.last = &last
	}
	return c
}

// away is how long nobody counted, if that is known. Where it was not written
// down when that began it is not counted at all.
func away(last, now moment) (passed time.Duration, known bool) {
	millis := now.wall - last.wall
	switch {
	case last.boot != 0 && last.boot == now.boot:
		millis = now.up - last.up
	case last.wall == 0:
		millis = 0
	case now.wall == 0:
		return 0, false
	}
	return max(0, time.Duration(millis)*time.Millisecond), true
}

// now is the age of the clock.
func (c *clock) now() time.Duration {
	began := time.Since(c.began)
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.last != nil {
		if passed, known := away(*c.last, moment{wall: folderTime(c.folder)}); known {
			c.base, c.last = c.base+max(0, passed-began), nil
		}
	}
	return c.base + began
}

// moment is now, to be written down.
func (c *clock) moment() moment {
	m := systemMoment(c.folder)
	m.age, m.boot = c.now(), c.boot
	return m
}

// systemMoment is now as the machine and the data folder tell it.
func systemMoment(folder func() time.Time) moment {
	return moment{wall: folderTime(folder), up: uptime(), boot: bootID()}
}

func folderTime(folder func() time.Time) int64 {
	if now := folder(); !now.IsZero() {
		return now.UnixMilli()
	}
	return 0
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
