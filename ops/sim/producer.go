package sim

import "sidestream/broker/replica"

// producers is how many idempotent ones publish to each partition.
const producers = 2

// producer publishes one record after the other with acks=all, and repeats each
// under its sequence until it is answered.
type producer struct {
	sequence  int32 // of the record that is not acknowledged
	committed int32 // records of it that any high watermark has shown
}

// produce is a publisher, who asks whoever says that it leads.
func (w *world) produce(b *broker) {
	part := w.r.IntN(len(b.copies))
	c := b.copies[part]
	if !b.up || b.paused || c.Role != replica.Leader || c.End-c.HW >= 6 {
		return
	}
	if !c.Writable() { // with acks=1
		if w.r.IntN(3) == 0 {
			w.append(b, part, record{producer: -1})
		}
		return
	}
	k := w.r.IntN(producers)
	p := &w.producers[part][k]
	// What a broker knows of producers outlives their records: it is in snapshots.
	last, at := int32(-1), int64(-1)
	for o := int64(len(c.log)) - 1; o >= 0 && at < 0; o-- {
		if c.log[o].producer == int8(k) {
			last, at = c.log[o].sequence, o
		}
	}
	switch {
	case last == p.sequence && at < c.HW: // a duplicate, which has its answer at once
		w.answered(part, c.log[at])
	case last == p.sequence:
		c.waiting = append(c.waiting, at)
	case last == p.sequence-1:
		c.waiting = append(c.waiting, c.End)
		w.append(b, part, record{producer: int8(k), sequence: p.sequence})
	}
}

func (w *world) append(b *broker, part int, r record) {
	c := b.copies[part]
	w.value++
	r.epoch, r.value = c.Slot.Epoch, w.value
	c.log = append(c.log[:len(c.log):len(c.log)], r)
	w.step(b, part, replica.Appended{End: int64(len(c.log))})
}

// answered is a record that its producer knows to be written.
func (w *world) answered(part int, r record) {
	if r.producer >= 0 {
		if p := &w.producers[part][r.producer]; p.sequence == r.sequence {
			p.sequence++
		}
	}
}

// committed checks that each record of a producer is there once, in order.
func (w *world) committed(part int, offset int64, r record) {
	if r.producer < 0 {
		return
	}
	p := &w.producers[part][r.producer]
	if r.sequence != p.committed {
		w.fail("partition %d: record %d of producer %d was committed at offset %d when record %d was due", part, r.sequence, r.producer, offset, p.committed)
	}
	p.committed = r.sequence + 1
}

// trim is a leader that deletes what is old.
func (w *world) trim(b *broker) {
	part := w.r.IntN(len(b.copies))
	c := b.copies[part]
	if !b.up || b.paused || c.Role != replica.Leader || c.Deletable() <= c.Start {
		return
	}
	to := c.Start + 1 + int64(w.r.IntN(int(c.Deletable()-c.Start)))
	w.step(b, part, replica.Trimmed{Start: to})
	c.start = c.Start
	w.trimmed[part] = max(w.trimmed[part], c.Start)
}
