package main

import (
	"math"
	"slices"

	"sidestream/ops/bench/measure"
)

// figures are those that could be measured, in the order of the targets.
func (b *bench) figures() (out measure.Figures) {
	add := out.Add
	compare := func(step, peer string, what func(result) float64) float64 {
		r := b.results[step]
		return measure.Median(measure.Ratios(of(r[sidestream], what), of(r[peer], what)))
	}
	for _, size := range []int{100, 1024} {
		for _, producers := range []int{1, 8, 64} {
			name := produceLoad{producers: producers, size: size}.name()
			add(name+" cpu/bare-loop", compare(name, bareProduce, result.CPUPerRecord), "<=", 1.5)
			add(name+" rate/kafka", compare(name, kafka, result.Rate), ">=", 0.95)
			add(name+" cpu/kafka", compare(name, kafka, result.CPUPerRecord), "<=", 1./3)
		}
	}
	add("peak memory/kafka", b.peak(sidestream)/b.peak(kafka), "<=", 0.1)
	for _, producers := range []int{1, 8, 64} { // of the other loads the client makes less than the disk takes
		name := produceLoad{producers: producers, size: 1024, plain: true, synced: true}.name()
		add(name+" bytes/bare-disk", compare(name, bareDiskly, result.written), ">=", 0.8)
	}
	one := produceLoad{producers: 1, size: 1024, plain: true, synced: true, oneByOne: true}.name()
	many := produceLoad{producers: 64, size: 1024, plain: true, synced: true, oneByOne: true}.name()
	add(one+" rate/bare-disk-4KiB", compare(one, bareDiskly, result.Rate), ">=", 0.8)
	add("single fsync 64p/1p", measure.Median(of(b.results[many][sidestream], result.Rate))/measure.Median(of(b.results[one][sidestream], result.Rate)), ">=", 10)
	add("fetch 8c rate/bare-sendfile", compare("fetch 8c", bareSend, result.Megabytes), ">=", 0.95)
	add("fetch 8c cpu/bare-sendfile", compare("fetch 8c", bareSend, result.CPUPerGB), "<=", 1.15)
	if c := b.calls; c.answers > 0 {
		add("fetch sendfile bytes of an answer", float64(c.bytes["sendfile"])/float64(c.answers), ">=", 0.8*fetchBytes)
		add("fetch read/sent", float64(c.into())/float64(c.bytes["sendfile"]), "<=", 0.01)
	}
	ofStarts := func(what func(starting) float64) float64 {
		var v []float64
		for _, s := range b.starts[sidestream] {
			v = append(v, what(s))
		}
		return measure.Median(v)
	}
	add("clean start of 1000 partitions s", ofStarts(func(s starting) float64 { return s.clean.Seconds() }), "<=", 1)
	add("crash start of 1000 partitions s", ofStarts(func(s starting) float64 { return s.crash.Seconds() }), "<=", 3)
	if n := b.idle[sidestream]; n > 0 {
		add("idle memory MB", float64(n)/1e6, "<=", 40)
	}
	add("idle memory with 1000 partitions MB", ofStarts(func(s starting) float64 { return float64(s.idle) / 1e6 }), "<=", 40)
	add("peak memory MB", b.peak(sidestream)/1e6, "<=", 150)
	return out
}

// written is the bytes a second that were synced: of our broker those of its
// batches, which may be compressed; of the disk loop what it wrote.
func (r result) written() float64 { return float64(r.synced) / r.Took.Seconds() }

// peak is the highest anonymous memory of a server in any step, NaN for none.
func (b *bench) peak(name string) float64 {
	var all []float64
	for _, servers := range b.results {
		for _, r := range servers[name] {
			all = append(all, float64(r.RSS))
		}
	}
	if len(all) == 0 {
		return math.NaN()
	}
	return slices.Max(all)
}
