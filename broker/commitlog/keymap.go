package commitlog

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/binary"
)

// keySlotBytes is what a key takes in the map, however long it is.
const keySlotBytes = 24

// keyMap remembers for each key the highest offset that has it, in a bounded
// piece of memory: an open hash table of 128-bit hashes in place of the keys.
//
// Two keys with the same hash would look like one, and the older of their
// records would be removed for the younger. Hashes are the first half of
// SHA-256 over a random salt, drawn for each map, and the key: a billion keys
// meet with a probability below 10⁻²⁰, nobody can construct two that do without
// knowing the salt, and a pair that met once does not meet in the next pass.
// (Kafka's cleaner uses unsalted MD5 of the same width.)
type keyMap struct {
	slots []keySlot // a power of two, at most max
	max   int
	n     int // keys
	salt  [16]byte
	buf   []byte
}

type keySlot struct {
	hash [16]byte
	next int64 // offset + 1, 0: free
}

// newKeyMap makes a map for as many keys as the budget of bytes has room for, at
// least some hundred.
func newKeyMap(budget int64) *keyMap {
	m := &keyMap{max: 256}
	// A table grows fourfold, and the old one is there meanwhile.
	for int64(m.max)*2*keySlotBytes*5/4 <= budget && m.max < 1<<30 {
		m.max *= 2
	}
	small := m.max
	for small > 1024 {
		small /= 4
	}
	m.slots = make([]keySlot, small)
	_, _ = rand.Read(m.salt[:]) // it never fails
	return m
}

func (m *keyMap) hash(key []byte) (h [16]byte) {
	m.buf = append(append(m.buf[:0], m.salt[:]...), key...)
	sum := sha256.Sum256(m.buf)
	copy(h[:], sum[:])
	return h
}

// slot is where the hash is, or would be.
func (m *keyMap) slot(h [16]byte) *keySlot {
	mask := uint64(len(m.slots) - 1)
	for i := binary.LittleEndian.Uint64(h[:]) & mask; ; i = (i + 1) & mask {
		if s := &m.slots[i]; s.next == 0 || s.hash == h {
			return s
		}
	}
}

// put notes that the key occurs at the offset. It reports false when the key is
// new and there is no room for it; offsets must rise.
func (m *keyMap) put(key []byte, offset int64) bool {
	h := m.hash(key)
	s := m.slot(h)
	if s.next == 0 {
		if m.n >= len(m.slots)-len(m.slots)/4 {
			if len(m.slots) >= m.max {
				return false
			}
			m.grow()
			s = m.slot(h)
		}
		s.hash = h
		m.n++
	}
	s.next = offset + 1
	return true
}

func (m *keyMap) grow() {
	old := m.slots
	m.slots = make([]keySlot, min(4*len(old), m.max))
	for _, s := range old {
		if s.next != 0 {
			*m.slot(s.hash) = s
		}
	}
}

// last is the highest offset of the key, -1 when the map does not have it.
func (m *keyMap) last(key []byte) int64 {
	if m.n == 0 {
		return -1
	}
	return m.slot(m.hash(key)).next - 1
}
