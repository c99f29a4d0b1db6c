package idempotency

import (
	"encoding/binary"
	"errors"
)

// kind is what became of a record.
type kind byte

const (
	open    kind = iota // not known
	written             // at its partition and offset
	spooled             // on this host's disk, for its partition
	absent              // not written, so a repeat sends it
)

// fate is what became of one record of a request.
type fate struct {
	kind      kind
	partition int32
	offset    int64
	spool     string // id of a spooled one
}

// count is how many of the fates are of a kind.
func count(fates []fate, k kind) (n int) {
	for i := range fates {
		if fates[i].kind == k {
			n++
		}
	}
	return n
}

// which are the places of those of a kind, in order.
func which(fates []fate, k kind) (at []int) {
	for i := range fates {
		if fates[i].kind == k {
			at = append(at, i)
		}
	}
	return at
}

// memory of fates for encoding and decoding: what the next one is told apart
// from.
type memory struct {
	next  map[int32]int64 // offset after the last run, by partition
	spool string          // the last id
}

// appendFates encodes fates as runs: how many, of which kind and partition. A
// run of written ones has offsets that follow each other, of which the first is
// given by its distance from where the run before of that partition ended. A
// spooled one is a run of its own, with what its id does not share with the one
// before. A batch without keys takes some bytes, one with keys about four a
// record.
func appendFates(b []byte, fates []fate) []byte {
	m := memory{next: map[int32]int64{}}
	for len(fates) > 0 {
		first := &fates[0]
		n := 1
		for n < len(fates) && follows(first, &fates[n], n) {
			n++
		}
		b = binary.AppendUvarint(b, uint64(n)<<2|uint64(first.kind))
		switch first.kind {
		case written:
			b = binary.AppendUvarint(b, uint64(uint32(first.partition)))
			b = binary.AppendVarint(b, first.offset-m.next[first.partition])
			m.next[first.partition] = first.offset + int64(n)
		case spooled:
			b = binary.AppendUvarint(b, uint64(uint32(first.partition)))
			shared := 0
			for shared < min(len(m.spool), len(first.spool)) && m.spool[shared] == first.spool[shared] {
				shared++
			}
			b = binary.AppendUvarint(b, uint64(shared))
			b = appendText(b, first.spool[shared:])
			m.spool = first.spool
		}
		fates = fates[n:]
	}
	return b
}

// follows tells whether f is the n-th after first in its run.
func follows(first, f *fate, n int) bool {
	switch {
	case f.kind != first.kind, f.kind == spooled:
		return false
	case f.kind == written:
		return f.partition == first.partition && f.offset == first.offset+int64(n)
	}
	return true
}

var errFates = errors.New("fates that cannot be read")

// readFates decodes exactly n fates.
func readFates(b []byte, n int) ([]fate, error) {
	m := memory{next: map[int32]int64{}}
	r := reader{b: b}
	fates := make([]fate, 0, min(n, 2*len(b)))
	for len(r.b) > 0 && !r.bad {
		head := r.unsigned()
		f := fate{kind: kind(head & 3)}
		run := head >> 2
		if run == 0 || run > uint64(n-len(fates)) {
			return nil, errFates
		}
		switch f.kind {
		case written:
			f.partition = int32(uint32(r.unsigned()))
			f.offset = m.next[f.partition] + r.signed()
			m.next[f.partition] = f.offset + int64(run)
		case spooled:
			f.partition = int32(uint32(r.unsigned()))
			shared := r.unsigned()
			if shared > uint64(len(m.spool)) {
				return nil, errFates
			}
			f.spool = m.spool[:shared] + r.text()
			m.spool = f.spool
		}
		for i := range run {
			fates = append(fates, f)
			if f.kind == written {
				fates[len(fates)-1].offset += int64(i)
			}
		}
	}
	if len(fates) != n || r.bad {
		return nil, errFates
	}
	return fates, nil
}
