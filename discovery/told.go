package discovery

import "strconv"

// PrefixClocks is above what agents tell of their machines' clocks.
const PrefixClocks = "clocks/"

// KeyClock holds a [ToldTime].
func KeyClock(broker int32) string { return PrefixClocks + strconv.Itoa(int(broker)) }

// ToldTime is what an agent's clock said when it was written, each few minutes
// by an agent with a witness that is not such a key.
type ToldTime struct {
	At     int64  `json:"at"`   // Unix milliseconds
	Boot   string `json:"boot"` // names the start of its machine: whoever has the same has the same clock
	Writer string `json:"writer"`
}
