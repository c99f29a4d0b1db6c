package publish

import (
	"encoding/hex"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sidecar/upstream"
)

// attempt is a produce request that makes its batch at the moment in which the
// client appends it to what it writes next.
type attempt struct {
	kmsg.ProduceRequest
	lane      *lane
	appended  bool
	topic     [1]kmsg.ProduceRequestTopic
	partition [1]kmsg.ProduceRequestTopicPartition
}

// produceTimeout is how long the broker may wait for replicas.
const produceTimeout = 10 * time.Second

// newAttempt makes the request of a lane, to be used again for each of its
// attempts: the client lets go of it before it returns.
func newAttempt(l *lane) *attempt {
	a := &attempt{lane: l}
	a.Acks = -1
	if l.ack == AckLeader {
		a.Acks = 1
	}
	a.TimeoutMillis = int32(produceTimeout.Milliseconds())
	a.partition[0].Partition = l.partition
	a.topic[0].Topic, a.topic[0].TopicID = l.topic, topicID(l.uuid) // by name up to version 12, by id from then on
	a.topic[0].Partitions = a.partition[:]
	return a
}

// AppendTo implements kmsg.Request. The client calls it again when it could not
// write a byte and has a new connection.
func (a *attempt) AppendTo(dst []byte) []byte {
	a.appended = true
	if a.lane.b.empty() {
		a.lane.fill(a.Version)
	}
	if a.lane.b.empty() { // a request for nothing, which is answered at once
		a.Topics = nil
	} else {
		a.Topics = a.topic[:]
		a.partition[0].Records = *a.lane.b.buf
	}
	return a.ProduceRequest.AppendTo(dst)
}

// resultIn is what the answer says of the partition: at which offset the batch
// begins, or an error with what the broker says beside its code.
func (a *attempt) resultIn(resp kmsg.Response, partition int32) (offset int64, err error) {
	if r, ok := resp.(*kmsg.ProduceResponse); ok {
		for i := range r.Topics {
			for k := range r.Topics[i].Partitions {
				if rp := &r.Topics[i].Partitions[k]; rp.Partition == partition {
					return rp.BaseOffset, upstream.Said(rp.ErrorCode, upstream.Words(rp))
				}
			}
		}
	}
	return -1, kerr.UnknownServerError // it says nothing of it
}

// topicID reads the canonical form of a topic's id; zero where there is none.
func topicID(uuid string) (id [16]byte) {
	b, err := hex.DecodeString(strings.ReplaceAll(uuid, "-", ""))
	if err == nil && len(b) == len(id) {
		copy(id[:], b)
	}
	return id
}

// writes counts the produce requests of which a byte was written, by broker.
type writes struct{ byBroker sync.Map } // int32: *atomic.Int64

// OnBrokerWrite implements kgo.HookBrokerWrite. The client calls it before it
// returns a request's error.
func (w *writes) OnBrokerWrite(meta kgo.BrokerMetadata, key int16, bytes int, _, _ time.Duration, _ error) {
	if key != kmsg.Produce.Int16() || bytes == 0 {
		return
	}
	n, ok := w.byBroker.Load(meta.NodeID)
	if !ok {
		n, _ = w.byBroker.LoadOrStore(meta.NodeID, new(atomic.Int64))
	}
	n.(*atomic.Int64).Add(1)
}

// to is how many went to a broker. It only grows.
func (w *writes) to(broker int32) int64 {
	n, ok := w.byBroker.Load(broker)
	if !ok {
		return 0
	}
	return n.(*atomic.Int64).Load()
}
