package main

import (
	"fmt"
	"strings"
	"time"

	"sidestream/ops/bench/measure"
)

// report is the whole outcome: what was measured where, the tables, and at its
// end a line for each figure.
func (b *bench) report(begun time.Time, load string) string {
	var out strings.Builder
	fmt.Fprintf(&out, "Measured %s to %s on %s. Load average at the beginning: %s.\n", begun.Format("2006-01-02 15:04"), time.Now().Format("15:04 MST"), measure.Machine(), load)
	fmt.Fprintf(&out, "Rounds: %d of %s each, after one of %s that is thrown away.\n", b.o.rounds, b.o.window, b.o.warm)
	var last string
	for _, st := range allSteps() {
		r := b.results[st.name]
		if r == nil {
			continue
		}
		if st.group != last {
			last = st.group
			fmt.Fprintf(&out, "\n%s\n\n", st.group)
			out.WriteString("| load | server | records/s | MB/s | p50 ms | p99 ms | p99.9 ms | CPU s/GB | CPU µs/record | peak RSS MB | KB a sync | our rate ÷ | our CPU ÷ |\n")
			out.WriteString("|---|---|---|---|---|---|---|---|---|---|---|---|---|\n")
		}
		for _, name := range append([]string{sidestream}, st.peers...) {
			if rounds := r[name]; len(rounds) > 0 {
				out.WriteString(row(st, name, rounds, r[sidestream]))
			}
		}
	}
	b.reportStarts(&out)
	if last != "" {
		out.WriteString("\nHighest anonymous memory in any step:")
		for _, name := range []string{sidestream, kafka, bareProduce} {
			if v := b.peak(name); v > 0 {
				fmt.Fprintf(&out, " %s %s MB;", name, measure.Short(v/1e6))
			}
		}
		out.WriteString(" idle after the start:")
		for _, name := range []string{sidestream, kafka} {
			if v := b.idle[name]; v > 0 {
				fmt.Fprintf(&out, " %s %s MB;", name, measure.Short(float64(v)/1e6))
			}
		}
		out.WriteString("\n")
	}
	if c := b.calls; c.why != "" {
		fmt.Fprintf(&out, "\nSystem calls of a fetch were not counted: %s.\n", c.why)
	} else if c.answers > 0 {
		fmt.Fprintf(&out, "\nBytes that system calls of our broker moved for %d answers of 1 MiB (strace): %v\n", c.answers, c.bytes)
	}
	out.WriteString("\n" + b.figures().Lines())
	return out.String()
}

// row is a line of a table. ours are the rounds of our broker, for the ratios.
func row(st step, name string, rounds, ours []result) string {
	mean := func(figure func(result) float64) string { return measure.Spread(of(rounds, figure)) }
	perSync, rate, cpu := "", "", ""
	if rounds[0].syncs > 0 {
		perSync = mean(func(r result) float64 { return float64(r.synced) / float64(r.syncs) / 1e3 })
	}
	rss := mean(func(r result) float64 { return float64(r.RSS) / 1e6 })
	perGB, perRecord := mean(result.CPUPerGB), mean(result.CPUPerRecord)
	switch name {
	case sidestream:
	case bareDiskly:
		by := result.written
		if st.disk.bytes > 0 { // a fixed size: by syncs
			by = result.Rate
		}
		rate = measure.Spread(measure.Ratios(of(ours, by), of(rounds, by)))
		rss, perRecord = "", ""
	default:
		rate = measure.Spread(measure.Ratios(of(ours, result.Rate), of(rounds, result.Rate)))
		cpu = measure.Spread(measure.Ratios(of(ours, result.CPUPerRecord), of(rounds, result.CPUPerRecord)))
	}
	return "| " + strings.Join([]string{st.name, name, mean(result.Rate), mean(result.Megabytes),
		milliseconds(rounds, 0.5), milliseconds(rounds, 0.99), milliseconds(rounds, 0.999),
		perGB, perRecord, rss, perSync, rate, cpu}, " | ") + " |\n"
}

func (b *bench) reportStarts(out *strings.Builder) {
	if len(b.starts) == 0 {
		return
	}
	fmt.Fprintf(out, "\nStart on %d partitions, until every one answers; the crash start with %d MB written since the last recovery points\n\n", startPartitions, b.o.tail>>20)
	out.WriteString("| server | after a clean stop, s | after kill -9, s | read again, MB | idle RSS, MB |\n|---|---|---|---|---|\n")
	for _, name := range []string{sidestream, kafka} {
		starts := b.starts[name]
		if len(starts) == 0 {
			continue
		}
		of := func(what func(starting) float64) string {
			var v []float64
			for _, s := range starts {
				v = append(v, what(s))
			}
			return measure.Spread(v)
		}
		scanned := "–"
		if name == sidestream {
			scanned = of(func(s starting) float64 { return float64(s.scanned) / 1e6 })
		}
		fmt.Fprintf(out, "| %s | %s | %s | %s | %s |\n", name, of(func(s starting) float64 { return s.clean.Seconds() }),
			of(func(s starting) float64 { return s.crash.Seconds() }), scanned, of(func(s starting) float64 { return float64(s.idle) / 1e6 }))
	}
}
