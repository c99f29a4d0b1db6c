package agent

import (
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Kinds of alarms. Each stands at most once.
const (
	alarmCluster    = "cluster-id"
	alarmStore      = "store"
	alarmID         = "broker id"
	alarmFolder     = "data folder"
	alarmUnknown    = "unknown partitions"
	alarmElsewhere  = "partitions placed elsewhere"
	alarmLead       = "cannot lead"
	alarmRemove     = "cannot remove"
	alarmReplicated = "replication"
	alarmMissing    = "missing broker" // with the broker's id behind it
	alarmLeaderless = "partitions without a leader"
)

// sameAlarm is how long the log is silent about an alarm that stands though its
// text changes: a count in it goes up, or an error comes in other words.
const sameAlarm = time.Minute

// alarms is what an operator must look at. A raised alarm is logged once, and
// again when its text has changed, at most once in sameAlarm.
type alarms struct {
	log   *zap.Logger
	gauge prometheus.Gauge

	mu  sync.Mutex       // guards set
	set map[string]alarm // by kind
}

type alarm struct {
	text   string
	logged string // text that the log has
	at     time.Time
	since  time.Time // it was raised
}

func newAlarms(log *zap.Logger, gauge prometheus.Gauge) *alarms {
	return &alarms{log: log, gauge: gauge, set: map[string]alarm{}}
}

// put raises the alarm of a kind, or clears it when the text is empty.
func (a *alarms) put(kind, text string) {
	a.mu.Lock()
	before, stood := a.set[kind]
	now := alarm{text: text, logged: before.logged, at: before.at, since: before.since}
	if !stood {
		now.since = time.Now()
	}
	tell := text != "" && text != before.logged && (!stood || time.Since(before.at) >= sameAlarm)
	if tell {
		now.logged, now.at = text, time.Now()
	}
	if text == "" {
		delete(a.set, kind)
	} else {
		a.set[kind] = now
	}
	n := len(a.set)
	a.mu.Unlock()
	a.gauge.Set(float64(n))
	switch {
	case tell:
		a.log.Warn("alarm", zap.String("alarm", text))
	case text == "" && stood:
		a.log.Info("alarm cleared", zap.String("alarm", before.text))
	}
}

// list is the texts, sorted.
func (a *alarms) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	var texts []string
	for alarm := range maps.Values(a.set) {
		texts = append(texts, alarm.text)
	}
	slices.Sort(texts)
	return texts
}

// since is when the alarms that stand were raised, by their present text.
func (a *alarms) since() map[string]time.Time {
	a.mu.Lock()
	defer a.mu.Unlock()
	at := make(map[string]time.Time, len(a.set))
	for alarm := range maps.Values(a.set) {
		at[alarm.text] = alarm.since
	}
	return at
}
