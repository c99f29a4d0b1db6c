package spool

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/commitlog"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// accept takes messages onto this host's disk. The error is an *api.Error and of
// all of them: none is taken, except with unknown_outcome, where all, some or none
// are. Messages without a key go to one partition after the other.
func (s *Spool) accept(ctx context.Context, topic string, ms []publish.Message, o publish.Options, batch bool) ([]api.BatchResult, error) {
	now, accepted := time.Now(), s.time()
	if e := s.checkSizes(ms, batch); e != nil {
		return nil, e
	}
	if err := s.here(); err != nil {
		return nil, s.refuse(s.appendError(err), len(ms))
	}
	t, err := s.topic(ctx, topic)
	if err != nil {
		return nil, s.refuse(asError(err), len(ms))
	}
	sorted, err := s.sort(t, ms, batch)
	if err != nil {
		return nil, s.refuse(asError(err), len(ms))
	}
	groups, size := s.encode(t, sorted, accepted, now)
	if e := s.room(size); e != nil {
		return nil, s.refuse(e, len(ms))
	}
	defer s.reserved.Add(-size)

	if err := s.append(groups, accepted); err != nil {
		return nil, s.refuse(s.appendError(err), len(ms))
	}
	if o.Entered != nil {
		o.Entered() // their order is that of the journal
	}
	if _, err := s.journal.Flush(); err != nil {
		s.log.Error("the spool's disk does not sync", zap.Error(err))
		return nil, s.refuse(api.NewError(api.CodeUnknownOutcome, "the spool's disk failed while the messages were synced; they may be sent or not: "+err.Error()), len(ms))
	}
	poke(s.wake)
	s.metrics.accepted.Add(float64(len(ms)))
	s.metrics.acceptedBytes.Add(float64(size))
	return s.results(groups, sorted, len(ms)), nil
}

func (s *Spool) refuse(e *api.Error, n int) *api.Error {
	s.metrics.refused.WithLabelValues(string(e.Code)).Add(float64(n))
	return e
}

func (s *Spool) checkSizes(ms []publish.Message, batch bool) *api.Error {
	for i, m := range ms {
		n := len(m.Key) + len(m.Value)
		for _, h := range m.Headers {
			n += len(h.Key) + len(h.Value)
		}
		if n <= s.cfg.MaxMessageSize {
			continue
		}
		e := api.NewError(api.CodeMessageTooLarge, fmt.Sprintf("the message has %d bytes with its key and headers: at most %d are allowed (publish.max_message_bytes)", n, s.cfg.MaxMessageSize))
		if batch {
			e.Message = fmt.Sprintf("message %d of the batch: %s; nothing was taken", i+1, e.Message)
			e.Line = i + 1
		}
		return e
	}
	return nil
}

// sorted are messages by partition, in their order within each.
type sorted struct {
	messages []publish.Message
	where    []int // in the request
	runs     []run
}

// run is the messages of one partition: sorted.messages[from:to].
type run struct {
	partition int32
	from, to  int
}

// sort chooses each message's partition.
func (s *Spool) sort(t accepting, ms []publish.Message, batch bool) (sorted, error) {
	if len(ms) == 1 { // most of them
		p, err := s.choose(t, ms[0], s.turns.Add(1))
		return sorted{messages: ms, where: []int{0}, runs: []run{{p, 0, 1}}}, err
	}
	parts := make([]int32, len(ms))
	counts := make([]int, t.Partitions)
	turn, inTurn := s.turns.Add(1), 0
	for i, m := range ms {
		p, err := s.choose(t, m, turn)
		if err != nil {
			var e *api.Error
			if batch && errors.As(err, &e) && e.Code == api.CodePartitionNotFound {
				e = api.NewError(api.CodeBadRecord, fmt.Sprintf("message %d of the batch: %s; nothing was taken", i+1, e.Message))
				e.Line = i + 1
				err = e
			}
			return sorted{}, err
		}
		if m.Key == nil && m.Partition == nil {
			if inTurn++; inTurn >= entryEvents {
				turn, inTurn = s.turns.Add(1), 0
			}
		}
		parts[i] = p
		counts[p]++
	}
	out := sorted{messages: make([]publish.Message, len(ms)), where: make([]int, len(ms))}
	at := 0
	for p, n := range counts {
		if n > 0 {
			out.runs = append(out.runs, run{int32(p), at, at + n})
		}
		counts[p] = at // where its next message goes
		at += n
	}
	for i, p := range parts {
		out.messages[counts[p]] = ms[i]
		out.where[counts[p]] = i
		counts[p]++
	}
	return out, nil
}

// choose is a message's partition. Those that have no leader are passed over by
// messages without a key, as far as that is known.
func (s *Spool) choose(t accepting, m publish.Message, turn uint32) (int32, error) {
	switch {
	case m.Partition != nil:
		if p := *m.Partition; p >= 0 && p < t.Partitions {
			return p, nil
		}
		return 0, api.NewError(api.CodePartitionNotFound, fmt.Sprintf("topic %s has no partition %d: it has 0 to %d", t.Name, *m.Partition, t.Partitions-1))
	case m.Key != nil:
		return publish.PartitionOf(m.Key, t.Partitions), nil
	}
	first := int32(turn % uint32(t.Partitions))
	for i := range t.leaders {
		p := t.leaders[(int(first)+i)%len(t.leaders)]
		if p.Leader >= 0 {
			return p.ID, nil
		}
	}
	return first, nil
}

// group is one entry that is to be appended.
type group struct {
	key   laneKey
	raw   []byte
	run   run
	base  int64 // once it is appended
	count int
}

// encode makes the entries of messages; size is their bytes.
func (s *Spool) encode(t accepting, in sorted, accepted, now time.Time) (groups []group, size int64) {
	var scratch []byte
	for _, r := range in.runs {
		key := laneKey{topic: t.Name, uuid: t.UUID, partition: r.partition}
		for from := r.from; from < r.to; {
			to, bytes := from, 0
			for to < r.to && to-from < entryEvents {
				m := &in.messages[to]
				n := len(m.Key) + len(m.Value) + 32
				for _, h := range m.Headers {
					n += len(h.Key) + len(h.Value) + 4
				}
				if to > from && bytes+n > entryBytes {
					break
				}
				bytes += n
				to++
			}
			var raw []byte
			raw, scratch = appendEntry(make([]byte, 0, bytes+256), scratch, key, in.messages[from:to], accepted, now)
			groups = append(groups, group{key: key, raw: raw, run: run{r.partition, from, to}, count: to - from})
			size += int64(len(raw))
			from = to
		}
	}
	return groups, size
}

// room reserves bytes, or says why there are none.
func (s *Spool) room(size int64) *api.Error {
	if stale := s.stale.Load(); stale != nil {
		return refused(*stale)
	}
	used := s.diskBytes() + s.reserved.Add(size)
	if used <= s.cfg.MaxBytes {
		s.full.Store(false)
		return nil
	}
	s.reserved.Add(-size)
	s.full.Store(true)
	return refused(fmt.Sprintf("the spool holds %d of at most %d bytes (spool.max_bytes) that are not written yet", used-size, s.cfg.MaxBytes))
}

// diskBytes is what the spool's messages take.
func (s *Spool) diskBytes() int64 { return s.journal.Size() + s.parkedBytes.Load() }

// append puts the groups into the journal and makes the lanes know of them.
func (s *Spool) append(groups []group, accepted time.Time) error {
	raws := make([][]byte, len(groups))
	for i := range groups {
		raws[i] = groups[i].raw
	}
	s.accepting.take()
	defer s.accepting.leave()
	s.mu.Lock()
	closed := s.closed
	s.mu.Unlock()
	if closed {
		return errClosed
	}
	if err := s.keepNonces(); err != nil {
		return err
	}
	base, _, err := s.journal.Append(raws, -1, accepted)
	if err != nil {
		return err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	for i := range groups {
		groups[i].base = base
		base += int64(groups[i].count) + 1
		s.register(s.laneOf(groups[i].key), groups[i].base, base, groups[i].count, accepted)
	}
	return nil
}

var errClosed = errors.New("this sidecar is stopping and takes no more messages")

func (s *Spool) appendError(err error) *api.Error {
	switch {
	case errors.Is(err, errClosed):
		return api.NewError(api.CodeDraining, err.Error())
	case errors.Is(err, errNonce):
		return refused(err.Error() + "; nothing was taken")
	case errors.Is(err, commitlog.ErrNoSpace):
		return refused("the disk of the spool is full; nothing was taken")
	case errors.Is(err, commitlog.ErrOffline):
		e := api.NewError(api.CodeDiskUnavailable, "the spool takes nothing until the sidecar is started again, and nothing was taken: "+err.Error())
		e.RetryAfterMillis = 1000
		return e
	case errors.Is(err, commitlog.ErrTooLarge):
		return api.NewError(api.CodeRequestTooLarge, err.Error())
	}
	// What a write that failed has left may be found by the next start.
	s.log.Error("the spool's disk does not take messages", zap.Error(err))
	return api.NewError(api.CodeUnknownOutcome, "the spool's disk failed while the messages were written; they may be sent or not: "+err.Error())
}

// results are the answers, in the order of the request.
func (s *Spool) results(groups []group, in sorted, n int) []api.BatchResult {
	results := make([]api.BatchResult, n)
	text := make([]byte, 0, n*(nonceLength+10))
	ends := make([]int, n)
	for _, g := range groups {
		for i := g.run.from; i < g.run.to; i++ {
			text = appendID(text, s.nonce, g.base+1+int64(i-g.run.from))
			ends[i] = len(text)
		}
	}
	ids, at := string(text), 0
	for _, g := range groups {
		for i := g.run.from; i < g.run.to; i++ {
			results[in.where[i]] = api.BatchResult{Partition: g.key.partition, Offset: -1, SpoolID: ids[at:ends[i]]}
			at = ends[i]
		}
	}
	return results
}
