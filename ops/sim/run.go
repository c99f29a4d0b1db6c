package sim

import (
	"sidestream/broker/replica"
)

// Result of one run.
type Result struct {
	Seed      uint64
	Bad       string // what did not hold; "" when all did
	Acks      int
	Elections int
}

// Run plays one schedule. With trace it tells what happens.
func Run(seed uint64, plan Plan, trace func(format string, args ...any)) Result {
	w := newWorld(seed, plan)
	w.trace = trace
	for i := 0; i < plan.Steps && w.bad == ""; i++ {
		w.turn()
	}
	if w.bad == "" {
		w.calm()
	}
	w.heal()
	acks := w.acks
	want := acks + 10*plan.Parts
	for i := 0; i < healSteps*plan.Parts && w.bad == ""; i++ {
		w.turn()
		if w.acks > want && i > 3000*plan.Parts {
			break
		}
	}
	if w.bad == "" && w.acks == acks {
		w.fail("no progress after all was healed: %+v", w.store.slots)
		for part := range w.acked {
			w.describe(part)
		}
	}
	if w.bad == "" {
		w.final()
	}
	return Result{Seed: seed, Bad: w.bad, Acks: w.acks, Elections: w.elections}
}

// heal ends all faults.
func (w *world) heal() {
	w.faults, w.storeUp = false, true
	for i := range w.cut {
		clear(w.cut[i])
	}
	for _, b := range w.brokers {
		b.paused = false
		if !b.up {
			w.start(b)
		}
	}
	w.say("HEALED %+v", w.store.slots)
}

// turn is one thing that happens.
func (w *world) turn() {
	w.now += stepTime
	someone := func() *broker { return w.brokers[w.r.IntN(len(w.brokers))] }
	switch x := w.r.IntN(100); {
	case x < 45 && len(w.net) > 0:
		w.deliver()
	case x < 80:
		w.tick(someone())
	case x < 86:
		w.produce(someone())
	case x < 88:
		if w.r.IntN(8) == 0 {
			w.trim(someone())
		} else {
			w.consume(someone())
		}
	case x < 94:
		if b := someone(); b.up && !b.paused {
			w.send(message{kind: kindLook, from: b.id, to: storeNode, boot: b.boot})
		}
	case x < 96:
		if w.faults {
			w.fault(someone())
		}
	}
}

// deliver takes any message that is on its way. Those of one stream come in
// their order, as on a connection.
func (w *world) deliver() {
	i := w.r.IntN(len(w.net))
	if m := &w.net[i]; m.stream != 0 {
		for j := range w.net[:i] {
			if o := &w.net[j]; o.stream == m.stream && o.from == m.from && o.to == m.to && o.part == m.part {
				i = j
				break
			}
		}
	}
	if w.net[i].due > w.now && w.faults {
		return
	}
	w.deliverAt(i)
}

func (w *world) deliverAt(i int) {
	m := w.net[i]
	w.net = append(w.net[:i], w.net[i+1:]...)
	if w.cut[node(m.from)][node(m.to)] {
		return
	}
	if m.to == storeNode {
		w.atStore(m)
		return
	}
	b := w.brokers[m.to]
	switch {
	case !b.up:
	case b.paused:
		b.inbox = append(b.inbox, m)
	default:
		inbox := b.inbox
		b.inbox = nil
		for _, m := range append(inbox, m) {
			if b.up {
				w.handle(b, m)
			}
		}
	}
}

func (w *world) fault(b *broker) {
	switch w.r.IntN(10) {
	case 0, 1:
		if b.up {
			w.crash(b, w.r.IntN(2) == 0)
		} else {
			w.start(b)
		}
	case 2:
		b.paused = b.up && !b.paused
	case 3:
		i, j := w.r.IntN(len(w.cut)), w.r.IntN(len(w.cut))
		w.cut[i][j] = true
		if w.r.IntN(2) == 0 {
			w.cut[j][i] = true
		}
	case 4, 5:
		for i := range w.cut {
			clear(w.cut[i])
		}
	case 6:
		w.forget(b) // rightly or not
	case 7:
		w.storeUp = w.r.IntN(4) > 0 || !w.storeUp
	case 8:
		if w.r.IntN(6) == 0 { // a power cut of all
			for _, x := range w.brokers {
				if x.up {
					w.crash(x, true)
				}
			}
		}
	case 9:
		// One disk is replaced, once a run: losing more copies than
		// min.insync.replicas - 1 may lose records by right.
		if !b.up && !w.wiped && w.minISR >= 2 && w.r.IntN(4) == 0 && w.othersHave(b) {
			w.wiped = true
			w.wipe(b)
		}
	}
	for _, x := range w.brokers {
		if (!x.up || x.paused) && w.r.IntN(6) == 0 {
			w.forget(x)
		}
	}
}

// othersHave tells whether each partition has another replica that may lead it.
func (w *world) othersHave(b *broker) bool {
	for _, s := range w.store.slots {
		if i := s.Place(int32(b.id)); i >= 0 && (w.minOf(&s) < 2 || (s.ISR|s.ELR)&^s.Lost&^replica.SetOf(i) == 0) {
			return false
		}
	}
	return true
}

// describe tells the trace how a partition stands.
func (w *world) describe(part int) {
	for _, b := range w.brokers {
		c := b.copies[part]
		w.say("%d/%d up %v %s of epoch %d, stream %d: %d to %d, synced %d, high watermark %d, epoch from %d, pending %+v, producers %+v, epochs %v, streams %+v", b.id, part, b.up, c.Role, c.Slot.Epoch, c.Stream, c.Start, c.End, c.Synced, c.HW, c.EpochStart, c.Pending, w.producers[part], c.Epochs, c.streams)
	}
}
