package main

import (
	"context"
	"time"

	"sidestream/ops/bench/measure"
)

// result is what one measurement gave.
type result struct {
	measure.Result
	syncs, synced int64 // of our broker: syncs of logs, and the bytes they covered
}

// meter measures one server.
type meter struct {
	s       *measure.Process
	profile string // where our broker's CPU profile goes, "" for none
	r       result
}

var syncCounters = []string{"sidestream_log_flush_seconds_count", "sidestream_log_appended_bytes_total"}

// measure runs load and measures the server meanwhile.
func (m *meter) measure(ctx context.Context, load func() error) error {
	var before, after map[string]float64
	var err error
	if m.s.HTTP != "" {
		if before, err = m.s.Counters(ctx, syncCounters...); err != nil {
			return err
		}
	}
	all := measure.Meter{Processes: []*measure.Process{m.s}, Profile: m.profile}
	if m.r.Result, err = all.Run(load); err != nil {
		return err
	}
	if m.s.HTTP != "" {
		if after, err = m.s.Counters(ctx, syncCounters...); err != nil {
			return err
		}
		m.r.syncs = int64(after[syncCounters[0]] - before[syncCounters[0]])
		m.r.synced = int64(after[syncCounters[1]] - before[syncCounters[1]])
	}
	return nil
}

// of takes one figure of every round.
func of(rounds []result, figure func(result) float64) []float64 {
	out := make([]float64, len(rounds))
	for i, r := range rounds {
		out[i] = figure(r)
	}
	return out
}

// milliseconds shows the median over the rounds of a quantile of the latencies.
func milliseconds(rounds []result, part float64) string {
	all := make([][]time.Duration, len(rounds))
	for i, r := range rounds {
		all[i] = r.Latencies
	}
	return measure.Milliseconds(all, part)
}
