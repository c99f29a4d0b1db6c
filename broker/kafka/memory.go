package kafka

import (
	"math/bits"
	"sync"
)

// shelf keeps some memory of answered produce requests for the next ones. From the allocator, memory for each frame
// would have to be cleared, often fetched from the system page by page, and collected again, which together costs more
// than writing the batches. What has not been asked for during a whole sweep is let go.
type shelf struct {
	limit int64         // of the bytes that are kept and those that requests have, together
	full  chan struct{} // filled when so much was not kept that it should be collected

	mu    sync.Mutex // guards everything below
	bytes int64      // of all that is kept
	free  [classes][][]byte
	spare [classes]int // how many of them nobody needed since the last trim
	lost  int64        // bytes that were not kept since full was filled
}

// Memory is kept by its capacity in four steps from each power of two to the next.
const (
	minKept = 12 // as a power of two: smaller frames are not worth it
	maxKept = 24
	classes = 4 * (maxKept - minKept + 1)
)

// maxLost is how much memory of requests may wait for the collector. On its own it would come when there is as much of
// that as of memory in use, which doubles what the process takes; and it costs next to nothing here, because there are
// no pointers in it to follow.
const maxLost = 8 << 20

// class is where memory for size bytes belongs and how much that is; -1 and the size itself when it is not kept.
func class(size int) (index, capacity int) {
	e := bits.Len(uint(size - 1))
	if size <= 1<<(minKept-1) || e > maxKept {
		return -1, size
	}
	step := 1 << (e - 3)
	k := (size-1)/step + 1 // 5 to 8
	return 4*(e-minKept) + k - 5, k * step
}

// take returns empty memory for size bytes, nil when none is kept.
func (s *shelf) take(size int) []byte {
	i, _ := class(size)
	if i < 0 {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if len(s.free[i]) == 0 {
		if i++; i == classes || len(s.free[i]) == 0 { // the next larger will do
			return nil
		}
	}
	return s.pop(i)
}

// allocate makes empty memory for size bytes. used is what requests have by now: what is kept makes room for it.
func (s *shelf) allocate(size int, used int64) []byte {
	s.mu.Lock()
	for i := classes - 1; i >= 0 && s.bytes+used > s.limit; i-- {
		for len(s.free[i]) > 0 && s.bytes+used > s.limit {
			s.lose(cap(s.pop(i)))
		}
	}
	s.mu.Unlock()
	_, capacity := class(size)
	return make([]byte, 0, capacity)
}

// keep takes memory that nobody refers to any more. used is what requests still have.
func (s *shelf) keep(b []byte, used int64) {
	i, capacity := class(cap(b))
	if i < 0 || capacity != cap(b) {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.bytes+used+int64(cap(b)) > s.limit {
		s.lose(cap(b))
		return
	}
	s.free[i] = append(s.free[i], b)
	s.bytes += int64(cap(b))
}

// lose counts memory that is left to the collector. mu is held.
func (s *shelf) lose(bytes int) {
	if s.lost += int64(bytes); s.lost < maxLost {
		return
	}
	s.lost = 0
	select {
	case s.full <- struct{}{}:
	default: // it has been filled and nobody looked yet
	}
}

// trim lets go of what was not needed since the trim before.
func (s *shelf) trim() {
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range s.free {
		for range s.spare[i] {
			s.lose(cap(s.pop(i)))
		}
		s.spare[i] = len(s.free[i])
	}
}

// kept is how much is kept.
func (s *shelf) kept() int64 {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.bytes
}

// pop takes one off. mu is held.
func (s *shelf) pop(i int) []byte {
	n := len(s.free[i]) - 1
	b := s.free[i][n]
	s.free[i][n] = nil
	s.free[i] = s.free[i][:n]
	s.spare[i] = min(s.spare[i], n)
	s.bytes -= int64(cap(b))
	return b[:0]
}
