package commitlog

import (
	"sync"
	"time"

	"sidestream/broker/record"
)

// keptBatches is how many batches of a producer are remembered: as many as a
// client may have in flight (KIP-98; Kafka, ProducerStateEntry).
const keptBatches = 5

// VerdictKind is what the sequence check found.
type VerdictKind int

// The findings of [Producers.Check].
const (
	// New: the batch follows the producer's last one, or has no producer.
	New VerdictKind = iota
	// Duplicate: the batch is in the log, at First to Last. It is answered as
	// the original is, once that is durable.
	Duplicate
	// OldDuplicate: the batch lies before the five that are remembered; its
	// offsets are not known any more (Kafka's DUPLICATE_SEQUENCE_NUMBER).
	OldDuplicate
	// OutOfOrder: a batch before it is missing (OUT_OF_ORDER_SEQUENCE_NUMBER).
	OutOfOrder
	// StaleEpoch: a newer epoch of the producer has written
	// (INVALID_PRODUCER_EPOCH).
	StaleEpoch
	// UnknownProducer: nothing is remembered of the producer, because it is
	// new or was forgotten. The batch is to be appended like a New one.
	UnknownProducer
)

func (k VerdictKind) String() string {
	names := [...]string{"new", "duplicate", "old duplicate", "out of order", "stale epoch", "unknown producer"}
	if k < 0 || int(k) >= len(names) {
		return "invalid verdict"
	}
	return names[k]
}

// Append tells whether the batch is to be appended.
func (k VerdictKind) Append() bool { return k == New || k == UnknownProducer }

// Verdict is the result of a sequence check.
type Verdict struct {
	Kind        VerdictKind
	First, Last int64 // the offsets of a Duplicate's original
}

// batchRef is one remembered batch of a producer.
type batchRef struct {
	firstSeq, lastSeq int32
	last              int64 // offset of its last record
	delta             int32 // last minus first offset
}

// producer is what a log remembers of an idempotent producer.
type producer struct {
	epoch   int16
	n       int8
	batches [keptBatches]batchRef // the first n, oldest first
	seen    int64                 // ms, by the broker's clock; noTime: not known
}

// check is the sequence check of one batch against the producer's state.
func (p *producer) check(h record.Header) Verdict {
	switch {
	case h.ProducerEpoch < p.epoch:
		return Verdict{Kind: StaleEpoch}
	case h.ProducerEpoch > p.epoch:
		if h.BaseSequence != 0 { // a new epoch counts from 0
			return Verdict{Kind: OutOfOrder}
		}
		return Verdict{Kind: New}
	case p.n == 0:
		return Verdict{Kind: UnknownProducer}
	}
	lastSeq := h.LastSequence()
	for _, b := range p.batches[:p.n] {
		if b.firstSeq == h.BaseSequence && b.lastSeq == lastSeq {
			return Verdict{Kind: Duplicate, First: b.last - int64(b.delta), Last: b.last}
		}
	}
	newest := p.batches[p.n-1].lastSeq
	if h.BaseSequence == nextSequence(newest) {
		return Verdict{Kind: New}
	}
	// Sequences run in a circle of 2^31: what ends in the half behind the
	// oldest batch is old. Anything else begins too early or overlaps.
	if behind := uint32(p.batches[0].firstSeq-1-lastSeq) & (1<<31 - 1); behind < 1<<30 {
		return Verdict{Kind: OldDuplicate}
	}
	return Verdict{Kind: OutOfOrder}
}

// nextSequence is the sequence number after seq: 0 follows 2147483647.
func nextSequence(seq int32) int32 { return int32((int64(seq) + 1) & (1<<31 - 1)) }

// add remembers an appended batch.
func (p *producer) add(h record.Header, seen int64) {
	if h.ProducerEpoch != p.epoch {
		p.epoch, p.n = h.ProducerEpoch, 0
	}
	if seen == noTime { // as young as the next look
		p.seen = noTime
	} else {
		p.seen = max(p.seen, seen)
	}
	if h.BaseSequence < 0 { // a transaction marker has no sequence
		return
	}
	if p.n == keptBatches {
		copy(p.batches[:], p.batches[1:])
		p.n--
	}
	p.batches[p.n] = batchRef{
		firstSeq: h.BaseSequence, lastSeq: h.LastSequence(),
		last: h.LastOffset(), delta: h.LastOffsetDelta,
	}
	p.n++
}

// Producers is the sequence state of a log's idempotent producers. It is safe
// for concurrent use. A check and the append that follows from it belong
// together: whoever appends must not let another append come between.
type Producers struct {
	mu   sync.Mutex // guards what follows; taken inside Log.mu
	byID map[int64]*producer
	next int64 // the log's end, to know the offsets of staged batches
}

// Check tells whether a batch may be appended now. It changes nothing; Append
// does. A batch without a producer id is always New.
func (p *Producers) Check(h record.Header) Verdict {
	if h.ProducerID < 0 {
		return Verdict{Kind: New}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.byID[h.ProducerID]
	if !ok {
		return Verdict{Kind: UnknownProducer}
	}
	return known.check(h)
}

// remembers tells whether the batch is one of those that its producer's next
// batches are checked against.
func (p *Producers) remembers(h record.Header) bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	known, ok := p.byID[h.ProducerID]
	if !ok || h.ProducerID < 0 || known.epoch != h.ProducerEpoch {
		return false
	}
	for _, b := range known.batches[:known.n] {
		if b.last == h.LastOffset() {
			return true
		}
	}
	return false
}

// Len is how many producers are remembered.
func (p *Producers) Len() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.byID)
}

// add remembers a batch that was appended or found in the log.
func (p *Producers) add(h record.Header, seen int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = h.NextOffset()
	if h.ProducerID < 0 {
		return
	}
	if p.byID == nil { // most logs have no producers
		p.byID = map[int64]*producer{}
	}
	known, ok := p.byID[h.ProducerID]
	if !ok {
		known = &producer{epoch: h.ProducerEpoch}
		p.byID[h.ProducerID] = known
	}
	if h.ProducerEpoch >= known.epoch {
		known.add(h, seen)
	}
}

// unsee says that it is not known when the producers were seen last.
func (p *Producers) unsee() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for _, known := range p.byID {
		known.seen = noTime
	}
}

// expire forgets producers that have been silent for longer than after. Of whom
// it is not known when they were seen, or who were in a time to come, are seen
// now.
func (p *Producers) expire(now time.Time, after time.Duration) (forgotten int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for id, known := range p.byID {
		if known.seen == noTime || known.seen > now.UnixMilli()+clockTolerance {
			known.seen = now.UnixMilli()
			continue
		}
		if now.UnixMilli()-known.seen >= after.Milliseconds() {
			delete(p.byID, id)
			forgotten++
		}
	}
	if len(p.byID) == 0 {
		p.byID = nil
	}
	return forgotten
}

// replace sets the whole state.
func (p *Producers) replace(byID map[int64]*producer, next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.byID, p.next = byID, next
}

// endAt notes the log's end.
func (p *Producers) endAt(next int64) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.next = next
}

// Stage checks the batches that will go into one Append together, where one may
// follow another that is not in the log yet.
type Stage struct {
	p    *Producers
	byID map[int64]*producer // copies, as they will be
	next int64
}

// Stage begins a check of several batches. Show it every batch in order, those
// without a producer id too, and append exactly those whose verdict says so.
func (p *Producers) Stage() *Stage {
	p.mu.Lock()
	defer p.mu.Unlock()
	return &Stage{p: p, next: p.next}
}

// Check is like [Producers.Check], and counts a batch to be appended as
// appended: the offsets of its duplicate are those that it will have.
func (s *Stage) Check(h record.Header) Verdict {
	h.BaseOffset = s.next
	v := Verdict{Kind: New}
	if h.ProducerID >= 0 {
		staged, ok := s.byID[h.ProducerID]
		if !ok {
			staged = s.p.copyOf(h)
		}
		if v = staged.check(h); v.Kind.Append() {
			staged.add(h, 0)
		}
		if s.byID == nil {
			s.byID = map[int64]*producer{}
		}
		s.byID[h.ProducerID] = staged
	}
	if v.Kind.Append() {
		s.next = h.NextOffset()
	}
	return v
}

// copyOf is a copy of the state of the batch's producer, without batches when it
// is not known.
func (p *Producers) copyOf(h record.Header) *producer {
	p.mu.Lock()
	defer p.mu.Unlock()
	if known, ok := p.byID[h.ProducerID]; ok {
		c := *known
		return &c
	}
	return &producer{epoch: h.ProducerEpoch}
}
