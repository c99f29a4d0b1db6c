package sdk

import (
	"slices"
	"sort"
	"time"

	"sidestream/sdk/api"
)

// Orders of a group, as in [api.GroupConfig].
const (
	orderPartition = "partition"
	orderKey       = "key"
	orderNone      = "none"
)

// state is how far a held message is.
type state int

const (
	waiting   state = iota // for a handler
	running                // in a handler
	acking                 // handled; the sidecar has not taken the ack yet
	returning              // given back; the sidecar has not taken the nack yet
)

// held is a message that was taken and is not settled. The lanes own it, and
// who guards them guards its fields.
type held struct {
	message api.Message
	state   state
	lane    *lane
	// again is the same message delivered once more, after the lease that
	// message has was over; replayed: it may have been for a seek. See [lanes.add].
	// recalled: it is to be given back as well, since what precedes it is.
	again    *api.Message
	replayed bool
	recalled bool

	lease   time.Duration // length of its lease, 0: it has none that could be extended
	until   time.Time     // end of its lease
	handing time.Time     // when a handler took it
}

// laneID names a lane: the messages that must be handled one after the other.
type laneID struct {
	topic     string
	partition int32
	key       string // with the form of the key in front; "" for a whole partition
	id        string // of a message that is alone in its lane
}

// lane is a queue of messages that must be handled in their order.
type lane struct {
	id        laneID
	waiting   []*held // by offset
	running   int
	returning map[*held]bool // while there are any, what waits may come before them, and must not
	ready     bool           // it is among the ready lanes
}

// lanes are the messages that a consumer holds, as a pure state: what may be
// handled now, so that the messages of one lane are never handled at once nor
// out of order, and no message is handled twice at once. Lanes are what the
// order of the group says: a partition, a key, or each message for itself.
type lanes struct {
	order     string
	held      map[string]*held // by the message's ID
	lanes     map[laneID]*lane
	ready     []*lane       // may go on, in the order in which they became so; some are not ready any more
	available int           // messages that wait in ready lanes
	lease     time.Duration // that messages come with, 0: not known
}

func newLanes() lanes {
	return lanes{order: orderPartition, held: map[string]*held{}, lanes: map[laneID]*lane{}}
}

// laneOf is the lane that a message belongs to.
func (l *lanes) laneOf(m api.Message) laneID {
	id := laneID{topic: m.Topic, partition: m.Partition}
	switch {
	case l.order != orderKey && l.order != orderNone:
	case l.order == orderKey && m.Key != nil:
		id.key = "text " + *m.Key
	case l.order == orderKey && m.Key64 != nil:
		id.key = "base64 " + *m.Key64
	default:
		id.id = m.ID
	}
	return id
}

// add takes in a message that was delivered. One that is held already has come
// once more because its lease was over: while it waits, it goes on waiting under
// the new lease. While it is in a handler, the handler's work counts for the new
// delivery, if that is a repetition (its attempt is above 1). Otherwise the
// group may have been sought back in order to handle it anew: then it is handled
// again, unless the sidecar takes the acknowledgement of the older delivery.
func (l *lanes) add(m api.Message, now time.Time) {
	h := l.held[m.ID]
	switch {
	case h == nil:
		h = &held{message: m}
		l.leaseOf(h, m, now)
		l.held[m.ID] = h
		l.enqueue(h)
		return
	case h.state == waiting, h.state == running && m.Attempt > 1 && !h.replayed:
		h.message = m
	default:
		h.again, h.recalled = &m, false
		h.replayed = h.replayed || m.Attempt <= 1
	}
	l.leaseOf(h, m, now)
}

// leaseOf notes the lease that a delivery has.
func (l *lanes) leaseOf(h *held, m api.Message, now time.Time) {
	h.lease, h.until = 0, time.Time{}
	if m.LeaseUntil != nil {
		h.lease = l.lasts(m.LeaseUntil.Sub(now))
		h.until = now.Add(h.lease)
	}
}

// lasts is how long a lease lasts of which the clocks say that it lasts for d:
// the sidecar's may be another host's and tell another time.
func (l *lanes) lasts(d time.Duration) time.Duration {
	switch {
	case l.lease > 0 && (d <= 0 || d > l.lease):
		return l.lease
	case d <= 0:
		return unknownLease
	}
	return d
}

// unknownLease is taken for one whose length is not known.
const unknownLease = 5 * time.Second

// receipts are those whose leases are worth extending.
func (h *held) receipts() []string {
	switch {
	case h.again != nil:
		return []string{h.again.Receipt}
	case h.state == acking, h.state == returning:
		return nil
	}
	return []string{h.message.Receipt}
}

// enqueue lets a message wait in its lane, in the order of the offsets.
func (l *lanes) enqueue(h *held) {
	id := l.laneOf(h.message)
	ln := l.lanes[id]
	if ln == nil {
		ln = &lane{id: id, returning: map[*held]bool{}}
		l.lanes[id] = ln
	}
	h.lane, h.state = ln, waiting
	at := len(ln.waiting)
	if at > 0 && ln.waiting[at-1].message.Offset > h.message.Offset {
		at = sort.Search(at, func(i int) bool { return ln.waiting[i].message.Offset > h.message.Offset })
	}
	ln.waiting = append(ln.waiting, nil)
	copy(ln.waiting[at+1:], ln.waiting[at:])
	ln.waiting[at] = h
	if ln.ready {
		l.available++
	} else {
		l.offer(ln)
	}
}

// offer makes a lane ready when it can go on, and forgets it when it is empty.
func (l *lanes) offer(ln *lane) {
	switch {
	case ln.running > 0 || len(ln.returning) > 0 || ln.ready:
	case len(ln.waiting) == 0:
		delete(l.lanes, ln.id)
	default:
		ln.ready = true
		l.ready = append(l.ready, ln)
		l.available += len(ln.waiting)
	}
}

// unready keeps a lane from going on.
func (l *lanes) unready(ln *lane) {
	if ln.ready {
		ln.ready = false // and stays in the list
		l.available -= len(ln.waiting)
	}
}

// take gives up to n messages to a handler: those of the lane that has waited
// longest, in order, then of the next. expired are messages whose lease ended
// before a handler was free: they come again, here or elsewhere, and are to be
// given back lest they be handled twice.
func (l *lanes) take(n int, now time.Time) (taken, expired []*held) {
	for len(taken) < n && len(l.ready) > 0 {
		ln := l.ready[0]
		l.ready[0] = nil
		l.ready = l.ready[1:]
		if !ln.ready {
			continue
		}
		l.unready(ln)
		for len(ln.waiting) > 0 && len(taken) < n {
			h := ln.waiting[0]
			if h.lease > 0 && now.After(h.until) {
				expired = append(expired, l.dropAll(ln)...)
				break
			}
			ln.waiting = ln.waiting[1:]
			h.state, h.handing = running, now
			taken = append(taken, h)
			ln.running++
		}
		l.offer(ln)
	}
	return taken, expired
}

// handled notes that a handler is done with a message and it is to be
// acknowledged. The next of its lane may follow at once.
func (l *lanes) handled(h *held) {
	h.state = acking
	h.lane.running--
	l.offer(h.lane)
}

// failed notes that a handler could not do it: the message is to be given back.
// dropped are those that wait behind it in its lane, which must be given back as
// well, for they come again after it. The lane goes on when all are.
func (l *lanes) failed(h *held) (dropped []*held) {
	if h.again != nil {
		h.message, h.again = *h.again, nil // the older lease is over
	}
	h.lane.running--
	l.giveBack(h)
	return l.dropAll(h.lane) // it was not ready while one of it ran
}

// dropAll takes what waits in a lane that is not ready, to be given back. What
// is on its way back and has come again meanwhile goes back once more.
func (l *lanes) dropAll(ln *lane) (dropped []*held) {
	for h := range ln.returning {
		h.recalled = h.again != nil
	}
	dropped, ln.waiting = ln.waiting, nil
	for _, h := range dropped {
		l.giveBack(h)
	}
	return dropped
}

func (l *lanes) giveBack(h *held) {
	h.state = returning
	h.lane.returning[h] = true
}

// longest takes what waits in the lane in which most does, to be given back.
func (l *lanes) longest() (dropped []*held) {
	var longest *lane
	for _, ln := range l.lanes {
		if longest == nil || len(ln.waiting) > len(longest.waiting) {
			longest = ln
		}
	}
	if longest == nil {
		return nil
	}
	l.unready(longest)
	return l.dropAll(longest)
}

// giveUp takes everything that waits, to be given back.
func (l *lanes) giveUp() (dropped []*held) {
	for _, ln := range l.lanes {
		l.unready(ln)
		dropped = append(dropped, l.dropAll(ln)...)
	}
	return dropped
}

// lose notes that a lease is over. A message that still waits is forgotten, for
// it is delivered again; dropped are those behind it, which must not be handled
// before it. What is in a handler may yet be acknowledged.
func (l *lanes) lose(h *held, receipt string) (dropped []*held) {
	if h.again != nil && h.again.Receipt == receipt {
		h.again = nil
		return nil
	}
	if h.message.Receipt != receipt {
		return nil // it has come again meanwhile
	}
	if h.again == nil {
		h.lease = 0
	}
	if h.state != waiting {
		return nil
	}
	ln := h.lane
	l.unready(ln)
	at := slices.Index(ln.waiting, h)
	before := ln.waiting[:at]
	ln.waiting = slices.Clone(ln.waiting[at+1:])
	dropped = l.dropAll(ln)
	ln.waiting = before
	delete(l.held, h.message.ID)
	l.offer(ln)
	return dropped
}

// settled forgets a message that the sidecar has taken the ack of.
func (l *lanes) settled(h *held) { delete(l.held, h.message.ID) }

// returned forgets a message that has gone back to the sidecar, or begins
// anew with it when it has come again. It reports whether it is to be given back
// once more.
func (l *lanes) returned(h *held) (repeat bool) {
	if h.again != nil && h.recalled {
		h.message, h.again, h.replayed, h.recalled = *h.again, nil, false, false
		return true
	}
	back := h.state == returning
	delete(h.lane.returning, h)
	if h.again == nil {
		delete(l.held, h.message.ID)
		if back { // or the lane may be another by now
			l.offer(h.lane)
		}
		return false
	}
	h.message, h.again, h.replayed = *h.again, nil, false
	l.enqueue(h)
	return false
}

// unacked notes that the ack of a message was refused, because its lease had
// gone elsewhere. It reports whether the message is to be acknowledged under
// the lease under which it has come again.
func (l *lanes) unacked(h *held) (repeat bool) {
	if h.again != nil && !h.replayed {
		h.message, h.again = *h.again, nil
		return true
	}
	l.returned(h)
	return false
}
