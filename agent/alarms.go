package agent

import (
	"maps"
	"slices"
	"sync"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Kinds of alarms. Each stands at most once.
const (
	alarmCluster    = "cluster-id"
	alarmStore      = "store"
	alarmID         = "broker id"
	alarmUnknown    = "unknown partitions"
	alarmElsewhere  = "partitions placed elsewhere"
	alarmLead       = "cannot lead"
	alarmRemove     = "cannot remove"
	alarmReplicated = "replication"
)

// alarms is what an operator must look at. A raised alarm is logged once.
type alarms struct {
	log   *zap.Logger
	gauge prometheus.Gauge

	mu  sync.Mutex        // guards set
	set map[string]string // text by kind
}

func newAlarms(log *zap.Logger, gauge prometheus.Gauge) *alarms {
	return &alarms{log: log, gauge: gauge, set: map[string]string{}}
}

// put raises the alarm of a kind, or clears it when the text is empty.
func (a *alarms) put(kind, text string) {
	a.mu.Lock()
	before := a.set[kind]
	if text == "" {
		delete(a.set, kind)
	} else {
		a.set[kind] = text
	}
	n := len(a.set)
	a.mu.Unlock()
	a.gauge.Set(float64(n))
	switch {
	case text == before:
	case text == "":
		a.log.Info("alarm cleared", zap.String("alarm", before))
	default:
		a.log.Warn("alarm", zap.String("alarm", text))
	}
}

// list is the texts, sorted.
func (a *alarms) list() []string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return slices.Sorted(maps.Values(a.set))
}
