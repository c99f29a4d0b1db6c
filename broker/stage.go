package broker

import (
	"sidestream/broker/commitlog"
	"sidestream/broker/kafka"
	"sidestream/broker/record"
)

// maxGroupBytes bounds one write. More gains nothing, and an append must fit a segment.
const maxGroupBytes = 8 << 20

// outcome is what became of one append of a group.
type outcome struct {
	base int64 // offset of its first record
	end  int64 // offset after its last record
	err  error
}

// staged is a run of appends as it will be written.
type staged struct {
	group    []kafka.Append // the appends that were taken
	taken    int
	outcomes []outcome // one for each; of a fresh one filled in by settle
	fresh    []int     // which of them are written
	batches  [][]byte  // the bytes of those
}

// checker tells what a batch is to the sequence of its producer, given the batches that were checked before it.
type checker interface {
	Check(h record.Header) commitlog.Verdict
}

// stage decides about each append in turn and stops before one that would make the write too large.
func stage(group []kafka.Append, producers checker) staged {
	var g staged
	size := 0
	for _, a := range group {
		if size > 0 && size+len(a.Batch) > maxGroupBytes {
			break
		}
		o := outcome{base: -1, end: -1}
		switch v := producers.Check(a.Header); v.Kind {
		case commitlog.New, commitlog.UnknownProducer:
			g.fresh = append(g.fresh, len(g.outcomes))
			g.batches = append(g.batches, a.Batch)
			size += len(a.Batch)
		case commitlog.Duplicate:
			o.base, o.end = v.First, v.Last+1
		case commitlog.OldDuplicate:
			o.err = kafka.ErrDuplicateSequence
		case commitlog.OutOfOrder:
			o.err = kafka.ErrOutOfOrder
		case commitlog.StaleEpoch:
			o.err = kafka.ErrStaleProducer
		}
		g.outcomes = append(g.outcomes, o)
	}
	g.taken = len(g.outcomes)
	g.group = group[:g.taken]
	return g
}

// settle fills in what the write made of the fresh appends: consecutive offsets from base on, or the error for all, and
// then for the duplicates of them too, which lie at or above the log's end logEnd from before the write.
func (g *staged) settle(base, logEnd int64, err error) {
	if err != nil {
		for _, i := range g.fresh {
			g.outcomes[i].err = err
		}
		for i, o := range g.outcomes {
			if o.err == nil && o.base >= logEnd {
				g.outcomes[i] = outcome{base: -1, end: -1, err: err}
			}
		}
		return
	}
	for _, i := range g.fresh {
		end := base + int64(g.group[i].Header.LastOffsetDelta) + 1
		g.outcomes[i] = outcome{base: base, end: end}
		base = end
	}
}
