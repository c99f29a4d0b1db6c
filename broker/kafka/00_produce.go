package kafka

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/commitlog"
	"sidestream/broker/record"
	"sidestream/broker/record/packed"
	"sidestream/broker/record/unpack"
)

// Produce advertises version 0 although versions below 3 (which carry the old message formats) are refused: librdkafka
// silently turns compression off when the minimum is higher (KAFKA-18659).
var produceAPI = api{
	key: keyProduce, name: "Produce", min: 0, max: 12,
	kind:    produce,
	request: func() kmsg.Request { return kmsg.NewPtrProduceRequest() },
	shape:   checkProduceShape,
	enqueue: enqueueProduce,
}

// minProduce is the first version that carries RecordBatch, magic 2 (KIP-98).
const minProduce = 3

// enqueueProduce hands every partition's batch to its partition and answers when all have answered. The batches lie in
// the request's own memory, which therefore must live until finish is called.
func enqueueProduce(s *Server, c *call, finish func(*response, error)) {
	req := c.req.(*kmsg.ProduceRequest)
	resp := kmsg.NewPtrProduceResponse()
	resp.Version = req.Version
	var parts int32
	var bytes int64
	for _, t := range req.Topics {
		rt := kmsg.NewProduceResponseTopic()
		rt.Topic = t.Topic
		for _, p := range t.Partitions {
			rp := kmsg.NewProduceResponseTopicPartition()
			rp.Partition, rp.BaseOffset, rp.LogAppendTime, rp.LogStartOffset = p.Partition, -1, -1, -1
			rt.Partitions = append(rt.Partitions, rp)
			parts++
			bytes += int64(len(p.Records))
		}
		resp.Topics = append(resp.Topics, rt)
	}

	resp.ThrottleMillis = s.throttle(c, s.produce, "produce", bytes)

	// One more than there are partitions, so that the answer cannot be made before all are queued.
	var open, failed atomic.Int32
	open.Store(parts + 1)
	done := func() {
		if open.Add(-1) > 0 {
			return
		}
		switch {
		case req.Acks != 0:
			finish(encode(c.header, resp), nil)
		case failed.Load() > 0:
			// There is no answer in which to say what went wrong. A closed connection makes the producer look the
			// leader up again, as with Kafka's broker.
			finish(nil, fmt.Errorf("produce with acks=0 failed: %w", errAcksZero))
		default:
			finish(nil, nil)
		}
	}
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			rp := &resp.Topics[i].Partitions[j]
			settle := func(a Appended) {
				if a.Err != nil {
					failed.Add(1)
					rp.ErrorCode, rp.ErrorMessage, rp.ErrorRecords = codeOf(a.Err), produceText(a.Err), errorRecords(a.Err)
					s.metrics.failed(rp.ErrorCode)
				} else {
					rp.BaseOffset = a.Base
				}
				rp.LogStartOffset = a.Start
				done()
			}
			if err := s.enqueueBatch(req, req.Topics[i].Topic, req.Topics[i].Partitions[j], settle); err != nil {
				settle(Appended{Start: -1, Err: err})
			}
		}
	}
	done()
}

// produceText is the error's text, and whether the batch is certainly not in the log where the code leaves that open.
func produceText(err error) *string {
	if errors.Is(err, commitlog.ErrNotAppended) {
		switch codeOf(err) {
		case codeKafkaStorageError, codeUnknownServerError:
			return text(fmt.Errorf("%s%w", NotAppended, err))
		}
	}
	return text(err)
}

// errorRecords lists the records that an error is about, if it says so (KIP-467, since version 8).
func errorRecords(err error) (out []kmsg.ProduceResponseTopicPartitionErrorRecord) {
	var one *record.BadRecordError
	if errors.As(err, &one) {
		e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		e.RelativeOffset, e.ErrorMessage = one.Index, text(one)
		return append(out, e)
	}
	var batch *BatchError
	if !errors.As(err, &batch) {
		return nil
	}
	for _, r := range batch.Records {
		e := kmsg.NewProduceResponseTopicPartitionErrorRecord()
		e.RelativeOffset, e.ErrorMessage = r.Index, &r.Text
		out = append(out, e)
	}
	return out
}

// enqueueBatch checks one partition's batch and queues it. When it returns an error, settle was and will not be called.
func (s *Server) enqueueBatch(req *kmsg.ProduceRequest, topic string, in kmsg.ProduceRequestTopicPartition, settle func(Appended)) error {
	if err := checkProduce(req); err != nil {
		return err
	}
	p, err := s.backend.Partition(topic, in.Partition)
	if err != nil {
		return err
	}
	if s.ctx.Err() != nil && packed.Unpacks(in.Records, s.unpacker) { // one request can have enough of them for minutes
		return fmt.Errorf("the broker stops: %w", ErrNotLeader)
	}
	h, err := checkBatch(in.Records, p.MaxBatchBytes(), req.Version, s.unpacker)
	if err != nil {
		return err
	}
	s.metrics.records.Add(float64(h.Count))
	p.Append(Append{Batch: in.Records, Header: h, Acks: req.Acks, Done: settle})
	return nil
}

func hasHorizon(h record.Header) bool {
	_, has := h.DeleteHorizon()
	return has
}

// unpacks tells whether one of the batches has to be unpacked to be checked, which an event loop has no time for.
func (s *Server) unpacks(r kmsg.Request) bool {
	req := r.(*kmsg.ProduceRequest)
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			if packed.Unpacks(req.Topics[i].Partitions[j].Records, s.unpacker) {
				return true
			}
		}
	}
	return false
}

// checkProduce refuses what no partition can take.
func checkProduce(req *kmsg.ProduceRequest) error {
	switch {
	case req.Version < minProduce:
		return fmt.Errorf("produce version %d carries message formats older than RecordBatch: use version 3 or higher: %w", req.Version, errUnsupported)
	case req.TransactionID != nil:
		return errTransactions
	case req.Acks < -1 || req.Acks > 1:
		return fmt.Errorf("acks=%d: use -1 (all), 0 or 1: %w", req.Acks, errAcks)
	}
	return nil
}

// checkBatch checks what a producer sent for a partition: exactly one whole, intact batch of plain records.
func checkBatch(b []byte, maxBytes int, version int16, u unpack.Unpacker) (record.Header, error) {
	if len(b) == 0 {
		return record.Header{}, fmt.Errorf("no records were sent: %w", record.ErrInvalid)
	}
	h, err := record.Check(b, maxBytes)
	if err != nil {
		return h, err
	}
	switch {
	case h.IsControl():
		return h, fmt.Errorf("control batches are written by brokers only: %w", record.ErrInvalid)
	case h.IsTransactional():
		return h, fmt.Errorf("%s: %w", noTransactions, record.ErrInvalid)
	case h.LogAppendTime(): // consumers would take its highest timestamp for that of each record
		return h, fmt.Errorf("the timestamp type LogAppendTime is for brokers to set, a producer sends CreateTime: %w", errTimestamp)
	case hasHorizon(h): // its tombstones would be taken for old ones
		return h, fmt.Errorf("a delete horizon is for brokers to set: %w", record.ErrInvalid)
	case h.Codec() == record.Zstd && version < 7: // KIP-110
		return h, fmt.Errorf("zstd needs produce version 7 or higher, got %d: %w", version, errCompression)
	}
	return packed.Check(b, h, maxBytes, u)
}

var (
	errAcksZero       = errors.New("closing so that the producer looks its leader up again")
	errAcks           = errors.New("invalid required acks")
	errInvalidRequest = errors.New("invalid request")
	errUnsupported    = errors.New("unsupported version")
	errTimestamp      = errors.New("invalid timestamp")
	errCompression    = errors.New("unsupported compression type")
)
