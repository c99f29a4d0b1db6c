package discovery

import "time"

// Settings is under KeySettings: it changes whenever the settings of a group
// that exists do.
type Settings struct {
	Writer string `json:"writer"`
}

// History is under KeyHistory: what the plans of a group have moved, oldest
// first. The group's planner writes it together with the plan.
type History struct {
	Plans []HistoryPlan `json:"plans"`
}

// HistoryPlan is one plan that moved partitions.
type HistoryPlan struct {
	Plan    uint64        `json:"plan"`
	At      time.Time     `json:"at"`
	Planner string        `json:"planner"`
	Cause   string        `json:"cause"`
	Moves   []HistoryMove `json:"moves,omitempty"`
	Omitted int           `json:"omitted,omitempty"` // moves that were too many to be kept
}

// HistoryMove is what went from one sidecar to another; "" is none.
type HistoryMove struct {
	Topic      string  `json:"topic"`
	From       string  `json:"from,omitempty"`
	To         string  `json:"to,omitempty"`
	Partitions []int32 `json:"partitions"`
}

// Idle is under KeyIdle: how long the group has had no member, as its keeper
// counted. It is counted rather than told from two clocks, of which one may be
// wrong by days.
type Idle struct {
	Since   time.Time `json:"since"`   // for people
	Seconds int64     `json:"seconds"` // counted so far
	// Config is the version of the settings that the group has meanwhile: whoever
	// changes them still wants it.
	Config  uint64 `json:"config,omitempty"`
	Removed bool   `json:"removed,omitempty"` // the group is; only its seeks are left
	// Ephemeral says of a group that was removed that it was so.
	Ephemeral bool   `json:"ephemeral,omitempty"`
	Writer    string `json:"writer"`
}

// Keeper is under KeyKeeper.
type Keeper struct {
	Sidecar string `json:"sidecar"`
	Writer  string `json:"writer"`
}

// Census is under KeyCensus: how many partitions all groups consume together, a
// partition counted once for each group. Who begins to consume a topic adds to
// it, and the keeper counts anew now and then.
type Census struct {
	Partitions int    `json:"partitions"`
	Writer     string `json:"writer"`
}
