package sim

import (
	"time"

	"sidestream/broker/replica"
)

const (
	calmTime = 20 * time.Second // within which every partition is writable again
	suspect  = 4500 * time.Millisecond
	calmEnd  = 5 * time.Second // of it, in which records must be acknowledged
)

// calm is time without new faults, in which everything happens as soon as it
// can. Some brokers stay away: as long as enough members of ISR and ELR are
// there, no partition may be unwritable for longer than calmTime.
func (w *world) calm() {
	w.faults, w.storeUp = false, true
	for i := range w.cut {
		clear(w.cut[i])
	}
	w.net = nil // lost, or an election that is on its way may choose one of those who stay away
	w.away()
	var acked []int
	begun := w.now
	for round := 0; w.now-begun < calmTime && w.bad == ""; round++ {
		w.now += stepTime
		for range len(w.net) {
			if len(w.net) > 0 {
				w.deliverAt(0)
			}
		}
		for _, b := range w.brokers {
			switch {
			case !b.up:
				if w.now-begun > suspect {
					w.forget(b)
				}
				continue
			case (round+b.id)%8 == 0:
				w.send(message{kind: kindRead, from: b.id, to: storeNode, boot: b.boot, folder: b.folder})
			case (round+b.id)%4 == 2:
				w.send(message{kind: kindLook, from: b.id, to: storeNode, boot: b.boot})
			}
			for part := range b.copies {
				w.sync(b, part)
				w.step(b, part, replica.Tick{})
				for to := range w.brokers {
					w.feedTo(b, part, to)
				}
			}
			w.produce(b)
		}
		if acked == nil && w.now-begun >= calmTime-calmEnd {
			for _, a := range w.acked {
				acked = append(acked, len(a))
			}
		}
	}
	for part, n := range acked {
		if w.bad == "" && len(w.acked[part]) == n {
			w.describe(part)
			w.fail("partition %d takes no records %s after the last fault: %+v", part, calmTime, w.store.slots[part])
		}
	}
}

// away chooses who stays down: so few that each partition has enough of those
// that hold all of it.
func (w *world) away() {
	for _, i := range w.r.Perm(len(w.brokers)) {
		b := w.brokers[i]
		b.paused, b.inbox = false, nil
		if w.r.IntN(2) == 0 && w.spares(b) {
			if b.up {
				w.crash(b, false)
			}
			w.say("AWAY %d", b.id)
			continue
		}
		if !b.up {
			w.start(b)
		}
	}
}

// spares tells whether a broker may be away, with those that are.
func (w *world) spares(b *broker) bool {
	for _, s := range w.store.slots {
		there := 0
		for i, id := range s.Replicas {
			x := w.brokers[id]
			if (s.ISR | s.ELR).Has(i) && !s.Lost.Has(i) && x != b && x.up && w.store.folders[id] == x.folder && w.store.members[id] == x.folder {
				there++
			}
		}
		if there < w.minOf(&s) {
			return false
		}
	}
	return true
}
