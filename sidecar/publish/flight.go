package publish

import (
	"errors"
	"slices"
	"sync"

	"sidestream/sdk/api"
)

// flight is the records of one request on their way, and who waits for them.
// The records outlive the waiter: it may give up, they go on.
type flight struct {
	done chan struct{} // closed when all have landed

	// mu guards results, errs and left. The brokers' client writes them
	// while the waiter may give up and read.
	mu      sync.Mutex
	results []api.BatchResult
	errs    []error // ours, or the client's own; nil for what is written
	landed  []bool
	left    int
}

func newFlight(n int) *flight {
	return &flight{done: make(chan struct{}), results: make([]api.BatchResult, n), errs: make([]error, n), landed: make([]bool, n), left: n}
}

// land settles record i.
func (f *flight) land(i int, partition int32, offset int64, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if f.landed[i] {
		return
	}
	f.landed[i] = true
	f.results[i] = api.BatchResult{Partition: partition, Offset: offset}
	f.errs[i] = err
	if f.left--; f.left == 0 {
		close(f.done)
	}
}

// again takes back those records that ended with one of errs, to be sent once
// more. A record stays as it is when a later one of its partition is written
// already: their order would be lost. Nobody else waits or lands while it runs:
// it is called between attempts.
func (f *flight) again(errs ...error) (which []int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	written := map[int32]bool{} // partitions, looking from the end
	for i := len(f.errs) - 1; i >= 0; i-- {
		if !f.landed[i] {
			continue
		}
		err, partition := f.errs[i], f.results[i].Partition
		if err == nil {
			written[partition] = true
		}
		if written[partition] || !slices.ContainsFunc(errs, func(e error) bool { return errors.Is(err, e) }) {
			continue
		}
		f.landed[i], f.errs[i] = false, nil
		which = append(which, i)
	}
	slices.Reverse(which)
	if len(which) > 0 && f.left == 0 {
		f.done = make(chan struct{})
	}
	f.left += len(which)
	return which
}

// fates is what is known now, for the waiter to keep.
func (f *flight) fates() (results []api.BatchResult, errs []error, landed []bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	return append([]api.BatchResult(nil), f.results...), append([]error(nil), f.errs...), append([]bool(nil), f.landed...)
}
