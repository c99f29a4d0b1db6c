package sim

import (
	"math"

	"sidestream/agent/controller"
	"sidestream/broker/replica"
)

// step takes an event in at one copy and carries the effects out. Between two
// effects the process may die.
func (w *world) step(b *broker, part int, e replica.Event) {
	c := b.copies[part]
	before := c.HW
	effects := c.Step(w.now, e, w.effects[:0])
	w.effects = effects
	for _, e := range effects {
		if w.faults && w.r.IntN(4000) == 0 {
			w.crash(b, w.r.IntN(2) == 0)
			return
		}
		w.do(b, part, c, before, e)
		if w.bad != "" {
			return
		}
	}
}

func (w *world) do(b *broker, part int, c *copyOf, before int64, e replica.Effect) {
	switch e := e.(type) {
	case replica.Persist:
		c.kept = e.Durable
	case replica.Lead:
		w.say("LEAD %d/%d epoch %d: %d to %d", b.id, part, e.Epoch, c.Start, c.End)
		c.waiting = nil
		clear(c.streams)
		w.leads(part, c)
		w.sync(b, part)
	case replica.Resign:
		if len(c.waiting) > 0 {
			w.say("RESIGN %d/%d: %d publishers are told NOT_LEADER", b.id, part, len(c.waiting))
		}
		c.waiting = nil
		clear(c.streams)
	case replica.Open:
		w.post(b.id, int(e.Leader), part, e.Report, e.Report.Stream)
	case replica.Send:
		m := message{kind: kindEvent, from: b.id, to: int(e.To), part: part, event: e.Diverging, stream: e.Diverging.Stream}
		if e.Diverging.Reset {
			m.records = c.log[:e.Diverging.End:e.Diverging.End]
		}
		w.send(m)
	case replica.Serve:
		c.streams[e.To] = stream{number: e.Stream, epoch: e.Epoch, next: e.From, sent: w.now}
	case replica.Refuse:
		w.post(b.id, int(e.To), part, replica.Broken{Stream: e.Stream}, e.Stream)
	case replica.Write:
		c.log = append(c.log[:e.Frame.Base:e.Frame.Base], w.carried...)
	case replica.Truncate:
		if e.To < before {
			w.fail("replica %d of partition %d cuts to %d below its high watermark %d", b.id, part, e.To, before)
		}
		w.say("CUT %d/%d from %d to %d", b.id, part, len(c.log), e.To)
		c.log = c.log[:e.To:e.To]
		c.flushed = min(c.flushed, e.To)
	case replica.Reset:
		if e.To < before {
			w.fail("replica %d of partition %d begins anew at %d below its high watermark %d", b.id, part, e.To, before)
		}
		w.say("RESET %d/%d to %d", b.id, part, e.To)
		c.log, c.start, c.flushed = w.carried[:e.To:e.To], e.To, e.To // the leader's snapshot of producers stands in it
	case replica.Trim:
		c.start = e.To
	case replica.RaiseHW:
		w.shown(b, part, c, before, e.HW)
	case replica.Ask:
		to := w.r.IntN(len(w.brokers)) // whoever it believes to be the controller
		if !w.faults && w.store.holder >= 0 {
			to = w.store.holder
		}
		w.send(message{kind: kindAlter, from: b.id, to: to, boot: b.boot, part: part, change: e.Change})
	}
}

func (w *world) post(from, to, part int, e replica.Event, stream uint64) {
	w.send(message{kind: kindEvent, from: from, to: to, part: part, event: e, stream: stream})
}

// sync is a group commit that has ended.
func (w *world) sync(b *broker, part int) {
	c := b.copies[part]
	c.flushed = int64(len(c.log))
	old := c.Synced
	w.step(b, part, replica.SyncedTo{End: c.flushed})
	if b.up && c.Role == replica.Follower && c.Synced > old {
		w.reportOf(b, part)
	}
}

func (w *world) reportOf(b *broker, part int) {
	c := b.copies[part]
	if c.Role == replica.Follower && c.Slot.Leader != replica.NoBroker {
		w.post(b.id, int(c.Slot.Leader), part, c.Report(false), c.Stream)
	}
}

// tick is what a broker does by itself.
func (w *world) tick(b *broker) {
	if !b.up || b.paused {
		return
	}
	part := w.r.IntN(len(b.copies))
	c := b.copies[part]
	switch w.r.IntN(6) {
	case 0:
		w.send(message{kind: kindRead, from: b.id, to: storeNode, boot: b.boot, folder: b.folder})
		if replica.Mutated(replica.ByFolder) && !w.storeUp && c.Role == replica.None && c.kept.Promised > replica.NoEpoch {
			slot := replica.Slot{Leader: int32(b.id), Epoch: c.kept.Promised + 1, Version: math.MaxInt32, Replicas: []int32{int32(b.id)}, ISR: replica.SetOf(0)}
			w.step(b, part, replica.Told{Slot: slot, Folders: []string{b.folder}, Fit: replica.SetOf(0)})
		}
	case 1, 2:
		w.sync(b, part)
	case 3, 4:
		if c.Role == replica.Leader {
			w.feed(b, part)
		} else {
			w.step(b, part, replica.Tick{})
		}
	case 5:
		w.step(b, part, replica.Tick{})
		if w.faults && w.r.IntN(50) == 0 { // somebody is believed to be gone, rightly or not
			w.step(b, part, replica.Gone{Broker: int32(w.r.IntN(len(w.brokers)))})
		}
	}
}

// feed sends what a leader has to who streams from it.
func (w *world) feed(b *broker, part int) { w.feedTo(b, part, w.r.IntN(len(w.brokers))) }

func (w *world) feedTo(b *broker, part, to int) {
	c := b.copies[part]
	if c.Role != replica.Leader {
		return
	}
	s := &c.streams[to]
	if s.number == 0 || s.epoch != c.Slot.Epoch && !replica.Mutated(replica.NoFence) || s.next > c.End || s.under > 1 && w.now-s.sent < retry {
		return
	}
	end := c.End
	if w.faults {
		end = min(end, s.next+int64(w.r.IntN(4)))
	}
	before := replica.NoEpoch
	if s.next < c.Start {
		return // it opens again, and is told where the log begins
	}
	if s.next > c.Start {
		before = c.log[s.next-1].epoch
	}
	f := replica.Frame{From: int32(b.id), Epoch: s.epoch, Stream: s.number, Base: s.next, Before: before,
		End: end, HW: c.HW, EpochStart: c.EpochStart, Start: c.Start}
	records := c.log[s.next:end]
	last := replica.NoEpoch
	for i, r := range records {
		if r.epoch > last {
			last = r.epoch
			f.Epochs = append(f.Epochs, replica.Epoch{Epoch: last, Start: s.next + int64(i)})
		}
	}
	s.next, s.sent = end, w.now
	s.under++
	w.send(message{kind: kindEvent, from: b.id, to: to, part: part, event: f, stream: s.number, records: records[:len(records):len(records)]})
}

// handle takes in what arrived at a broker.
func (w *world) handle(b *broker, m message) {
	switch m.kind {
	case kindEvent:
		if r, ok := m.event.(replica.Report); ok && !r.Open {
			if s := &b.copies[m.part].streams[m.from]; s.number == r.Stream {
				s.under = 0
			}
		}
		w.carried = m.records
		w.step(b, m.part, m.event)
		if _, ok := m.event.(replica.Frame); ok && b.up {
			w.reportOf(b, m.part)
		}
	case kindTold:
		if m.boot == b.boot {
			b.session = m.pic.sessions[b.id]
			for part := range b.copies {
				if b.up {
					w.tell(b, part, m.pic, false)
				}
			}
		}
	case kindLooked:
		if m.boot == b.boot {
			b.picture = m.pic
			w.control(b)
		}
	case kindDone:
		if m.boot != b.boot {
			return
		}
		b.picture = m.pic
		if m.leader >= 0 && !m.ok && m.pic.holder == b.id {
			// Something else was written meanwhile: decide anew.
			w.alter(b, message{from: m.leader, boot: m.leadBoot, part: m.part, change: m.change})
		} else if m.leader >= 0 {
			w.send(message{kind: kindAltered, from: b.id, to: m.leader, boot: m.leadBoot, part: m.part, pic: m.pic})
		}
	case kindAlter:
		w.alter(b, m)
	case kindAltered:
		if m.boot == b.boot {
			w.tell(b, m.part, m.pic, false)
		}
	}
}

// tell a copy what the store said, now or, when it is cached, at some time.
func (w *world) tell(b *broker, part int, pic *picture, cached bool) {
	slot := pic.slots[part]
	view := w.view(pic)
	folders := make([]string, len(slot.Replicas))
	for i, id := range slot.Replicas {
		folders[i] = pic.folders[id]
	}
	c := b.copies[part]
	c.Config.MinISR = w.minOf(&slot)
	if !cached && (c.cached == nil || c.cached.slots[part].Version <= slot.Version) {
		c.cached = pic
	}
	w.step(b, part, replica.Told{Slot: slot, Folders: folders, Fit: view.Fit(&slot), Cached: cached})
}

// view is the store's picture as the controller's functions take it.
func (w *world) view(pic *picture) *controller.Picture {
	v := &controller.Picture{Members: make([]controller.Member, len(pic.folders)), Parts: make([]controller.Part, len(pic.slots))}
	for i := range pic.folders {
		v.Members[i] = controller.Member{ID: int32(i), Registered: pic.members[i] != "", Folder: pic.members[i], Known: pic.folders[i]}
	}
	for i := range pic.slots {
		v.Parts[i] = controller.Part{Slot: pic.slots[i], MinISR: w.minOf(&pic.slots[i])}
	}
	return v
}

// control is a controller that looks at a picture, which may be old by the time
// its changes are written; there may be several.
func (w *world) control(b *broker) {
	changes, ready := controller.Decide(w.seenBy(b))
	for _, c := range changes {
		w.write(b, message{part: c.Part, slot: c.To, leader: -1})
	}
	for i := range ready {
		w.write(b, message{ready: &ready[i], leader: -1})
	}
	if part := w.r.IntN(len(b.picture.slots)); w.faults && w.plan.Replicas == 0 && w.r.IntN(100) == 0 {
		if slot, ok := w.raised(b.picture, part); ok {
			w.write(b, message{part: part, slot: slot, leader: -1})
		}
	}
}

// write sends a transaction that rests on the controller's picture.
func (w *world) write(b *broker, m message) {
	m.kind, m.from, m.to, m.boot, m.session = kindTxn, b.id, storeNode, b.boot, b.session
	m.index, m.commits = b.picture.indices[w.shardOf(m.part)], b.picture.commits[b.id]
	w.send(m)
}

// raised gives a partition one more copy.
func (w *world) raised(pic *picture, part int) (replica.Slot, bool) {
	s := pic.slots[part]
	for i := range w.brokers {
		if id := int32((part + i) % len(w.brokers)); s.Place(id) < 0 && pic.members[id] != "" && pic.members[id] == pic.folders[id] {
			s.Adding = s.Adding.With(len(s.Replicas))
			s.Replicas = append(s.Replicas[:len(s.Replicas):len(s.Replicas)], id)
			s.Version++
			return s, true
		}
	}
	return s, false
}

// seenBy is a controller's picture, at times with a broker missing that lives,
// and with any order among those who may lead.
func (w *world) seenBy(b *broker) *controller.Picture {
	v := w.view(b.picture)
	if !w.faults {
		return v
	}
	for i := range v.Parts {
		v.Parts[i].Synced = make([]int64, len(v.Parts[i].Slot.Replicas))
		for j := range v.Parts[i].Synced {
			v.Parts[i].Synced[j] = int64(w.r.IntN(8))
		}
	}
	if w.r.IntN(40) == 0 {
		v.Members[w.r.IntN(len(v.Members))].Registered = false
	}
	return v
}

// alter is a controller that is asked by a leader.
func (w *world) alter(b *broker, m message) {
	if b.picture == nil {
		w.send(message{kind: kindLook, from: b.id, to: storeNode, boot: b.boot})
		return
	}
	v := w.view(b.picture)
	to, err := controller.Alter(v, &v.Parts[m.part], int32(m.from), m.change)
	if err != nil {
		// Its picture may be the one that is old.
		if w.r.IntN(2) == 0 {
			w.send(message{kind: kindLook, from: b.id, to: storeNode, boot: b.boot})
		}
		w.send(message{kind: kindAltered, from: b.id, to: m.from, boot: m.boot, part: m.part, pic: b.picture})
		return
	}
	w.write(b, message{part: m.part, slot: to, leader: m.from, leadBoot: m.boot, change: m.change})
}
