package offsets

import "math"

// Lists of ranges here are sorted, disjoint and not adjacent, as in a [Position].

// unite is the union of two lists, in linear time.
func unite(a, b []Range) []Range {
	if len(a)+len(b) == 0 {
		return nil
	}
	out := make([]Range, 0, len(a)+len(b))
	for len(a)+len(b) > 0 {
		var r Range
		if len(b) == 0 || len(a) > 0 && a[0].From <= b[0].From {
			r, a = a[0], a[1:]
		} else {
			r, b = b[0], b[1:]
		}
		if n := len(out); n > 0 && r.From <= out[n-1].To {
			out[n-1].To = max(out[n-1].To, r.To)
		} else {
			out = append(out, r)
		}
	}
	return out
}

// intersect is what is in both lists, in linear time; nil when nothing is.
func intersect(a, b []Range) (out []Range) {
	for len(a) > 0 && len(b) > 0 {
		if from, to := max(a[0].From, b[0].From), min(a[0].To, b[0].To); from < to {
			out = append(out, Range{from, to})
		}
		if a[0].To < b[0].To {
			a = a[1:]
		} else {
			b = b[1:]
		}
	}
	return out
}

// cut is the part of a list from low and below high; nil when there is none.
func cut(list []Range, low, high int64) []Range {
	return intersect(list, []Range{{low, high}})
}

// subtract is what of a list is not in without, in linear time; nil when nothing
// is.
func subtract(list, without []Range) (out []Range) {
	for _, r := range list {
		for len(without) > 0 && without[0].To <= r.From {
			without = without[1:]
		}
		for _, w := range without {
			if w.From >= r.To {
				break
			}
			if r.From < w.From {
				out = append(out, Range{r.From, w.From})
			}
			r.From = w.To
		}
		if r.From < r.To {
			out = append(out, r)
		}
	}
	return out
}

// notHanded is what a position says was never handed out.
func (p Position) notHanded() []Range {
	return unite(p.Passed, []Range{{p.HandOut, math.MaxInt64}})
}

// WasPassed says whether the offset was never handed out although it lies below
// the hand-out edge.
func (p Position) WasPassed(offset int64) bool {
	for _, r := range p.Passed {
		if offset < r.To {
			return offset >= r.From
		}
	}
	return false
}

// SetPassed replaces the ranges that were passed over: sorted, disjoint, below
// the hand-out edge and without what is acknowledged.
func (p *Position) SetPassed(list []Range) {
	p.Passed = subtract(cut(list, p.Low, p.HandOut), p.Acked)
}
