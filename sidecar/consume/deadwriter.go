package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// deadWriter writes dead letters, and messages that come back from them: each is
// with all in-sync replicas before it counts. A failure leaves open whether the
// record is in the log, so whoever repeats it may write it twice.
type deadWriter struct {
	up     Upstream
	cfg    Config
	log    *zap.Logger
	limits sync.Map // largest batch by topic: int32
	said   sync.Map // what brokers last said of a topic's batches that they did not take, by name or id: error

	ending sync.WaitGroup // closes clients that gave way to another

	mu     sync.Mutex // guards all below; never held across I/O
	client *letterClient
	closed bool
	topics map[string]deadTarget
}

// letterClient is a client and those who write with it.
type letterClient struct {
	*kgo.Client
	users sync.WaitGroup // added to under the writer's mu, while it is the client
}

// deadTarget is what is known of a topic that is written to.
type deadTarget struct {
	uuid  string
	limit int32
	at    time.Time // when the limit was asked for
}

const (
	// letterTime is how long one letter may take. Its partition waits for it,
	// and tries again afterwards.
	letterTime = 15 * time.Second
	// letterRoom is what a letter's own headers take at most, with some more for
	// the batch around it.
	letterRoom = 64 << 10
	// limitAge is how long a topic's largest batch is believed.
	limitAge = 30 * time.Second
	// kafkaBatchLimit is Kafka's default of message.max.bytes, for brokers that
	// do not tell a topic's.
	kafkaBatchLimit = 1<<20 + 12
	// mostBatch is what a batch may have at most: what a request must stay below.
	mostBatch = 64 << 20
)

func newDeadWriter(up Upstream, cfg Config, log *zap.Logger) *deadWriter {
	return &deadWriter{up: up, cfg: cfg, log: log, topics: map[string]deadTarget{}}
}

// open is the client, made at the first letter: most sidecars never write one.
// The caller ends its use.
func (w *deadWriter) open() (*letterClient, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.closed {
		return nil, errDraining()
	}
	if w.client != nil {
		w.client.users.Add(1)
		return w.client, nil
	}
	hearing, err := w.up.Hearing(w.hear)
	if err != nil {
		return nil, err
	}
	cl, err := w.up.Client(
		hearing,
		kgo.RequiredAcks(kgo.AllISRAcks()),
		kgo.RecordPartitioner(kgo.ManualPartitioner()),
		kgo.ProducerLinger(0),
		kgo.ProducerBatchMaxBytesFn(w.limit),
		kgo.BrokerMaxWriteBytes(2*mostBatch),
		kgo.RecordDeliveryTimeout(letterTime),
		// A partition must not wait for ever for what became of a letter: it is
		// written once more, with the same id.
		kgo.AllowIdempotentProduceCancellation(),
		kgo.MetadataMinAge(250*time.Millisecond),
		kgo.RetryTimeout(5*time.Second),
		kgo.RequestTimeoutOverhead(5*time.Second),
	)
	if err != nil {
		return nil, err
	}
	w.client = &letterClient{Client: cl}
	w.client.users.Add(1)
	return w.client, nil
}

// renew has the next letter go through another client, which is another producer
// to the brokers. The present one is closed when what is on its way has ended.
func (w *deadWriter) renew() {
	w.mu.Lock()
	defer w.mu.Unlock()
	old := w.client
	w.client = nil
	if old != nil && !w.closed {
		w.ending.Go(func() {
			old.users.Wait()
			old.Close()
		})
	}
}

// hear notes what brokers say to the client, which repeats in silence.
func (w *deadWriter) hear(topic, uuid string, _ int32, err error) {
	key := cmp.Or(topic, uuid)
	if err == nil {
		w.said.Delete(key)
		return
	}
	w.said.Store(key, err)
}

// why is what brokers last said of a topic's batches, or else err.
func (w *deadWriter) why(t upstream.Topic, err error) error {
	for _, key := range []string{t.Name, t.UUID} {
		if said, ok := w.said.Load(key); ok {
			return said.(error)
		}
	}
	return err
}

func (w *deadWriter) close() {
	w.mu.Lock()
	cl := w.client
	w.client, w.closed = nil, true
	w.mu.Unlock()
	if cl != nil {
		cl.Close()
	}
	w.ending.Wait()
}

func (w *deadWriter) limit(topic string) int32 {
	if n, ok := w.limits.Load(topic); ok {
		return n.(int32)
	}
	return kafkaBatchLimit
}

// topic finds a topic of dead letters, and makes it when it is not there: with
// room for the largest message of the topic that the letters are of.
func (w *deadWriter) topic(ctx context.Context, name, origin string) (upstream.Topic, error) {
	t, err := w.up.Topic(ctx, name)
	if !isCode(err, api.CodeTopicNotFound) {
		return t, err
	}
	if !w.cfg.CreateDeadTopics {
		return t, apiError(api.CodeTopicNotFound, "topic %s of the dead letters does not exist, and this sidecar must not make it (consume.create_dead_topics): make it", name)
	}
	spec := api.TopicSpec{Configs: map[string]string{}}
	if d := w.cfg.DeadRetention; d > 0 {
		spec.Configs["retention.ms"] = fmt.Sprint(d.Milliseconds())
	}
	if n, ok := w.up.MaxMessageBytes(ctx, origin); ok {
		spec.Configs["max.message.bytes"] = fmt.Sprint(min(n, mostBatch-letterRoom) + letterRoom)
	}
	t, err = w.up.CreateTopic(ctx, name, spec)
	if isCode(err, api.CodeBadRequest) && len(spec.Configs) > 0 {
		// The brokers' policy may not like these: a topic as they like it will do.
		t, err = w.up.CreateTopic(ctx, name, api.TopicSpec{})
	}
	switch {
	case err == nil:
		w.log.Info("made a topic of dead letters", zap.String("topic", name))
		return t, nil
	case isCode(err, api.CodeTopicExists):
		return w.up.Refresh(ctx, name)
	case isCode(err, api.CodeForbidden):
		return t, apiError(api.CodeForbidden, "topic %s of the dead letters does not exist, and the brokers do not let this sidecar make it: make it", name)
	}
	return t, err
}

// prepare notes what has changed about a topic. A client would go on writing to
// one that was deleted and made anew, and within its former limit. It cannot be
// made to forget the topic: its sequence numbers for it would begin anew under the
// same producer id, and brokers would take letters for repeats of earlier ones. So
// it gives way to another.
func (w *deadWriter) prepare(ctx context.Context, t upstream.Topic) {
	now := time.Now()
	w.mu.Lock()
	was, known := w.topics[t.Name]
	w.mu.Unlock()
	is := was
	is.uuid = t.UUID
	if !known || now.Sub(was.at) > limitAge || was.uuid != t.UUID {
		is.at, is.limit = now, kafkaBatchLimit
		if n, ok := w.up.MaxMessageBytes(ctx, t.Name); ok {
			is.limit = int32(min(max(n, 512), mostBatch))
		}
	}
	if is == was {
		return
	}
	w.limits.Store(t.Name, is.limit)
	w.mu.Lock()
	w.topics[t.Name] = is
	w.mu.Unlock()
	if known && (is.uuid != was.uuid || is.limit != was.limit) {
		w.renew()
	}
}

// write writes records to a topic, each to the partition that it names, and
// tells what became of each: nil, or an *api.Error.
func (w *deadWriter) write(ctx context.Context, t upstream.Topic, rs []*kgo.Record) []*api.Error {
	errs := make([]*api.Error, len(rs))
	w.prepare(ctx, t)
	cl, err := w.open()
	if err != nil {
		for i := range errs {
			errs[i] = brokerError("write", err)
		}
		return errs
	}
	defer cl.users.Done()
	w.said.Delete(t.Name) // of letters before
	w.said.Delete(t.UUID)
	ctx, cancel := context.WithTimeout(ctx, letterTime)
	defer cancel()
	type fate struct {
		i   int
		err error
	}
	fates := make(chan fate, len(rs))
	landed := make([]bool, len(rs))
	for i, r := range rs {
		cl.TryProduce(ctx, r, func(_ *kgo.Record, err error) { fates <- fate{i, err} })
	}
	for range rs {
		select {
		case f := <-fates:
			landed[f.i] = true
			if errors.Is(f.err, kgo.ErrRecordTimeout) || errors.Is(f.err, context.DeadlineExceeded) {
				f.err = w.why(t, f.err)
			}
			errs[f.i] = writeError(t.Name, f.err)
		case <-ctx.Done():
			for i := range rs {
				if !landed[i] {
					errs[i] = apiError(api.CodeBrokersUnavailable, "topic %s: %v", t.Name, w.why(t, errLate))
				}
			}
			return errs
		}
	}
	return errs
}

var errLate = errors.New("the brokers did not answer in time")

// writeError is what became of a record that the client failed with err.
func writeError(topic string, err error) *api.Error {
	switch {
	case err == nil:
		return nil
	case errors.Is(err, kerr.MessageTooLarge), errors.Is(err, kerr.RecordListTooLarge):
		return apiError(api.CodeMessageTooLarge, "topic %s does not take a message of that size (max.message.bytes)", topic)
	case errors.Is(err, kerr.InvalidRecord), errors.Is(err, kerr.InvalidTimestamp), errors.Is(err, kerr.PolicyViolation):
		return apiError(api.CodeBadRecord, "the brokers refuse it for topic %s: %v", topic, err)
	case errors.Is(err, kerr.TopicAuthorizationFailed), errors.Is(err, kerr.ClusterAuthorizationFailed):
		return apiError(api.CodeForbidden, "the brokers do not let this sidecar write to topic %s", topic)
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID):
		return apiError(api.CodeTopicNotFound, "topic %s does not exist any more", topic)
	}
	return apiError(api.CodeBrokersUnavailable, "topic %s: %v", topic, err)
}

// place chooses a partition: prefer where it has a leader, else the next that
// has one, since a letter in another place is better than one that waits.
func place(t upstream.Topic, prefer int32) (int32, error) {
	n := int32(len(t.Partitions))
	for i := range n {
		if p := t.Partitions[(prefer+i)%n]; p.Leader >= 0 {
			return p.ID, nil
		}
	}
	return 0, apiError(api.CodeBrokersUnavailable, "no partition of topic %s has a leader", t.Name)
}

// preferred is the partition of a key, as all clients choose it; what has no key
// goes where its partition's number says, so that copies of it lie together.
func preferred(key []byte, partition int32, count int) int32 {
	if count < 1 {
		return 0
	}
	if key == nil {
		return partition % int32(count)
	}
	return publish.PartitionOf(key, int32(count))
}
