// Package timespan reads the durations that the HTTP API takes. There is one
// reader for the query and for JSON bodies, so that both take the same forms.
package timespan

import (
	"errors"
	"strconv"
	"time"
)

// Form names what Parse takes, for error messages.
const Form = "a duration such as 500ms, 30s or 2m, or a whole number of seconds"

var errForm = errors.New("not " + Form)

// Hint is for what Parse reads and is out of range: that a number without a unit
// was read as seconds, where it would be in range as milliseconds; else "".
func Hint(s string, least, most time.Duration) string {
	n, err := strconv.ParseInt(s, 10, 32)
	if err != nil {
		return ""
	}
	if d := time.Duration(n) * time.Millisecond; d < least || d > most {
		return ""
	}
	return "; " + s + " without a unit is seconds: did you mean " + s + "ms?"
}

// Parse reads Form: a Go duration, or whole seconds up to 2^31-1 (68 years).
// The sign is not looked at.
func Parse(s string) (time.Duration, error) {
	if n, err := strconv.ParseInt(s, 10, 32); err == nil {
		return time.Duration(n) * time.Second, nil
	}
	d, err := time.ParseDuration(s)
	if err != nil {
		return 0, errForm
	}
	return d, nil
}
