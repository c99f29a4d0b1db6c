// Package measure is what the benches have in common: servers as processes,
// their processor time and memory while a load runs, and the words and numbers
// of a report. It runs on Linux only.
package measure

import (
	"fmt"
	"math"
	"slices"
	"time"
)

// Rate is in records a second.
func (r Result) Rate() float64 { return float64(r.Records) / r.Took.Seconds() }

// Megabytes are millions of bytes of payload a second.
func (r Result) Megabytes() float64 { return float64(r.Bytes) / 1e6 / r.Took.Seconds() }

// CPUPerGB is in seconds.
func (r Result) CPUPerGB() float64 { return r.CPU.Seconds() / (float64(r.Bytes) / 1e9) }

// CPUPerRecord is in microseconds.
func (r Result) CPUPerRecord() float64 { return r.CPU.Seconds() * 1e6 / float64(r.Records) }

// Ratios divides round by round, because what the machine does besides changes
// from one to the next.
func Ratios(a, b []float64) []float64 {
	out := make([]float64, min(len(a), len(b)))
	for i := range out {
		out[i] = a[i] / b[i]
	}
	return out
}

// Median of an even number is the mean of the middle two; of none it is NaN.
func Median(values []float64) float64 {
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

// Spread shows the median and, of more than one round, the range.
func Spread(values []float64) string {
	if len(values) == 0 {
		return "–"
	}
	if len(values) == 1 {
		return Short(values[0])
	}
	return fmt.Sprintf("%s [%s–%s]", Short(Median(values)), Short(slices.Min(values)), Short(slices.Max(values)))
}

// Short shows three digits or so.
func Short(v float64) string {
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

// Milliseconds shows the median over the rounds of a quantile of the latencies.
func Milliseconds(rounds [][]time.Duration, part float64) string {
	var v []float64
	for _, sorted := range rounds {
		if len(sorted) > 0 {
			v = append(v, float64(Share(sorted, part))/float64(time.Millisecond))
		}
	}
	return Short(Median(v))
}
