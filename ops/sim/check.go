package sim

import (
	"sidestream/broker/replica"
)

// shown checks what a high watermark makes visible: no offset ever has two
// values, whoever shows it. Publishers who waited for it are answered.
func (w *world) shown(b *broker, part int, c *copyOf, from, to int64) {
	if to > int64(len(c.log)) {
		w.fail("the high watermark %d of replica %d of partition %d is behind its end %d", to, b.id, part, len(c.log))
		return
	}
	for o := from; o < to; o++ {
		value, known := w.seen[part][o]
		if known && value != c.log[o].value {
			w.fail("offset %d of partition %d was committed twice: %d and %d (replica %d, %s of epoch %d)", o, part, value, c.log[o].value, b.id, c.Role, c.Slot.Epoch)
			return
		}
		if !known && c.Role != replica.Leader {
			w.fail("offset %d of partition %d is shown by follower %d before any leader", o, part, b.id)
			return
		}
		w.seen[part][o] = c.log[o].value
		if !known {
			w.committed(part, o, c.log[o])
		}
	}
	if c.Role != replica.Leader {
		return
	}
	rest := c.waiting[:0]
	for _, o := range c.waiting {
		if o >= to {
			rest = append(rest, o)
			continue
		}
		w.acked[part][o] = c.log[o].value
		w.ackEpoch[part] = max(w.ackEpoch[part], c.Slot.Epoch)
		w.acks++
		w.answered(part, c.log[o])
	}
	c.waiting = rest
}

// leads checks that a new leader has all that was acknowledged before its epoch.
// One that learns of its epoch when there is a newer one is no danger.
func (w *world) leads(part int, c *copyOf) {
	if c.Slot.Epoch < w.ackEpoch[part] {
		return
	}
	for o, value := range w.acked[part] {
		if o >= c.Start && o < int64(len(c.log)) && c.log[o].value == value || o < w.trimmed[part] {
			continue
		}
		w.fail("partition %d: value %d at offset %d was acknowledged and is not with leader %d of epoch %d", part, value, o, c.Self, c.Slot.Epoch)
		return
	}
}

// consume is a reader that asks whoever says that it leads, and knows the newest
// epoch that it has met. It must see what was acknowledged, and its end must not
// go back.
func (w *world) consume(b *broker) {
	part := w.r.IntN(len(b.copies))
	c := b.copies[part]
	if !b.up || b.paused || c.Role != replica.Leader || c.Slot.Epoch < max(w.readEpoch[part], w.ackEpoch[part]) {
		return
	}
	end, ok := c.Readable()
	if !ok {
		return
	}
	w.readEpoch[part] = c.Slot.Epoch
	if end < w.readEnd[part] {
		w.fail("partition %d: consumers saw the end at %d, and now at %d (leader %d of epoch %d)", part, w.readEnd[part], end, b.id, c.Slot.Epoch)
	}
	w.readEnd[part] = end
	for o := range w.acked[part] {
		if o >= end {
			w.fail("partition %d: offset %d was acknowledged and cannot be read (leader %d of epoch %d, end %d)", part, o, b.id, c.Slot.Epoch, end)
		}
	}
}

// final checks what must hold when all was healed and work went on.
func (w *world) final() {
	for part := range w.plan.Parts {
		var leader *copyOf
		for _, b := range w.brokers {
			if c := b.copies[part]; c.Role == replica.Leader && (leader == nil || c.Slot.Epoch > leader.Slot.Epoch) {
				leader = c
			}
		}
		if leader == nil {
			w.fail("partition %d: nobody leads after all was healed: %+v", part, w.store.slots[part])
			return
		}
		w.leads(part, leader)
		for _, b := range w.brokers {
			c := b.copies[part]
			for o := c.Start; o < min(c.HW, int64(len(c.log))); o++ {
				if value, known := w.seen[part][o]; known && c.log[o].value != value {
					w.fail("partition %d: replica %d has another value at offset %d below its high watermark", part, b.id, o)
					return
				}
			}
			if epochs := epochsOf(c.log, c.Start); len(epochs) > 0 && (c.LastEpoch() != epochs[len(epochs)-1].Epoch || c.End != int64(len(c.log))) {
				w.fail("partition %d: replica %d thinks of its log as %v to %d: it is %v to %d", part, b.id, c.Epochs, c.End, epochs, len(c.log))
				return
			}
		}
	}
}
