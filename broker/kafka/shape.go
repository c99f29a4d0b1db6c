package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// maxProducePartitions is how many batches one produce request may carry. Decoding turns each array element of a few
// bytes into a structure of a hundred, so without this a request of the allowed size could take gigabytes.
const maxProducePartitions = 20_000

var errShape = errors.New("produce request does not decode")

// checkProduceShape walks a produce request without allocating and counts its topics and partitions. It is given the
// body; the layout is that of versions 0 to 12 (Kafka protocol guide, "Produce Request").
func checkProduceShape(body []byte, version int16) error {
	w := walker{b: body, compact: version >= 9}
	if version >= 3 {
		w.bytes16() // transactional id
	}
	w.skip(2 + 4) // acks, timeout
	parts := 0
	topics := w.count()
	if topics > maxProducePartitions {
		return tooManyBatches(topics)
	}
	for ; topics > 0 && !w.bad; topics-- {
		w.bytes16() // name
		n := w.count()
		if parts += n; parts > maxProducePartitions {
			return tooManyBatches(parts)
		}
		for ; n > 0 && !w.bad; n-- {
			w.skip(4)
			w.bytes32()
			w.tags()
		}
		w.tags()
	}
	if w.bad {
		return errShape
	}
	return nil
}

func tooManyBatches(n int) error {
	return fmt.Errorf("produce request names %d topics or partitions: the limit is %d", n, maxProducePartitions)
}

// walker steps over fields; once something does not fit, bad stays set.
type walker struct {
	b       []byte
	compact bool
	bad     bool
}

func (w *walker) skip(n int) {
	if n < 0 || n > len(w.b) {
		w.bad, w.b = true, nil
		return
	}
	w.b = w.b[n:]
}

func (w *walker) uvarint() int {
	v, n := binary.Uvarint(w.b)
	if n <= 0 || v > 1<<31 {
		w.bad, w.b = true, nil
		return 0
	}
	w.b = w.b[n:]
	return int(v)
}

func (w *walker) int32() int {
	if len(w.b) < 4 {
		w.bad, w.b = true, nil
		return 0
	}
	v := int32(binary.BigEndian.Uint32(w.b))
	w.b = w.b[4:]
	return int(v)
}

// null tells whether an array comes next that is null.
func (w *walker) null() bool {
	if w.compact {
		return len(w.b) > 0 && w.b[0] == 0
	}
	return len(w.b) >= 4 && int32(binary.BigEndian.Uint32(w.b)) < 0
}

// count reads an array's length; null is none.
func (w *walker) count() int {
	if w.compact {
		return max(0, w.uvarint()-1)
	}
	return max(0, w.int32())
}

// bytes16 skips a string.
func (w *walker) bytes16() {
	if w.compact {
		w.skip(max(0, w.uvarint()-1))
		return
	}
	if len(w.b) < 2 {
		w.bad, w.b = true, nil
		return
	}
	n := int(int16(binary.BigEndian.Uint16(w.b)))
	w.b = w.b[2:]
	w.skip(max(0, n))
}

// bytes32 skips bytes.
func (w *walker) bytes32() { w.skip(w.count()) }

func (w *walker) tags() {
	if !w.compact {
		return
	}
	for n := w.uvarint(); n > 0 && !w.bad; n-- {
		w.uvarint()
		w.skip(w.uvarint())
	}
}
