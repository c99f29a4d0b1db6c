package main

import (
	"fmt"
	"math"
	"slices"
	"time"
)

func (r result) rate() float64 { return float64(r.records) / r.took.Seconds() }

// megabytes are millions of bytes of payload a second.
func (r result) megabytes() float64 { return float64(r.bytes) / 1e6 / r.took.Seconds() }

func (r result) cpuPerGB() float64 { return r.cpu.Seconds() / (float64(r.bytes) / 1e9) }

// cpuPerRecord is in microseconds.
func (r result) cpuPerRecord() float64 { return r.cpu.Seconds() * 1e6 / float64(r.records) }

// of takes one figure of every round.
func of(rounds []result, figure func(result) float64) []float64 {
	out := make([]float64, len(rounds))
	for i, r := range rounds {
		out[i] = figure(r)
	}
	return out
}

// ratios divides round by round, because what the machine does besides changes
// from one to the next.
func ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] / b[i]
	}
	return out
}

// median of an even number is the mean of the middle two; of none it is NaN.
func median(values []float64) float64 {
	v := slices.Clone(values)
	slices.Sort(v)
	switch n := len(v); {
	case n == 0:
		return math.NaN()
	case n%2 == 1:
		return v[n/2]
	default:
		return (v[n/2-1] + v[n/2]) / 2
	}
}

// spread shows the median and, of more than one round, the range.
func spread(values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	if len(values) == 1 {
		return short(values[0])
	}
	return fmt.Sprintf("%s [%s–%s]", short(median(values)), short(slices.Min(values)), short(slices.Max(values)))
}

// short shows three digits or so.
func short(v float64) string {
	switch {
	case math.IsNaN(v) || math.IsInf(v, 0):
		return "–"
	case math.Abs(v) >= 1e6:
		return fmt.Sprintf("%.2f M", v/1e6)
	case math.Abs(v) >= 1e4:
		return fmt.Sprintf("%.0f k", v/1e3)
	case math.Abs(v) >= 100:
		return fmt.Sprintf("%.0f", v)
	case math.Abs(v) >= 10:
		return fmt.Sprintf("%.1f", v)
	case math.Abs(v) >= 1:
		return fmt.Sprintf("%.2f", v)
	default:
		return fmt.Sprintf("%.3f", v)
	}
}

// milliseconds shows the median over the rounds of a quantile of the latencies.
func milliseconds(rounds []result, part float64) string {
	v := of(rounds, func(r result) float64 {
		if len(r.latencies) == 0 {
			return math.NaN()
		}
		return float64(share(r.latencies, part)) / float64(time.Millisecond)
	})
	return short(median(v))
}
