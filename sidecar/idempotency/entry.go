package idempotency

import (
	"container/list"
	"time"

	"sidestream/sidecar/publish"
)

// entry is what is remembered of a key. One request at a time owns it, from
// claim to release: it alone sends, looks, and writes notes about it. The first
// fields never change; the others are the owner's while there is one, and
// guarded by Keys.mu otherwise.
type entry struct {
	key, request digest
	topic        string
	ack          publish.Ack
	batch        bool
	count        int // records

	millis  int64         // timestamp of a record alone
	age     time.Duration // on the clock, when the key came
	note    int64         // where its newest intent lies in the journal; -1: it has none
	fates   []byte        // encoded; nil: all absent, or all open when it has an intent
	opens   int           // how many of the fates are open
	absents int           // how many are absent
	places  places        // where the open ones may be
	ask     bool          // the spool may hold open ones
	missing time.Time     // since when the brokers deny the topic of open ones; zero: they do not
	flight  *flight       // what of it is still on its way; nil: nothing is

	// Under Keys.mu alone.
	busy chan struct{} // closed when the owner lets go; nil: there is none
	at   *list.Element
	size int64
	keep int64 // the journal is needed for it from this offset on
}

// flight is records of an entry on their way to the brokers.
type flight struct {
	at    []int // their places in the request
	done  chan struct{}
	fates []fate // by place in at, set before done is closed; nil: what was answered is the last word
}

func (f *flight) landed() bool {
	select {
	case <-f.done:
		return true
	default:
		return false
	}
}

// read decodes the fates.
func (e *entry) read() []fate {
	if e.fates != nil {
		if fates, err := readFates(e.fates, e.count); err == nil { // they are ours, and were read once
			return fates
		}
	}
	fates := make([]fate, e.count)
	if e.fates == nil && e.note < 0 {
		for i := range fates {
			fates[i].kind = absent
		}
	}
	return fates
}

// set is the reverse.
func (e *entry) set(fates []fate) {
	e.opens, e.absents = count(fates, open), count(fates, absent)
	e.fates = appendFates(nil, fates)
	if e.opens == 0 {
		e.places, e.flight = places{}, nil
	}
}

// entryBytes is what an entry takes in memory with its place in the map and the
// list, without what hangs on it.
const entryBytes = 384

func (e *entry) memory() int64 {
	return entryBytes + int64(len(e.fates)+len(e.topic)+len(e.places.uuid)) + int64(len(e.places.from))*16
}

// claimed is what a claim comes to: one of conflict, busy, done and e.
type claimed struct {
	conflict bool            // another request has the key
	busy     <-chan struct{} // somebody owns it: closed when it is worth another try
	done     bool            // all has an answer: fates and millis
	e        *entry          // owned by the caller now, with its fates
	fates    []fate
	millis   int64
}

// claim finds or makes the entry of a key for a request.
func (k *Keys) claim(key, request digest, fresh func() *entry) claimed {
	k.mu.Lock()
	e := k.entries[key]
	if e != nil && k.over(e, k.journal.clock.now()) {
		k.drop(e, "age")
		e = nil
	}
	switch {
	case e == nil:
		e = fresh()
		e.age, e.note, e.absents = k.journal.clock.now(), -1, e.count
		e.busy = make(chan struct{})
		e.keep = k.journal.log.EndOffset()
		k.add(e)
		k.makeRoom()
	case e.request != request:
		k.mu.Unlock()
		return claimed{conflict: true}
	case e.busy != nil:
		defer k.mu.Unlock()
		return claimed{busy: e.busy}
	case e.opens+e.absents == 0:
		encoded, n, millis := e.fates, e.count, e.millis
		k.mu.Unlock()
		done := entry{fates: encoded, count: n}
		return claimed{done: true, fates: done.read(), millis: millis}
	default:
		e.busy = make(chan struct{})
	}
	k.mu.Unlock()
	return claimed{e: e, fates: e.read()}
}

// release gives an entry back with its fates; one of which nothing is written
// is forgotten.
func (k *Keys) release(e *entry, fates []fate) {
	e.set(fates)
	free := e.absents == e.count
	k.mu.Lock()
	defer k.mu.Unlock()
	close(e.busy)
	e.busy = nil
	if e.note >= 0 {
		e.keep = e.note
	}
	k.recount(e)
	if free && k.entries[e.key] == e {
		k.drop(e, "")
	}
	k.makeRoom()
}

// claimOpen makes the caller the owner of up to so many entries that have open
// fates and nobody who minds them.
func (k *Keys) claimOpen(most int) (es []*entry) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for e := range k.open {
		if len(es) == most {
			break
		}
		if e.idle() {
			e.busy = make(chan struct{})
			es = append(es, e)
		}
	}
	return es
}

// over tells whether an entry is older than the window and nobody minds it.
func (k *Keys) over(e *entry, now time.Duration) bool {
	return now-e.age > k.cfg.Window && e.idle()
}

// idle tells that no request owns an entry and nothing of it is on its way.
func (e *entry) idle() bool { return e.busy == nil && (e.flight == nil || e.flight.landed()) }

// add puts an entry in; mu is held.
func (k *Keys) add(e *entry) {
	k.entries[e.key] = e
	e.at = k.order.PushBack(e)
	k.recount(e)
}

// recount counts an entry anew; mu is held.
func (k *Keys) recount(e *entry) {
	if e.at == nil { // it was forgotten
		return
	}
	k.bytes += e.memory() - e.size
	e.size = e.memory()
	if e.opens > 0 {
		k.open[e] = struct{}{}
	} else {
		delete(k.open, e)
	}
}

// drop forgets an entry; mu is held.
func (k *Keys) drop(e *entry, cause string) {
	delete(k.entries, e.key)
	k.order.Remove(e.at)
	e.at = nil
	k.bytes -= e.size
	delete(k.open, e)
	if cause != "" && k.metrics != nil {
		k.metrics.forgotten.WithLabelValues(cause).Inc()
	}
}

// makeRoom forgets the oldest entries while there are too many, but none that
// is in use; mu is held.
func (k *Keys) makeRoom() {
	for at := k.order.Front(); at != nil && (len(k.entries) > k.cfg.MaxKeys || k.bytes > k.cfg.MaxBytes); {
		e := at.Value.(*entry)
		at = at.Next()
		if e.idle() {
			k.drop(e, "room")
		}
	}
}

// expire forgets what is older than the window, and tells up to where the
// journal is not needed.
func (k *Keys) expire() (below int64) {
	k.mu.Lock()
	defer k.mu.Unlock()
	below = k.journal.log.EndOffset() // notes to come lie above it
	now := k.journal.clock.now()
	for at := k.order.Front(); at != nil; {
		e := at.Value.(*entry)
		at = at.Next()
		if now-e.age <= k.cfg.Window {
			break
		}
		if k.over(e, now) {
			k.drop(e, "age")
		}
	}
	k.makeRoom()
	for at := k.order.Front(); at != nil; at = at.Next() {
		below = min(below, at.Value.(*entry).keep)
	}
	return below
}
