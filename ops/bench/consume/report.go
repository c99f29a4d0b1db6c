package main

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sidestream/ops/bench/measure"
)

// report is the whole outcome: what was measured where, the tables, and at its
// end a line for each figure.
func (b *bench) report(begun time.Time, average string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "Measured %s to %s on %s. Load average at the beginning: %s.\n",
		begun.Format("2006-01-02 15:04"), time.Now().Format("15:04 MST"), measure.Machine(), average)
	fmt.Fprintf(&out, "Rounds: %d, after one that is thrown away. Shown are medians, and ranges in brackets.\n", b.o.rounds)
	if len(b.results) > 0 {
		fmt.Fprintf(&out, "\nPulls of %d messages, each acknowledged explicitly; `8p` are 8 pulls at once. Figures compare the better of both loads.\n\n", batch)
		out.WriteString("| load | server | messages/s | MB/s | pull p50 ms | pull p99 ms | CPU µs/message | client CPU µs/message | memory MB | our rate ÷ | our CPU ÷ |\n")
		out.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	}
	for _, size := range sizes {
		for _, c := range contenders(size) {
			if rounds := b.results[c]; len(rounds) > 0 {
				out.WriteString(row(c, rounds, b.results[contender{sidestream, c.load}]))
			}
		}
	}
	if len(b.quiet) > 0 {
		fmt.Fprintf(&out, "\n%d waiting pulls and no messages: %s %% of a core for the sidecar, %s MB.\n", b.o.waiters,
			measure.Spread(of(b.quiet, percent)), measure.Spread(of(b.quiet, memory)))
	}
	if len(b.soon) > 0 {
		fmt.Fprintf(&out, "\n%d messages/s, published one by one, to %d waiting pulls of one group over %d partitions, ms\n\n", b.o.rate, b.o.waiters, waitingPartitions)
		out.WriteString("| from | p50 | p99 | p99.9 |\n|---|---|---|---|\n")
		for _, from := range []struct {
			name string
			of   func(arrival) []time.Duration
		}{{"the publisher's answer", afterAnswer}, {"the begin of its request", afterBegin}} {
			fmt.Fprintf(&out, "| %s | %s | %s | %s |\n", from.name, b.soonest(from.of, 0.5), b.soonest(from.of, 0.99), b.soonest(from.of, 0.999))
		}
	}
	out.WriteString("\n" + b.figures().Lines())
	return out.String()
}

func afterAnswer(a arrival) []time.Duration { return a.answered }
func afterBegin(a arrival) []time.Duration  { return a.published }

func memory(r measure.Result) float64 { return float64(r.RSS) / 1e6 }

func (o outcome) memory() float64 { return memory(o.Result) }

// soonest shows a quantile of the arrivals over the rounds.
func (b *bench) soonest(which func(arrival) []time.Duration, part float64) string {
	return measure.Spread(b.quantiles(which, part))
}

// quantiles are those of each round, in milliseconds.
func (b *bench) quantiles(which func(arrival) []time.Duration, part float64) (ms []float64) {
	for _, a := range b.soon {
		ms = append(ms, float64(measure.Share(which(a), part))/float64(time.Millisecond))
	}
	return ms
}

// row is a line of a table. ours are the rounds of Sidestream, for the ratios.
func row(c contender, rounds, ours []outcome) string {
	spread := func(figure func(outcome) float64) string { return measure.Spread(of(rounds, figure)) }
	rate, cpu := "", ""
	if c.server != sidestream {
		rate = measure.Spread(measure.Ratios(of(ours, outcome.Rate), of(rounds, outcome.Rate)))
		cpu = measure.Spread(measure.Ratios(of(ours, outcome.CPUPerRecord), of(rounds, outcome.CPUPerRecord)))
	}
	var times [][]time.Duration
	for _, r := range rounds {
		times = append(times, r.Latencies)
	}
	return "| " + strings.Join([]string{c.name(), c.server, spread(outcome.Rate), spread(outcome.Megabytes),
		measure.Milliseconds(times, 0.5), measure.Milliseconds(times, 0.99),
		spread(outcome.CPUPerRecord), spread(outcome.clientCPU), spread(outcome.memory), rate, cpu}, " | ") + " |\n"
}

// of takes one figure of every round.
func of[R any](rounds []R, figure func(R) float64) []float64 {
	out := make([]float64, len(rounds))
	for i, r := range rounds {
		out[i] = figure(r)
	}
	return out
}

// best is the better of a server's loads in each round.
func (b *bench) best(server string, size int, what func(outcome) float64, better func(...float64) float64) (all []float64) {
	for _, c := range contenders(size) {
		if c.server != server {
			continue
		}
		for i, v := range of(b.results[c], what) {
			if i == len(all) {
				all = append(all, v)
			}
			all[i] = better(all[i], v)
		}
	}
	return all
}

// beside compares our better load with JetStream's, round by round.
func (b *bench) beside(size int, what func(outcome) float64, better func(...float64) float64) float64 {
	return measure.Median(measure.Ratios(b.best(sidestream, size, what, better), b.best(jetStream, size, what, better)))
}

func highest(v ...float64) float64 { return slices.Max(v) }
func lowest(v ...float64) float64  { return slices.Min(v) }

// figures are those that have a target.
func (b *bench) figures() (out measure.Figures) {
	for _, size := range sizes {
		name := strings.TrimSuffix(load{size: size, pullers: 1}.name(), " 1p")
		out.Add(name+" rate/jetstream", b.beside(size, outcome.Rate, highest), ">=", 2)
		out.Add(name+" cpu/jetstream", b.beside(size, outcome.CPUPerRecord, lowest), "<=", 0.5)
	}
	out.Add(fmt.Sprintf("%d waiting pulls cpu %%", b.o.waiters), measure.Median(of(b.quiet, percent)), "<=", 2)
	out.Add("publish answer to waiting pull p99 ms", measure.Median(b.quantiles(afterAnswer, 0.99)), "<=", 10)
	return out
}
