package timespan

import (
	"testing"
	"time"
)

// ?wait=5000 was answered "from 0s to 1h" and did not say as what it was read.
func TestHint(t *testing.T) {
	for in, want := range map[string]bool{"5000": true, "3600001": false, "5s": false, "soon": false, "-5": false, "99999999999": false} {
		if got := Hint(in, 0, time.Hour); (got != "") != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestParse(t *testing.T) {
	for in, want := range map[string]time.Duration{
		"0": 0, "5": 5 * time.Second, "-5": -5 * time.Second, "5s": 5 * time.Second, "500ms": 500 * time.Millisecond,
		"1h30m": 90 * time.Minute, "1.5s": 1500 * time.Millisecond,
	} {
		if got, err := Parse(in); err != nil || got != want {
			t.Errorf("%q: %v %v, want %v", in, got, err, want)
		}
	}
	for _, in := range []string{"", "1.5", "soon", "1d", "99999999999", " 5"} {
		if got, err := Parse(in); err == nil {
			t.Errorf("%q is read as %v", in, got)
		}
	}
}
