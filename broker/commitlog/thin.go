package commitlog

import (
	"sidestream/broker/record"
)

// thinner decides what stays of a batch in one pass of compaction.
type thinner struct {
	keys      *keyMap
	end       int64 // keys of records at and above it are not in the map, those stay
	now       int64 // ms, or noTime: no tombstone goes, and none gets its time
	retention int64 // of tombstones, ms
	pack      func(codec record.Codec, b []byte) ([]byte, error)
	unpack    func(codec record.Codec, b []byte) (plain []byte, done func(), err error)

	// hidden: there are records below that may have keys which nobody could
	// look at, in damage or in a transaction. A tombstone above them must
	// stay, or what it deletes could come back.
	hidden bool

	horizon    int64 // first time at which a tombstone seen so far may go, -1 for none
	removed    int64 // records
	tombstones int64 // of those
}

// fate is what becomes of a batch.
type fate int

const (
	asItIs fate = iota
	thinned
	emptied
)

// thin decides what stays of a sound batch, and builds it when it is thinned.
func (t *thinner) thin(b []byte, h record.Header) (fate, []byte, error) {
	switch {
	case h.IsControl() || h.BaseOffset >= t.end:
		return asItIs, nil, nil
	case h.Count == 0:
		return emptied, nil, nil
	case h.IsTransactional(): // it may have been aborted, and then its keys count for nothing
		t.hidden = true
		return asItIs, nil, nil
	}
	body, done, err := t.records(b, h)
	if err != nil { // not ours to judge, the consumer will see
		t.hidden = true
		return asItIs, nil, nil
	}
	defer done()
	c := t.choose(body, h)
	switch {
	case c.kept == 0:
		return emptied, nil, nil
	case c.kept == h.Count && !c.date:
		return asItIs, nil, nil
	}
	out, err := t.build(body, h, c)
	return thinned, out, err
}

// records unpacks a batch and makes sure that it can be decoded. done ends the
// use of what it returns.
func (t *thinner) records(b []byte, h record.Header) (body []byte, done func(), err error) {
	body, done = b[record.HeaderSize:], func() {}
	if h.Codec() != record.None {
		if body, done, err = t.unpack(h.Codec(), body); err != nil {
			return nil, nil, err
		}
	}
	for _, err := range record.BareRecords(body, h) {
		if err != nil {
			done()
			return nil, nil, err
		}
	}
	return body, done, nil
}

// choice is what stays of a batch.
type choice struct {
	kept int32
	date bool // it has tombstones and gets the time at which they may go
}

func (t *thinner) choose(body []byte, h record.Header) (c choice) {
	horizon, dated := h.DeleteHorizon()
	tombstones := false
	for r, err := range record.BareRecords(body, h) {
		if err != nil {
			return choice{kept: h.Count} // records has seen that there is none
		}
		if !t.stays(r, h) {
			t.removed++
			if r.Tombstone {
				t.tombstones++
			}
			continue
		}
		c.kept++
		tombstones = tombstones || r.Tombstone && r.Key != nil
	}
	if !tombstones || h.NextOffset() > t.end {
		return c
	}
	switch {
	case dated:
		horizon = t.goes(h, horizon)
	case t.now == noTime:
		horizon = 0 // as soon as somebody knows the time
	default:
		c.date = true
		horizon = t.now + t.retention
	}
	if !t.hidden && (t.horizon < 0 || horizon < t.horizon) {
		t.horizon = horizon
	}
	return c
}

// stays tells whether a record is kept: without a key; when no later record has
// its key; and not when it is a tombstone that is due.
func (t *thinner) stays(r record.Bare, h record.Header) bool {
	offset := h.BaseOffset + int64(r.OffsetDelta)
	if r.Key == nil || offset >= t.end {
		return true
	}
	if t.keys.last(r.Key) > offset {
		return false
	}
	horizon, dated := h.DeleteHorizon()
	return !(r.Tombstone && dated && t.now != noTime && t.now >= t.goes(h, horizon) && !t.hidden)
}

// goes is when a dated tombstone may go. A clock that was wrong when it was dated
// shows in the records: they are then younger than they can be.
func (t *thinner) goes(h record.Header, horizon int64) int64 {
	if h.MaxTimestamp > t.now+clockTolerance {
		return horizon
	}
	return max(horizon, h.MaxTimestamp+t.retention)
}

// build makes the batch of the records that stay. All else stays as it was: the
// offsets and sequence numbers that it spans, its producer, its codec.
func (t *thinner) build(body []byte, h record.Header, c choice) ([]byte, error) {
	first := h.FirstTimestamp
	maxTimestamp := int64(-1)
	out := h
	if c.date {
		first = t.now + t.retention
		out.SetDeleteHorizon(first)
	}
	rest := make([]byte, 0, len(body))
	for r, err := range record.BareRecords(body, h) {
		if err != nil {
			return nil, err
		}
		if t.stays(r, h) {
			rest = r.Append(rest, first)
			maxTimestamp = max(maxTimestamp, r.Timestamp)
		}
	}
	out.Count, out.MaxTimestamp = c.kept, maxTimestamp
	if h.Codec() != record.None {
		var err error
		if rest, err = t.pack(h.Codec(), rest); err != nil {
			return nil, err
		}
	}
	return record.AppendBatch(nil, out, rest), nil
}

// emptyBatch is a batch without records that holds the place of offsets, and of
// the sequence numbers of a producer if h has one that counts.
func emptyBatch(h record.Header, producer bool) []byte {
	e := record.Header{
		BaseOffset: h.BaseOffset, LeaderEpoch: h.LeaderEpoch, LastOffsetDelta: h.LastOffsetDelta,
		FirstTimestamp: -1, MaxTimestamp: -1, ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1,
	}
	if producer {
		e.ProducerID, e.ProducerEpoch, e.BaseSequence = h.ProducerID, h.ProducerEpoch, h.BaseSequence
	}
	return record.AppendBatch(nil, e, nil)
}
