package sim

import (
	"slices"

	"sidestream/broker/replica"
)

// picture is what the store holds; it is replaced and never changed.
type picture struct {
	indices  []int // by shard: rises with each change of it
	slots    []replica.Slot
	folders  []string // by broker: known
	members  []string // by broker: the folder that it is registered with, "" when it is not
	sessions []int    // by broker: of its registration
	holder   int      // who holds the controller lock, -1: nobody
	held     int      // the holder's session
	commits  []int    // by broker: transactions that it has written; each is for the next one only
}

func (p *picture) clone() *picture {
	next := *p
	return &next
}

// kept is how many earlier pictures a reader may mix folders of.
const kept = 4

func (w *world) put(next *picture) {
	w.earlier[w.puts%kept] = w.store
	w.puts++
	w.store = next
}

// atStore is a request that has reached the store, which handles one after the
// other; its answer goes the way that all messages go.
func (w *world) atStore(m message) {
	if !w.storeUp {
		return
	}
	answer := message{from: storeNode, to: m.from, boot: m.boot, part: m.part, leader: m.leader, leadBoot: m.leadBoot, change: m.change}
	switch m.kind {
	case kindRead:
		answer.kind = kindTold
		w.register(m)
	case kindLook:
		answer.kind = kindLooked
		w.acquire(m)
	case kindTxn:
		answer.kind = kindDone
		if w.holds(m) {
			w.commit(m)
			answer.ok = true
		}
	}
	answer.pic = w.mixed(answer.kind)
	w.send(answer)
}

// mixed is an answer whose keys were read one after the other: the folders
// before the slots.
func (w *world) mixed(k kind) *picture {
	if k != kindTold || w.puts < kept || !w.faults || w.r.IntN(3) > 0 {
		return w.store
	}
	old, next := w.earlier[w.r.IntN(kept)], w.store.clone()
	if replica.Mutated(replica.SlotsFirst) {
		next.slots = old.slots
	} else {
		next.folders, next.members = old.folders, old.members
	}
	return next
}

func (w *world) register(m message) {
	if w.store.members[m.from] == m.folder || w.brokers[m.from].boot != m.boot {
		return
	}
	next := w.store.clone()
	next.members, next.sessions = slices.Clone(next.members), slices.Clone(next.sessions)
	next.members[m.from] = m.folder
	next.sessions[m.from]++
	if next.holder == m.from {
		next.holder = -1
	}
	w.put(next)
}

// acquire gives the controller lock to who asks, if nobody has it.
func (w *world) acquire(m message) {
	if w.store.holder >= 0 || w.store.members[m.from] == "" || w.brokers[m.from].boot != m.boot {
		return
	}
	next := w.store.clone()
	next.holder, next.held = m.from, next.sessions[m.from]
	w.put(next)
}

// holds are the conditions of a transaction, which the store checks: the lock is
// the writer's, and the shard is as it was read.
func (w *world) holds(m message) bool {
	if !replica.Mutated(replica.NoHeld) && (w.store.holder != m.from || w.store.held != m.session) {
		return false
	}
	if m.commits != w.store.commits[m.from] {
		return false // an earlier one of its own that was late
	}
	return m.ready != nil || m.index == w.store.indices[w.shardOf(m.part)]
}

func (w *world) commit(m message) {
	next := w.store.clone()
	next.commits = slices.Clone(next.commits)
	next.commits[m.from]++
	if m.ready != nil {
		next.folders = slices.Clone(next.folders)
		next.folders[m.ready.Broker] = m.ready.Folder
		w.say("READY %+v", *m.ready)
		w.put(next)
		return
	}
	old := next.slots[m.part]
	next.slots, next.indices = slices.Clone(next.slots), slices.Clone(next.indices)
	next.slots[m.part] = m.slot
	next.indices[w.shardOf(m.part)]++
	w.say("SLOT %d by %d: %s", m.part, m.from, slotText(&m.slot))
	if m.slot.Leader != old.Leader && m.slot.Leader != replica.NoBroker {
		w.elections++
	}
	if m.slot.ISR == 0 {
		w.fail("partition %d has an empty ISR", m.part)
	}
	if m.slot.Version != old.Version+1 || m.slot.Epoch < old.Epoch {
		w.fail("partition %d goes from version %d, epoch %d to %d, %d", m.part, old.Version, old.Epoch, m.slot.Version, m.slot.Epoch)
	}
	w.put(next)
}

// forget ends a broker's session, and with it its lock.
func (w *world) forget(b *broker) {
	if w.store.members[b.id] == "" {
		return
	}
	next := w.store.clone()
	next.members = slices.Clone(next.members)
	next.members[b.id] = ""
	if next.holder == b.id {
		next.holder = -1
	}
	w.put(next)
}
