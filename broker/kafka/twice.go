package kafka

import (
	"fmt"
)

// What a request names twice. An answer for each time would cost as much as somebody who names one thing a hundred
// thousand times likes, and a change that is asked for twice is a mistake or a contradiction. So questions are answered
// once, as Kafka's broker does it, which keeps sets; and changes are refused, before any is made, with INVALID_REQUEST.
// What is done twice without harm, and costs nothing but its own bytes, is done twice.

// once passes the first of each value.
func once[K comparable]() (first func(k K) bool) {
	seen := map[K]bool{}
	return func(k K) bool {
		if seen[k] {
			return false
		}
		seen[k] = true
		return true
	}
}

// count tells how often each of the values is there.
func count[T any, K comparable](list []T, key func(T) K) map[K]int {
	times := map[K]int{}
	for _, t := range list {
		times[key(t)]++
	}
	return times
}

// namedTwice refuses a change of what a request names several times.
func namedTwice(what, name string, times int) error {
	return fmt.Errorf("%s %q is in the request %d times: name it once: %w", what, name, times, errInvalidRequest)
}
