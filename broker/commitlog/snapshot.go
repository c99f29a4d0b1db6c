package commitlog

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"maps"
	"slices"
)

// Kafka's producer snapshot (Kafka, ProducerStateManager): version (2), CRC-32C
// of all that follows it (4), the number of entries (4), then the entries.
const (
	snapshotVersion = 1
	snapshotCRC     = 2
	snapshotBody    = 6
	snapshotHeader  = 10
	snapshotEntry   = 46
)

// encode is the snapshot of all producers, nil when there are none. Kafka
// writes a producer's last batch only. We write up to five entries for it,
// oldest first, in the same format: Kafka's reader lets the last one win, ours
// has all five again.
func (p *Producers) encode() []byte {
	p.mu.Lock()
	defer p.mu.Unlock()
	if len(p.byID) == 0 {
		return nil
	}
	be := binary.BigEndian
	b := make([]byte, snapshotHeader, snapshotHeader+len(p.byID)*snapshotEntry)
	count := 0
	for _, id := range slices.Sorted(maps.Keys(p.byID)) {
		known := p.byID[id]
		refs := known.batches[:known.n]
		if len(refs) == 0 { // only its epoch is known
			refs = []batchRef{{lastSeq: -1, last: -1}}
		}
		for _, r := range refs {
			b = be.AppendUint64(b, uint64(id))
			b = be.AppendUint16(b, uint16(known.epoch))
			b = be.AppendUint32(b, uint32(r.lastSeq))
			b = be.AppendUint64(b, uint64(r.last))
			b = be.AppendUint32(b, uint32(r.delta))
			b = be.AppendUint64(b, uint64(known.seen))
			b = be.AppendUint32(b, ^uint32(0)) // coordinator epoch: none
			b = be.AppendUint64(b, ^uint64(0)) // first offset of an open transaction: none
			count++
		}
	}
	be.PutUint16(b, snapshotVersion)
	be.PutUint32(b[snapshotBody:], uint32(count))
	be.PutUint32(b[snapshotCRC:], crc32.Checksum(b[snapshotBody:], castagnoli))
	return b
}

// decodeSnapshot reads a snapshot, Kafka's or ours.
func decodeSnapshot(b []byte) (map[int64]*producer, error) {
	be := binary.BigEndian
	if len(b) < snapshotHeader {
		return nil, fmt.Errorf("%d bytes, the header has %d", len(b), snapshotHeader)
	}
	if v := be.Uint16(b); v != snapshotVersion {
		return nil, fmt.Errorf("version %d, only %d is read", v, snapshotVersion)
	}
	if got := crc32.Checksum(b[snapshotBody:], castagnoli); got != be.Uint32(b[snapshotCRC:]) {
		return nil, errors.New("checksum mismatch")
	}
	count := int64(be.Uint32(b[snapshotBody:]))
	if b = b[snapshotHeader:]; int64(len(b)) != count*snapshotEntry {
		return nil, fmt.Errorf("%d bytes for %d entries of %d", len(b), count, snapshotEntry)
	}
	byID := make(map[int64]*producer)
	for ; len(b) > 0; b = b[snapshotEntry:] {
		id, epoch := int64(be.Uint64(b)), int16(be.Uint16(b[8:]))
		ref := batchRef{
			lastSeq: int32(be.Uint32(b[10:])),
			last:    int64(be.Uint64(b[14:])),
			delta:   int32(be.Uint32(b[22:])),
		}
		known, ok := byID[id]
		if !ok || known.epoch != epoch {
			known = &producer{epoch: epoch}
			byID[id] = known
		}
		known.seen = int64(be.Uint64(b[26:]))
		if ref.lastSeq < 0 {
			continue
		}
		if ref.delta < 0 || ref.last < int64(ref.delta) {
			return nil, fmt.Errorf("producer %d: last offset %d with delta %d", id, ref.last, ref.delta)
		}
		ref.firstSeq = int32((int64(ref.lastSeq) - int64(ref.delta)) & (1<<31 - 1))
		if known.n == keptBatches {
			copy(known.batches[:], known.batches[1:])
			known.n--
		}
		known.batches[known.n] = ref
		known.n++
	}
	return byID, nil
}
