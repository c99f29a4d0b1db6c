package consume

// divide shares out at most so many messages among topics, in the order of whose
// turn it is, of which each has so many ready: as evenly as what they have
// allows, so that one with few is not left waiting behind one with many. Where
// other pulls are hungry for the same, each takes from its part of the topics
// only: a partition in order is out to one pull at a time.
func divide(most int, ready []int, hungry int) []int {
	portions := make([]int, len(ready))
	var open []int // topics that could give more
	for i, n := range ready {
		if n > 0 {
			open = append(open, i)
		}
	}
	open = open[:(len(open)+hungry)/(hungry+1)]
	for most > 0 && len(open) > 0 {
		each := most / len(open)
		if each == 0 {
			open, each = open[:most], 1
		}
		var more []int
		for _, i := range open {
			n := min(each, ready[i]-portions[i])
			portions[i] += n
			most -= n
			if portions[i] < ready[i] {
				more = append(more, i)
			}
		}
		open = more
	}
	return portions
}
