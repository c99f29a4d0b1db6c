package idempotency

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// journal is the notes on disk: a log with one record a note. Safe for
// concurrent use; notes that are synced at the same time share a sync.
type journal struct {
	log    *commitlog.Log
	logger *zap.Logger
	clock  *clock
	size   int64 // of a segment
	damage int   // stretches that could not be read at the start
}

const (
	segmentBytes = 8 << 20
	maxNoteBytes = 64 << 20 // fates of a batch of ten million messages
	readBytes    = 1 << 20
)

// openJournal opens or makes the journal in a folder and calls read with every
// note in it, oldest first, and its offset. A note that cannot be read is left
// out and counted.
func openJournal(fsys disk.FS, dir string, log *zap.Logger, folder func() time.Time, read func(offset int64, n note)) (*journal, error) {
	l, err := commitlog.Open(fsys, dir, journalConfig(), commitlog.Options{Logger: log})
	if err != nil {
		return nil, err
	}
	j := &journal{log: l, logger: log, size: segmentBytes}
	var last moment
	for offset := l.StartOffset(); offset < l.EndOffset(); {
		next, err := j.readFrom(offset, func(at int64, n note) {
			last = n.at
			read(at, n)
		})
		var corrupt *commitlog.CorruptError
		switch {
		case errors.As(err, &corrupt) && corrupt.Next > offset:
			j.damaged(err)
			next = corrupt.Next
		case err != nil:
			_ = l.Close() // the first error is the one to report
			return nil, err
		}
		offset = next
	}
	j.clock = newClock(last, folder)
	return j, nil
}

func (j *journal) damaged(err error) {
	j.damage++
	j.logger.Error("the journal of Idempotency-Keys is damaged: repeats of requests with the keys in the damaged stretch are taken for new ones", zap.Error(err))
}

func journalConfig() commitlog.Config {
	cfg := commitlog.DefaultConfig()
	cfg.SegmentBytes, cfg.MaxBatchBytes = segmentBytes, maxNoteBytes
	cfg.Retention, cfg.RetentionBytes = -1, -1 // what is forgotten is deleted by its offset
	cfg.CheckpointBytes = segmentBytes
	return cfg
}

// readFrom reads some notes from an offset on and tells where to go on.
func (j *journal) readFrom(offset int64, read func(int64, note)) (int64, error) {
	s, err := j.log.Read(offset, readBytes, j.log.EndOffset())
	if err != nil {
		return 0, err
	}
	defer s.Release()
	b, err := s.ReadAll()
	if err != nil {
		return 0, err
	}
	for batch, err := range record.Split(b) {
		if err != nil {
			j.damaged(err)
			break
		}
		h, err := record.Check(batch, maxNoteBytes)
		if err != nil {
			j.damaged(err)
			continue
		}
		for r, err := range record.Records(batch[record.HeaderSize:], h) {
			if err != nil {
				j.damaged(err)
				break
			}
			n, err := readNote(r.Value)
			if err != nil {
				j.damaged(err)
				continue
			}
			read(r.Offset, n)
		}
	}
	return s.Next, nil
}

// write adds a note, and returns where it lies. With sync it is on disk when
// write returns without error.
func (j *journal) write(n *note, sync bool) (offset int64, err error) {
	n.at = j.clock.moment()
	offset, _, err = j.log.Append([][]byte{encode(n)}, -1, j.clock.folder())
	if err != nil {
		return 0, err
	}
	if !sync {
		return offset, nil
	}
	_, err = j.log.Flush()
	return offset, err
}

// encode makes a batch of one record of a note.
func encode(n *note) []byte {
	value := n.append(make([]byte, 0, 256))
	head := make([]byte, 0, 4+2*binary.MaxVarintLen32)
	head = append(head, 0, 0, 0)         // attributes, timestamp delta, offset delta
	head = binary.AppendVarint(head, -1) // no key
	head = binary.AppendVarint(head, int64(len(value)))
	body := binary.AppendVarint(make([]byte, 0, len(head)+len(value)+8), int64(len(head)+len(value)+1))
	body = append(append(append(body, head...), value...), 0) // no headers
	return record.AppendBatch(nil, record.Header{
		LeaderEpoch: -1, Magic: record.Magic, FirstTimestamp: n.at.wall, MaxTimestamp: n.at.wall,
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, Count: 1,
	}, body)
}

// forget removes what lies below an offset, if that gives room back.
func (j *journal) forget(below int64) error {
	if below <= j.log.StartOffset() || j.log.Size() < 2*j.size {
		return nil
	}
	if err := j.log.DeleteBefore(below); err != nil {
		return fmt.Errorf("making room in the journal of Idempotency-Keys: %w", err)
	}
	return nil
}

func (j *journal) close() error { return j.log.Close() }
