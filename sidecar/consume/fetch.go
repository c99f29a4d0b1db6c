package consume

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sidecar/upstream"
)

// Waits of a fetch that leaves partitions out for lack of room: they must not
// wait for the end of a long poll once they have room again. It doubles while
// nothing comes, so that an application which does not acknowledge costs little.
const (
	crowdedWait    = 20 * time.Millisecond
	maxCrowdedWait = 160 * time.Millisecond
)

// cappedFetch is a fetch by topic names, as it was before topics had ids.
type cappedFetch struct{ *kmsg.FetchRequest }

func (cappedFetch) MaxVersion() int16 { return 12 }

// wanted is a cursor in a fetch.
type wanted struct {
	c      *cursor
	offset int64
	bytes  int // there is room for, decompressed
}

// runWorker fetches from one broker until no cursor is placed there.
func (r *reader) runWorker(broker int32, wake chan struct{}) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	crowded := crowdedWait
	for turn := 0; r.ctx.Err() == nil; turn++ {
		ws, left, pause, ok := r.gather(broker, turn)
		if !ok {
			return
		}
		if len(ws) == 0 {
			if pause > 0 {
				timer.Reset(pause)
			}
			select {
			case <-r.ctx.Done():
				return
			case <-wake:
			case <-timer.C:
			}
			continue
		}
		wait := r.cfg.FetchWait
		if left > 0 {
			wait = min(wait, crowded)
		}
		for _, w := range ws {
			if !w.c.fetched {
				// Whoever has just taken it wants to know soon whether there is
				// anything, not at the end of a long poll.
				wait = time.Millisecond
			}
		}
		if r.fetch(broker, ws, wait) || left == 0 {
			crowded = crowdedWait
		} else {
			crowded = min(2*crowded, maxCrowdedWait)
		}
	}
}

// firstFetch bounds what is asked for before it is known how much a batch grows
// in memory.
const firstFetch = 64 << 10

// askFor is how many bytes to ask the brokers for so that they fit into room
// when they are decompressed: limits of a fetch are of bytes on the wire.
func askFor(room, limit int, growth float64) int {
	if growth == 0 {
		return min(room, limit, firstFetch)
	}
	return max(1<<10, min(int(float64(room)/max(1, growth)), limit))
}

// askTogether is how many bytes to ask for of a partition that several groups read:
// each of them holds what comes, and it must fit into the room of all.
func askTogether(ws []wanted, limit int, free int64) int {
	least, growth := ws[0].bytes, 0.0
	for _, w := range ws {
		least, growth = min(least, w.bytes), max(growth, w.c.growth)
	}
	if n := int64(len(ws)); n > 1 && free > 0 {
		least = int(min(int64(least), max(free/n, oneBatch)))
	}
	return askFor(least, limit, growth)
}

// gather is what to fetch from a broker now: the cursors placed there that have
// room, how many there are without, and how long to wait when there are none
// with (0: until woken). It is not ok, and the worker is gone, when no cursor is
// placed there. The order turns, so that with full answers each comes first in
// its turn.
func (r *reader) gather(broker int32, turn int) (ws []wanted, left int, pause time.Duration, ok bool) {
	var mine []*cursor
	r.mu.Lock()
	for c := range r.cursors {
		if c.placed == broker {
			mine = append(mine, c)
		}
	}
	if len(mine) == 0 {
		delete(r.workers, broker)
		r.mu.Unlock()
		return nil, 0, 0, false
	}
	partitions := len(r.cursors)
	r.mu.Unlock()

	now := time.Now()
	for _, c := range mine {
		offset, bytes := c.sink.room()
		if bytes > 0 {
			bytes = int(min(int64(bytes), r.budget.allow(int64(c.sink.holds()), partitions)))
		}
		if bytes <= 0 {
			left++
			continue
		}
		if later := c.retryAt.Sub(now); later > 0 && offset == c.stuckAt {
			// It is no reason to cut the others' long polls short, unless it was found
			// just now and may be passed over in a moment.
			if c.failures == 1 {
				left++
			}
			if pause == 0 || later < pause {
				pause = later
			}
			continue
		}
		ws = append(ws, wanted{c, offset, bytes})
	}
	slices.SortFunc(ws, func(a, b wanted) int {
		return cmp.Or(cmp.Compare(a.c.topic, b.c.topic), cmp.Compare(a.c.partition, b.c.partition), cmp.Compare(a.offset, b.offset))
	})
	if n := len(ws); n > 0 {
		at := turn % n
		ws = append(slices.Clone(ws[at:]), ws[:at]...)
	}
	return ws, left, pause, true
}

// fetch does one request and hands out what came; it reports whether anything
// did.
func (r *reader) fetch(broker int32, ws []wanted, wait time.Duration) bool {
	// Several groups may read one partition, and a request can name a partition
	// once: those at the same offset, as all are at the end, share the answer.
	type place struct {
		topic     string
		partition int32
	}
	byPlace := make(map[place][]wanted, len(ws))
	names := map[[16]byte]string{}
	req := kmsg.NewPtrFetchRequest()
	req.MaxWaitMillis = int32(max(1, wait.Milliseconds()))
	req.MinBytes = 1
	req.IsolationLevel = 1 // read_committed
	at := map[string]int{}
	noIDs, skipped := false, false
	for _, w := range ws {
		p := place{w.c.topic, w.c.partition}
		if first := byPlace[p]; len(first) > 0 {
			if first[0].offset == w.offset && first[0].c.topicID == w.c.topicID {
				byPlace[p] = append(first, w)
			} else {
				skipped = true
			}
			continue
		}
		byPlace[p] = []wanted{w}
		i, ok := at[w.c.topic]
		if !ok {
			t := kmsg.NewFetchRequestTopic()
			t.Topic, t.TopicID = w.c.topic, w.c.topicID
			req.Topics = append(req.Topics, t)
			i = len(req.Topics) - 1
			at[w.c.topic] = i
			names[w.c.topicID] = w.c.topic
			noIDs = noIDs || w.c.topicID == [16]byte{}
		}
		rp := kmsg.NewFetchRequestTopicPartition()
		rp.Partition = w.c.partition
		rp.FetchOffset = w.offset
		req.Topics[i].Partitions = append(req.Topics[i].Partitions, rp)
	}
	// All together must fit into what is free, or into what those may have that
	// are read in spite of its being taken.
	free := r.budget.common() - r.budget.held.Load()
	growth, sharers, parts := 1.0, 1, int64(0)
	for i := range req.Topics {
		for j := range req.Topics[i].Partitions {
			rp := &req.Topics[i].Partitions[j]
			ws := byPlace[place{req.Topics[i].Topic, rp.Partition}]
			rp.PartitionMaxBytes = int32(askTogether(ws, r.cfg.PartitionFetchBytes, free))
			for _, w := range ws {
				growth = max(growth, w.c.growth)
				parts += int64(w.bytes)
			}
			sharers = max(sharers, len(ws))
		}
	}
	req.MaxBytes = int32(askFor(int(min(max(free, parts), 1<<30))/sharers, r.cfg.FetchBytes, growth))
	if skipped {
		// The others come in a later turn, soon.
		req.MaxWaitMillis = min(req.MaxWaitMillis, int32(crowdedWait.Milliseconds()))
	}
	var kreq kmsg.Request = req
	if noIDs {
		kreq = cappedFetch{req}
	}
	kresp, err := r.client.Broker(int(broker)).Request(r.ctx, kreq)
	if r.ctx.Err() != nil {
		return false
	}
	resp, _ := kresp.(*kmsg.FetchResponse)
	if err == nil && resp == nil {
		err = fmt.Errorf("unexpected answer %T", kresp)
	}
	if err == nil {
		err = kerr.ErrorForCode(resp.ErrorCode)
	}
	if err != nil {
		why := fmt.Sprintf("broker %d: %v", broker, r.up.Cause(err))
		for _, sharers := range byPlace {
			for _, w := range sharers {
				r.fail(w.c, why)
			}
		}
		return false
	}
	whole := 0
	for i := range resp.Topics {
		for j := range resp.Topics[i].Partitions {
			whole += len(resp.Topics[i].Partitions[j].RecordBatches)
		}
	}
	came := false
	for i := range resp.Topics {
		t := &resp.Topics[i]
		name := t.Topic
		if resp.Version >= 13 {
			name = names[t.TopicID]
		}
		for j := range t.Partitions {
			rp := &t.Partitions[j]
			for _, w := range byPlace[place{name, rp.Partition}] {
				w.c.shared = 0
				if uncompressed(rp.RecordBatches) {
					w.c.shared = whole
				}
				came = r.deliver(broker, w, rp) || came
			}
		}
	}
	return came
}

// uncompressed says whether records of an answer lie in it as they are: others
// are decompressed into memory of their own. All batches are taken to be as the
// first.
func uncompressed(batches []byte) bool {
	const codecAt = 22 // the low bits of the attributes (Kafka protocol guide, RecordBatch)
	return len(batches) > codecAt && batches[codecAt]&7 == 0
}

// deliver hands one partition of an answer to its owner.
func (r *reader) deliver(broker int32, w wanted, rp *kmsg.FetchResponseTopicPartition) (came bool) {
	c := w.c
	err := kerr.ErrorForCode(rp.ErrorCode)
	switch {
	case err == nil:
	case errors.Is(err, kerr.OffsetOutOfRange):
		c.failures++
		c.retryAt, c.stuckAt = time.Now().Add(backOff(c.failures, 20*time.Millisecond, 2*time.Second)), w.offset
		c.sink.outOfRange(w.offset)
		return false
	case errors.Is(err, kerr.CorruptMessage):
		r.standStill(c, unreadable{offset: w.offset, after: -1, end: -1, kind: kindUndecodable,
			why: fmt.Sprintf("the broker cannot read offset %d of partition %d of topic %s: %v", w.offset, c.partition, c.topic, err)})
		return false
	case errors.Is(err, kerr.UnknownTopicOrPartition), errors.Is(err, kerr.UnknownTopicID), errors.Is(err, kerr.InconsistentTopicID):
		// Which of them it is, gone or not here yet, the finder sees.
		r.fail(c, fmt.Sprintf("broker %d: %v", broker, err))
		return false
	default:
		r.fail(c, fmt.Sprintf("broker %d: %v", broker, err))
		return false
	}
	// What the records take is counted here until their owner counts it.
	claim := r.unpack.Claim()
	defer claim.Release()
	answer := upstream.Answer{
		Topic: c.topic, Partition: c.partition, Offset: w.offset, End: -1, Room: int64(w.bytes),
		Admit: r.budget.admits,
	}
	d, err := r.unpack.Decode(r.ctx, claim, answer, rp)
	if err != nil {
		return false // the reader stops
	}
	if d.Corrupt != nil || rp.HighWatermark >= 0 && d.Next > rp.HighWatermark {
		// A batch may be in the wrong place, above the log's end. The end that
		// comes with an answer may be a little older than what is in it.
		ends, err := r.up.EndOffsets(r.ctx, c.topic)
		if err := missingPartition(ends, c.partition, err); err != nil {
			r.fail(c, err.Error())
			return false
		}
		claim.Release()
		answer.End = ends[c.partition]
		if d, err = r.unpack.Decode(r.ctx, claim, answer, rp); err != nil {
			return false
		}
	}
	if d.Full {
		// What others hold leaves no room for so large a batch. It comes once some
		// of that is acknowledged.
		c.failures++
		c.fetched, c.stuckAt = true, w.offset
		c.retryAt = time.Now().Add(backOff(c.failures, crowdedWait, time.Second))
		c.sink.accept(w.offset, kgo.FetchPartition{HighWatermark: rp.HighWatermark, LastStableOffset: rp.LastStableOffset}, w.offset)
		return false
	}
	part, next, corrupt := d.Part, d.Next, d.Corrupt
	var u *unreadable
	if corrupt != nil {
		u = &unreadable{offset: corrupt.Offset, after: corrupt.After, kind: kindUndecodable, why: corrupt.Error()}
		if corrupt.Oversized {
			u.kind = kindOversized
		}
	}
	if large := tooLarge(part.Records, r.cfg.MaxMessageBytes); large != nil {
		part.Records, next = before(part.Records, large.offset), large.offset
		u = large
	}
	if u != nil && next == w.offset {
		// It cannot be delivered, now or later, and passing over it would lose
		// it. What came before it has been delivered.
		u.end = part.HighWatermark
		if part.LastStableOffset >= 0 {
			u.end = part.LastStableOffset
		}
		r.standStill(c, *u)
		return false
	}
	c.failures, c.retryAt, c.fetched = 0, time.Time{}, true
	if n := d.Bytes; n > 0 && len(part.Records) > 0 {
		held := 0
		for _, rec := range part.Records {
			held += sizeOf(rec)
		}
		// Rising at once and falling slowly, since too little costs a fetch and
		// too much memory.
		c.growth = max(float64(held)/float64(n), c.growth*0.9)
	}
	c.sink.trouble("")
	c.sink.accept(w.offset, part, next)
	return next > w.offset
}

// bounds asks for the first and the end offset of a partition.
func bounds(ctx context.Context, up Upstream, topic string, partition int32) (start, end int64, err error) {
	starts, err := up.StartOffsets(ctx, topic)
	if err := missingPartition(starts, partition, err); err != nil {
		return 0, 0, err
	}
	ends, err := up.EndOffsets(ctx, topic)
	if err := missingPartition(ends, partition, err); err != nil {
		return 0, 0, err
	}
	return starts[partition], ends[partition], nil
}
