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
