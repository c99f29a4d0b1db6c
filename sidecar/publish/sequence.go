package publish

// Sequence counts requests that are to be written in the order in which they
// begin, so that one that failed does not come behind later ones by another way.
type Sequence struct {
	turn chan struct{} // held by one at a time; no mutex, because it is held during I/O
	last int
}

// NewSequence makes one of which nothing has begun.
func NewSequence() *Sequence { return &Sequence{turn: make(chan struct{}, 1)} }

// Begin gives a request its place.
func (q *Sequence) Begin() (place int) {
	q.turn <- struct{}{}
	defer func() { <-q.turn }()
	q.last++
	return q.last
}

// IfLast calls do, unless a later request than that at the place has begun. None
// begins meanwhile.
func (q *Sequence) IfLast(place int, do func()) bool {
	q.turn <- struct{}{}
	defer func() { <-q.turn }()
	if place != q.last {
		return false
	}
	do()
	return true
}
