package main

import (
	"fmt"
	"strings"
	"time"

	"sidestream/ops/bench/measure"
)

// report is the whole outcome: what was measured where, the table, and at its
// end a line for each figure.
func (b *bench) report(begun time.Time, average string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "Measured %s to %s on %s. Load average at the beginning: %s.\n",
		begun.Format("2006-01-02 15:04"), time.Now().Format("15:04 MST"), measure.Machine(), average)
	fmt.Fprintf(&out, "Rounds: %d of %s, after one that is thrown away. Shown are medians, and ranges in brackets.\n", b.o.rounds, b.o.window)
	fmt.Fprintf(&out, "\nEvents of %d bytes; `64c` are 64 connections. Batches have %d events a request. `half` is at half the rate of the line before, evenly; its times count from when a request was due. CPU is of broker and sidecar together, memory the sidecar's own. `spool` are lines with `ack=spool`, while what is spooled goes on to the broker.\n\n", eventSize, lines.events)
	out.WriteString("| load | server | events/s | request p50 ms | p99 ms | CPU µs/event | sidecar CPU µs/event | client CPU µs/event | memory MB | messages a batch | of bare |\n")
	out.WriteString("|---|---|---|---|---|---|---|---|---|---|---|\n")
	for _, step := range steps() {
		for _, c := range step {
			if rounds := b.results[c]; len(rounds) > 0 {
				out.WriteString(b.row(c, rounds))
			}
		}
	}
	out.WriteString("\n" + b.figures().Lines())
	return out.String()
}

func (b *bench) row(c contender, rounds []outcome) string {
	spread := func(figure func(outcome) float64) string { return measure.Spread(of(rounds, figure)) }
	ratio := ""
	if ceiling := b.results[contender{bare, c.load}]; len(ceiling) > 0 && c.server != bare {
		ratio = measure.Spread(measure.Ratios(of(rounds, outcome.Rate), of(ceiling, outcome.Rate)))
	}
	sidecar, size := "", ""
	if c.server == sidestream {
		sidecar = spread(outcome.frontCPUPerRecord)
		if c.step != spool.step { // what is spooled goes on later
			size = spread(outcome.batchSize)
		}
	}
	var times [][]time.Duration
	for _, r := range rounds {
		times = append(times, r.Latencies)
	}
	return "| " + strings.Join([]string{c.name(), c.server, spread(outcome.Rate),
		measure.Milliseconds(times, 0.5), measure.Milliseconds(times, 0.99),
		spread(outcome.CPUPerRecord), sidecar, spread(outcome.clientCPU), spread(outcome.frontMB), size, ratio}, " | ") + " |\n"
}

func (o outcome) batchSize() float64         { return o.batch }
func (o outcome) frontCPUPerRecord() float64 { return o.frontCPU.Seconds() * 1e6 / float64(o.Records) }
func (o outcome) Rate() float64              { return o.Result.Rate() }
func (o outcome) CPUPerRecord() float64      { return o.Result.CPUPerRecord() }

// of takes one figure of every round.
func of(rounds []outcome, figure func(outcome) float64) []float64 {
	out := make([]float64, len(rounds))
	for i, r := range rounds {
		out[i] = figure(r)
	}
	return out
}

// median of a figure of ours, NaN where it was not measured.
func (b *bench) median(l load, figure func(outcome) float64) float64 {
	return measure.Median(of(b.results[contender{sidestream, l}], figure))
}

// beside is our rate by another's, round by round.
func (b *bench) beside(l load, server string) float64 {
	return measure.Median(measure.Ratios(of(b.results[contender{sidestream, l}], outcome.Rate), of(b.results[contender{server, l}], outcome.Rate)))
}

// figures are those that have a target.
func (b *bench) figures() (out measure.Figures) {
	out.Add("single 64c rate/bare", b.beside(single, bare), ">=", 0.6)
	out.Add("single 64c rate/jetstream", b.beside(single, jetStream), ">=", 1)
	out.Add("single 64c rate/jetstream sync always", b.beside(single, jetStreamAlways), ">=", 1)
	out.Add("ndjson events/s", b.median(ndjson, outcome.Rate), ">=", 500_000)
	out.Add("lines events/s", b.median(lines, outcome.Rate), ">=", 1_000_000)
	out.Add("spool events/s", b.median(spool, outcome.Rate), ">=", 200_000)
	memory := 0.0
	for _, l := range []load{single, lines, ndjson, spool} {
		out.Add(l.step+" half p99 ms", b.median(l.at(true), outcome.p99), "<=", 10)
		if m := b.median(l, outcome.frontMB); m > memory { // false where it was not measured
			memory = m
		}
	}
	if memory > 0 {
		out.Add("sidecar memory MB", memory, "<=", 150)
	}
	return out
}
