package spool

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// recordOf is the record of an event. It ends with the header by which it is found
// again.
func (s *Spool) recordOf(key laneKey, ev event) *kgo.Record {
	r := &kgo.Record{
		Topic: key.topic, Partition: key.partition, Key: ev.key, Value: ev.value, Timestamp: time.UnixMilli(ev.timestamp),
		Headers: make([]kgo.RecordHeader, 0, len(ev.headers)+1),
	}
	for _, h := range ev.headers {
		r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Key, Value: h.Value})
	}
	r.Headers = append(r.Headers, kgo.RecordHeader{Key: upstream.HeaderID, Value: appendID(nil, s.nonce, ev.seq)})
	return r
}

func (s *Spool) idOfEvent(ev event) string { return idOf(s.nonce, ev.seq) }

// never is a table of the errors that a record gets at each attempt, so that it
// can never be written as it is. Everything else is tried again: a wrong guess
// here would take an event out that could be written.
var never = []struct {
	err  *kerr.Error
	code api.Code
}{
	{kerr.MessageTooLarge, api.CodeMessageTooLarge},
	{kerr.RecordListTooLarge, api.CodeMessageTooLarge},
	{kerr.InvalidRecord, api.CodeBadRecord}, // no key where the topic needs one
	{kerr.InvalidTimestamp, api.CodeBadRecord},
	{kerr.PolicyViolation, api.CodeBadRecord},
	{kerr.InvalidTopicException, api.CodeBadRequest},
}

// neverWritten is why a record can never be written, nil where that is not so.
func neverWritten(err error) *api.Error {
	for _, n := range never {
		if errors.Is(err, n.err) {
			return api.NewError(n.code, fmt.Sprintf("the broker refuses the message: %v", err))
		}
	}
	return nil
}

// told is neverWritten in the words that a caller would be told at once: of a
// compacted topic brokers say no more than that the record is not valid.
func (s *Spool) told(topic string, ev event, never *api.Error, err error) *api.Error {
	if ev.key != nil || !errors.Is(err, kerr.InvalidRecord) {
		return never
	}
	ctx, cancel := context.WithTimeout(s.ctx, limitTime)
	defer cancel()
	if c, err := s.brokers.TopicConfigs(ctx, topic); err == nil && c.Compacted() {
		return publish.NeedsKey(topic)
	}
	return never
}

// clientSender sends with a client of its own, which repeats a record until its
// fate is known.
type clientSender struct {
	cl     *kgo.Client
	up     *upstream.Upstream
	closed context.Context
	cancel context.CancelFunc

	// limits are the topics' own max.message.bytes, as far as the brokers tell.
	limits sync.Map // string: *limit
	most   int32

	views sync.Map // what the client believes of a topic; string: *view
	said  sync.Map // of partitions whose batch a broker did not take; laneKey with a name or an id: error
}

type limit struct {
	bytes atomic.Int32
	at    atomic.Int64 // when it was asked for, Unix nanoseconds
}

const (
	// kafkaBatchLimit is Kafka's default of message.max.bytes, which holds where
	// the brokers do not tell.
	kafkaBatchLimit = 1<<20 + 12
	minBatchLimit   = 512 // what the client takes at least
	limitAge        = 30 * time.Second
	limitTime       = 2 * time.Second
)

var codecs = map[string]kgo.CompressionCodec{
	"gzip": kgo.GzipCompression(), "snappy": kgo.SnappyCompression(), "lz4": kgo.Lz4Compression(), "zstd": kgo.ZstdCompression(),
}

// NewSender makes the sender that a spool closes. batchBytes bounds its batches.
func NewSender(up *upstream.Upstream, compression string, batchBytes int) (Sender, error) {
	c := &clientSender{up: up, most: int32(batchBytes)}
	c.closed, c.cancel = context.WithCancel(context.Background())
	codec, ok := codecs[compression]
	if !ok {
		codec = kgo.NoCompression()
	}
	hearing, err := up.Hearing(c.hear)
	if err != nil {
		c.cancel()
		return nil, err
	}
	c.cl, err = up.Client(
		hearing,
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.ProducerLinger(2*time.Millisecond), // what is sent at once shall be one batch
		kgo.ProducerBatchMaxBytesFn(c.batchLimit),
		kgo.ProducerBatchCompression(codec),
		kgo.MaxBufferedRecords(1<<30), // the spool bounds what is on its way
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.MetadataMaxAge(time.Minute),
		kgo.ProduceRequestTimeout(10*time.Second),
		kgo.RequestTimeoutOverhead(5*time.Second),
		kgo.RetryBackoffFn(func(try int) time.Duration { return min(50*time.Millisecond<<min(try, 6), time.Second) }),
	)
	if err != nil {
		c.cancel()
		return nil, err
	}
	return c, nil
}

func (c *clientSender) batchLimit(topic string) int32 {
	if l, ok := c.limits.Load(topic); ok {
		if n := l.(*limit).bytes.Load(); n > 0 {
			return n
		}
	}
	return min(c.most, kafkaBatchLimit)
}

// learn asks for a topic's limit, now and then.
func (c *clientSender) learn(topic string) {
	v, _ := c.limits.LoadOrStore(topic, new(limit))
	l, now := v.(*limit), time.Now()
	at := l.at.Load()
	if at != 0 && now.Sub(time.Unix(0, at)) < limitAge || !l.at.CompareAndSwap(at, now.UnixNano()) {
		return
	}
	ctx, cancel := context.WithTimeout(c.closed, limitTime)
	defer cancel()
	if n, ok := c.up.MaxMessageBytes(ctx, topic); ok {
		l.bytes.Store(min(int32(min(max(n, minBatchLimit), 1<<30)), c.most))
	}
}

// Send implements Sender.
func (c *clientSender) Send(recs []*kgo.Record) []error {
	topic := recs[0].Topic
	errs := make([]error, len(recs))
	v := c.viewOf(topic)
	if !c.renew(topic, v) {
		for i := range errs {
			errs[i] = kerr.UnknownTopicID
		}
		return errs
	}
	c.learn(topic)
	id := c.uuidOf(topic)
	c.forget(topic, id, recs[0].Partition) // it is of what was sent before
	var wg sync.WaitGroup
	wg.Add(len(recs))
	for i, r := range recs {
		c.cl.Produce(context.Background(), r, func(_ *kgo.Record, err error) {
			errs[i] = err
			wg.Done()
		})
	}
	wg.Wait()
	v.note(errs)
	if said, ok := errors.AsType[*upstream.BrokerError](c.Said(topic, id, recs[0].Partition)); ok {
		for i, err := range errs {
			if errors.Is(err, said.Code) { // the client has the code alone
				errs[i] = said
			}
		}
	}
	return errs
}

// uuidOf is a topic's id as it is known without asking.
func (c *clientSender) uuidOf(topic string) string {
	v := c.viewOf(topic)
	v.turn.take()
	defer v.turn.leave()
	return v.uuid
}

// hear notes what brokers say to the client.
func (c *clientSender) hear(topic, uuid string, partition int32, err error) {
	if err == nil {
		c.forget(topic, uuid, partition)
		return
	}
	if topic != "" {
		c.said.Store(laneKey{topic: topic, partition: partition}, err)
		return
	}
	c.said.Store(laneKey{uuid: uuid, partition: partition}, err)
}

func (c *clientSender) forget(topic, uuid string, partition int32) {
	c.said.Delete(laneKey{topic: topic, partition: partition})
	c.said.Delete(laneKey{uuid: uuid, partition: partition})
}

// Said implements Sender.
func (c *clientSender) Said(topic, uuid string, partition int32) error {
	for _, key := range []laneKey{{topic: topic, partition: partition}, {uuid: uuid, partition: partition}} {
		if err, ok := c.said.Load(key); ok {
			return err.(error)
		}
	}
	return nil
}

// Close implements Sender.
func (c *clientSender) Close() {
	c.cancel()
	c.cl.Close()
}
