package broker

import (
	"errors"
	"fmt"

	"sidestream/broker/kafka"
	"sidestream/broker/record"
)

// maxRecordErrors bounds how many records of a batch are told one by one.
const maxRecordErrors = 1000

// checkKeys refuses a batch for a compacted topic when a record of it has no key: compaction could neither keep nor
// replace it.
func (u unpacking) checkKeys(batch []byte, h record.Header) error {
	plain, done, err := u.decompress(h.Codec(), batch[record.HeaderSize:])
	if err != nil {
		if !errors.Is(err, record.ErrTooLarge) {
			err = fmt.Errorf("%w: %w", record.ErrInvalid, err)
		}
		return err
	}
	defer done()
	refused := &kafka.BatchError{Text: "a compacted topic takes only records with a key"}
	index := int32(0)
	for r, err := range record.Records(plain, h) {
		if err != nil {
			return errors.Join(record.ErrInvalid, err)
		}
		if r.Key == nil && len(refused.Records) < maxRecordErrors {
			refused.Records = append(refused.Records, kafka.RecordError{Index: index, Text: fmt.Sprintf("record %d has no key, which a compacted topic needs", index)})
		}
		index++
	}
	if len(refused.Records) > 0 {
		return refused
	}
	return nil
}
