package consume

import "sync/atomic"

// budget is the memory that the messages of all partitions may take. The last
// quarter of it is kept for those that hold less than their part of that
// quarter, so that applications which do not acknowledge what they have cannot
// take the memory of the others' groups; and who holds nothing may have one
// batch whatever the others hold.
type budget struct {
	limit int64
	over  int64 // beyond it, for large batches of those who hold nothing
	held  atomic.Int64
}

// common is how much anybody may take.
func (b *budget) common() int64 { return b.limit - b.limit/4 }

// crowded says that the common part is taken.
func (b *budget) crowded() bool { return b.held.Load() >= b.common() }

// oneBatch is what to ask for where the answer is to be as small as it can be:
// brokers return the first batch whole.
const oneBatch = 1 << 10

// allow is how many bytes a partition that holds some may have of the budget
// now, one of so many partitions; 0: none.
func (b *budget) allow(own int64, partitions int) int64 {
	if free := b.common() - b.held.Load(); free > 0 {
		return free
	}
	part := b.limit / 4 / int64(max(1, partitions))
	if own == 0 {
		return max(part, oneBatch)
	}
	return max(0, part-own)
}

// smallBatch is what every partition may have on top of the budget, so that it
// goes on however little the others acknowledge. Hardly any batch takes more.
const smallBatch = 2 << 20

// admits says whether a batch may be held that takes so many bytes. A larger one
// waits while all of the budget is held, and as much as may be unpacked at a time
// beyond it: one for each partition, of some kilobytes each where it is stored,
// would take gigabytes.
func (b *budget) admits(bytes int64) bool {
	return bytes <= smallBatch || b.held.Load() < b.limit+b.over
}

// add accounts for bytes that are held from now on (n > 0) or no longer. freed
// says that there is room now where there was none.
func (b *budget) add(n int64) (now int64, freed bool) {
	now = b.held.Add(n)
	return now, n < 0 && now < b.common() && now-n >= b.common()
}

// holds implements sink.
func (o *owner) holds() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.win == nil {
		return 0
	}
	return o.win.Bytes()
}
