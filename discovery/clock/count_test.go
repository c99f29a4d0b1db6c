package clock

import (
	"strings"
	"testing"
	"time"
)

const (
	hour = int64(time.Hour / time.Millisecond)
	day  = 24 * hour
	wall = int64(1_800_000_000_000)
)

// A host's life, step by step: what its clocks say, who is a witness, whether it
// is believed, and how much of the folder's time has passed since it began.
func TestCount(t *testing.T) {
	type step struct {
		what    string
		wall    int64 // since the beginning
		up      int64
		boot    string
		witness *int64 // what it says, since the beginning; nil: none
		doubt   string // part of why; "" believed
		passed  int64
	}
	says := func(ms int64) *int64 { return &ms }
	for name, c := range map[string]struct {
		fresh bool
		steps []step
	}{
		"a new folder needs no witness": {true, []step{
			{"an hour", hour, hour, "a", nil, "", hour},
			{"a restart of the process is no gap", 2 * hour, 2 * hour, "a", nil, "", 2 * hour},
		}},
		"a clock that is set does not move the count": {true, []step{
			{"set ahead", 30*day + hour, hour, "a", nil, "moved by 720h", hour},
			{"and back", 2 * hour, 2 * hour, "a", nil, "", 2 * hour},
			{"set back", -day, 3 * hour, "a", nil, "moved by", 3 * hour},
			{"a witness says that it is right so", hour - day, 4 * hour, "a", says(hour - day), "", 4 * hour},
			{"and from then on it needs none", 2*hour - day, 5 * hour, "a", nil, "", 5 * hour},
		}},
		"a host that starts before NTP": {true, []step{
			{"confirmed once", hour, hour, "a", says(hour), "", hour},
			{"started in 1970", -wall, 1000, "b", nil, "started again", hour},
			{"it goes on", 1000 - wall, 2000, "b", nil, "started again", hour + 1000},
			{"then NTP sets it", 2 * day, 3000, "b", says(2 * day), "", 2 * day},
		}},
		"a host that was off for a month": {true, []step{
			{"confirmed once", hour, hour, "a", says(hour), "", hour},
			{"started", 30 * day, 1000, "b", says(30 * day), "", 30 * day},
		}},
		"a host that starts in 2100 with nobody to contradict": {true, []step{
			{"confirmed once", hour, hour, "a", says(hour), "", hour},
			{"started", 20000 * day, 1000, "b", nil, "started again", hour},
			{"the process is started again as well", 20000*day + hour, hour + 1000, "b", nil, "started again", 2 * hour},
			{"a witness contradicts", 20000*day + hour, hour + 1000, "b", says(3 * hour), "this machine's clock says", 2 * hour},
			{"and agrees once it is set", 4 * hour, hour + 2000, "b", says(4 * hour), "", 4 * hour},
		}},
		"how long it was off is not known if nothing was ever confirmed": {true, []step{
			{"an hour", hour, hour, "a", nil, "", hour},
			{"started", 40 * day, 1000, "b", says(40 * day), "", hour},
			{"but the next time it is", 50 * day, 1000, "c", says(50 * day), "", hour + 10*day},
		}},
		"a clock that went back over a start": {true, []step{
			{"confirmed", 10 * day, 10 * day, "a", says(10 * day), "", 10 * day},
			{"started", day, 1000, "b", says(day), "", 10 * day},
		}},
		"a folder whose count is lost": {false, []step{
			{"nobody knows", hour, hour, "a", nil, "not known", hour},
			{"a witness agrees", 2 * hour, 2 * hour, "a", says(2 * hour), "", 2 * hour},
		}},
		"a folder whose count is lost, by a wrong clock": {false, []step{
			{"nobody knows", hour, hour, "a", nil, "not known", hour},
			{"set right", -day, 2 * hour, "a", says(-day), "", -day},
		}},
	} {
		t.Run(name, func(t *testing.T) {
			got := begin(nil, c.fresh, reading{wall: wall, up: 0, boot: "a"})
			for _, s := range c.steps {
				kept := got
				got = begin(&kept, false, reading{wall: wall + s.wall, up: s.up, boot: s.boot})
				var w *evidence
				if s.witness != nil {
					w = &evidence{name: "the test's", wall: wall + *s.witness}
				}
				var d doubt
				got, d = got.judge(w)
				why := d.why
				if (why == "") != (s.doubt == "") || !strings.Contains(why, s.doubt) {
					t.Errorf("%s: doubted because %q, want %q", s.what, why, s.doubt)
				}
				if passed := got.Time - wall; passed != s.passed {
					t.Errorf("%s: %v passed, want %v", s.what, time.Duration(passed)*time.Millisecond, time.Duration(s.passed)*time.Millisecond)
				}
			}
		})
	}
}
