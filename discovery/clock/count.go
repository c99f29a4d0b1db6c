package clock

import (
	"fmt"
	"time"
)

// tolerance is how far two clocks may be apart and still be said to agree, in
// milliseconds. What is deleted for its age is hours old at least.
const tolerance = int64(time.Hour / time.Millisecond)

// reading is what a machine's clocks say at one moment.
type reading struct {
	wall int64  // milliseconds since 1970
	up   int64  // milliseconds since the machine was started; its sleep counts
	boot string // names that start of the machine, "" when it is not known
}

// gap is time that nobody counted and no witness has told yet.
type gap string

const (
	noGap gap = ""
	// begun: the folder held data when its count began.
	begun gap = "begun"
	// away: the machine was started since the count was written down.
	away gap = "away"
)

// count is a data folder's own time at one moment, as it is written down. It
// goes on by the time since the machine's start, which nobody can set; the wall
// clock only bridges a start of the machine, and only with a witness.
type count struct {
	Time int64  `json:"time"` // the folder's time, milliseconds, once those since 1970
	Wall int64  `json:"wall"` // what the wall clock said then
	Up   int64  `json:"up"`   // for how long the machine was up then
	Boot string `json:"boot"` // which start of it that was
	// Ahead is the wall clock minus Time when the two were last held together.
	Ahead int64 `json:"wall_ahead"`
	// Confirmed says that a witness was there then. If none ever was, the wall
	// clock says nothing of how long the machine was off.
	Confirmed bool `json:"confirmed"`
	Gap       gap  `json:"gap,omitempty"`
}

// begin is where the count goes on that was last written down. Without one it
// begins by the wall clock: in a fresh folder, where everything will be dated
// by this very count, that is as good as any; else a witness must tell.
func begin(last *count, fresh bool, now reading) count {
	if last != nil {
		return last.at(now)
	}
	c := count{Time: now.wall, Wall: now.wall, Up: now.up, Boot: now.boot}
	if !fresh {
		c.Gap = begun
	}
	return c
}

// at is the count at a later reading.
func (c count) at(now reading) count {
	if now.boot != "" && now.boot == c.Boot && now.up >= c.Up {
		c.Time += now.up - c.Up
	} else if c.Gap == noGap {
		c.Gap = away
	}
	c.Wall, c.Up, c.Boot = now.wall, now.up, now.boot
	return c
}

// confirm is the count after a witness has agreed with its wall clock: how long
// the machine was off is known then. Time never goes back.
func (c count) confirm() count {
	switch {
	case c.Gap == begun:
		c.Time = c.Wall
	case c.Gap == away && c.Confirmed:
		c.Time = max(c.Time, c.Wall-c.Ahead)
	}
	c.Gap, c.Ahead, c.Confirmed = noGap, c.Wall-c.Time, true
	return c
}

// jumped is how far the wall clock moved against the count since the two were
// last held together, in milliseconds.
func (c count) jumped() int64 { return c.Wall - c.Time - c.Ahead }

// evidence is what a second clock says.
type evidence struct {
	name string // "the kernel's", "the coordination store's"
	wall int64  // what it says now, milliseconds since 1970
	peer bool   // it is one of our own
}

// doubt is why nothing may be deleted by a count; the zero doubt says that it may.
type doubt struct {
	kind string // the same as long as nothing new has to be told
	why  string
}

// judge is the count after what a witness says, nil when there is none, and
// whether it is to be doubted.
func (c count) judge(w *evidence) (count, doubt) {
	if w != nil {
		if d := c.Wall - w.wall; d > tolerance || d < -tolerance {
			return c, doubt{"contradicted", fmt.Sprintf("this machine's clock says %s and %s says %s", stamp(c.Wall), w.name, stamp(w.wall))}
		}
		return c.confirm(), doubt{}
	}
	switch {
	case c.Gap == begun:
		return c, doubt{"begun", "when the data in this folder was written is not known, and no second clock confirms this machine's, which says " + stamp(c.Wall)}
	case c.Gap == away:
		return c, doubt{"away", "the machine was started again, and no second clock confirms its clock, which says " + stamp(c.Wall)}
	}
	if d := c.jumped(); d > tolerance || d < -tolerance {
		return c, doubt{"moved", fmt.Sprintf("the clock was moved by %s, to %s, and no second clock confirms it",
			(time.Duration(d) * time.Millisecond).Round(time.Second), stamp(c.Wall))}
	}
	return c, doubt{}
}

func stamp(ms int64) string { return time.UnixMilli(ms).UTC().Format(time.RFC3339) }
