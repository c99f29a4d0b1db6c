package consume

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// Bounds of one redrive.
const (
	defaultRedrive  = 100
	MaxRedrive      = 10_000
	maxRedriveIDs   = 1000
	redriveBatch    = 200     // letters that are written and noted together
	redriveBytes    = 4 << 20 // and their bytes
	maxKept         = 100     // letters that are told of in one answer
	redriveReserve  = 5 * time.Second
	redriveDiscard  = "discarded"
	redriveRedriven = "redriven"
)

// Redrive brings dead letters back to the topic where they were, or counts them
// as done. It may be repeated: each letter that was brought back is noted in the
// coordination store. When this process dies in between, the letters of one
// batch may be brought back once more; their header sidestream-redriven tells.
//
// Errors: bad_request, group_not_found, topic_not_found, conflict while another
// redrive of the group runs, brokers_unavailable, store_unavailable. When it
// fails after some letters, the answer has them and the error.
func (m *Manager) Redrive(ctx context.Context, group, topic string, req api.RedriveRequest) (api.Redriven, error) {
	var out api.Redriven
	switch {
	case req.Max == 0:
		req.Max = defaultRedrive
	case req.Max < 0 || req.Max > MaxRedrive:
		return out, badRequest("max=%d: use 1 to %d", req.Max, MaxRedrive)
	}
	if len(req.IDs) > maxRedriveIDs {
		return out, badRequest("ids has %d letters: at most %d are taken at once", len(req.IDs), maxRedriveIDs)
	}
	err := checkReason(req.Reason)
	if err != nil {
		return out, err
	}
	var unknown error
	if out.Topic, unknown, err = m.deadTopicOf(ctx, group, topic, req.Dead); err != nil {
		return out, err
	}
	to := topic
	if req.To != "" {
		to = req.To
		if err := discovery.CheckName("topic", to); err != nil {
			return out, badRequest("to=%q: %v", to, err)
		}
	}
	if to == out.Topic {
		return out, badRequest("topic %s is where the dead letters are: bring them back to another", to)
	}
	look, err := m.lookAtDead(ctx, out.Topic, req.After)
	if look == nil && err == nil {
		err = unknown
	}
	if err != nil {
		return out, err
	}
	if look == nil {
		out.NotFound = req.IDs
		return out, nil
	}
	var target upstream.Topic
	if !req.Discard {
		if target, err = m.up.Refresh(ctx, to); err != nil {
			return out, brokerError("read the topic to bring the messages back to", err)
		}
	}
	lock, err := m.lockRedrive(ctx, group)
	if err != nil {
		return out, err
	}
	defer lock.release()
	marks, err := m.readRedriven(ctx, group, topic, look.topic)
	if err != nil {
		return out, err
	}
	// The answer has to be on its way before the caller gives up.
	if deadline, ok := ctx.Deadline(); ok {
		var cancel context.CancelFunc
		ctx, cancel = context.WithDeadline(ctx, deadline.Add(-redriveReserve))
		defer cancel()
	}
	r := &redrive{m: m, group: group, topic: topic, req: req, target: target, look: look, marks: marks, lock: lock, out: &out, seen: map[string]bool{}}
	err = r.run(ctx)
	out.NotFound = r.notMet()
	if out.Redriven > 0 {
		how := redriveRedriven
		if req.Discard {
			how = redriveDiscard
		}
		m.usesSeries(group)
		m.metrics.redriven.WithLabelValues(group, topic, how).Add(float64(out.Redriven))
		m.log.Info("dead letters were "+how, zap.String("group", group), zap.String("from", out.Topic), zap.String("to", to),
			zap.Int("letters", out.Redriven), zap.Int("copies", out.Copies), zap.Int("kept", len(out.Kept)))
	}
	if err != nil && out.Redriven > 0 {
		out.Error = brokerError("redrive", err)
		return out, nil
	}
	return out, err
}

// redrive is one under way.
type redrive struct {
	m            *Manager
	group, topic string
	req          api.RedriveRequest
	target       upstream.Topic
	look         *deadLook
	marks        redrivenMarks
	lock         *redriveLock
	out          *api.Redriven

	batch []redriveLetter
	bytes int
	seen  map[string]bool // of the letters that were met: brought back, or on its way
	after deadCursor      // where the batch begins
}

// redriveLetter is a letter on its way back.
type redriveLetter struct {
	l      letter
	record *kgo.Record // as it stands among the dead letters
	m      *kgo.Record // the message in it
}

func (r *redrive) run(ctx context.Context) error {
	for {
		r.after = cloneCursor(r.look.cursor)
		full := false
		err := r.look.scan(ctx, r.m.up, func(rec *kgo.Record) bool {
			full = !r.take(rec)
			return !full
		})
		if err != nil {
			return err
		}
		done := r.out.Redriven+len(r.batch) >= r.req.Max || len(r.out.Kept) >= maxKept
		if err := r.flush(ctx); err != nil {
			r.out.Next, r.out.Unread = r.after.String(), r.look.unread
			return err
		}
		r.out.Next, r.out.Unread = r.look.cursor.String(), r.look.unread
		if !full || done || ctx.Err() != nil {
			return nil
		}
	}
}

func cloneCursor(c deadCursor) deadCursor {
	out := deadCursor{}
	for p, span := range c {
		out[p] = span
	}
	return out
}

// take looks at a record of the topic of dead letters; false when it has to wait
// for the next batch.
func (r *redrive) take(rec *kgo.Record) bool {
	l, msg, ok := letterOf(rec)
	switch {
	case !ok || l.group != r.group || l.topic != r.topic:
		// Not ours: passed over once and for all.
		r.marks.mark(rec.Partition, rec.Offset)
		return true
	case r.marks.isDone(rec.Partition, rec.Offset):
		r.seen[l.id] = true
		return true
	case r.req.Reason != "" && l.reason != r.req.Reason, len(r.req.IDs) > 0 && !slices.Contains(r.req.IDs, l.id):
		return true
	case r.seen[l.id]:
		r.out.Copies++
		r.marks.mark(rec.Partition, rec.Offset)
		return true
	}
	if r.out.Redriven+len(r.batch) >= r.req.Max || len(r.out.Kept) >= maxKept ||
		len(r.batch) >= redriveBatch || r.bytes > 0 && r.bytes+sizeOf(rec) > redriveBytes {
		return false
	}
	if !r.req.Discard && !l.decodable() {
		r.keep(l, apiError(api.CodeBadRecord, "nobody can read what was there: %s", l.err))
		return true
	}
	if !r.req.Discard && l.several() {
		r.keep(l, apiError(api.CodeMessageTooLarge, "it is of the messages from offset %d to %d, which take too much memory together; to have them, raise kafka.max_unpacked_bytes and seek the group to offset %d", l.offset, l.until-1, l.offset))
		return true
	}
	r.seen[l.id] = true
	r.batch = append(r.batch, redriveLetter{l, rec, msg})
	r.bytes += sizeOf(rec)
	return true
}

// notMet are the ids that were asked for and of which no letter was met.
func (r *redrive) notMet() (ids []string) {
	for _, id := range r.req.IDs {
		if _, met := r.seen[id]; !met {
			ids = append(ids, id)
		}
	}
	return ids
}

func (r *redrive) keep(l letter, why *api.Error) {
	r.seen[l.id] = false // a copy of it is no copy of what was brought back
	r.out.Kept = append(r.out.Kept, api.KeptLetter{ID: l.id, Error: why})
}

// flush writes the batch and notes what was written.
func (r *redrive) flush(ctx context.Context) error {
	batch := r.batch
	r.batch, r.bytes = nil, 0
	var failed error
	if r.req.Discard {
		for _, x := range batch {
			r.done(x)
		}
	} else {
		failed = r.write(ctx, batch)
	}
	if err := r.lock.save(ctx, r.group, r.topic, r.look.topic.Name, r.marks); err != nil {
		return err
	}
	return failed
}

func (r *redrive) done(x redriveLetter) {
	r.out.Redriven++
	r.marks.mark(x.record.Partition, x.record.Offset)
}

// write brings messages back, in the order of the letters.
func (r *redrive) write(ctx context.Context, batch []redriveLetter) error {
	var letters []redriveLetter
	var records []*kgo.Record
	for _, x := range batch {
		rec, kept, err := r.record(ctx, x)
		if err != nil {
			return err
		}
		if kept != nil {
			r.keep(x.l, kept)
			continue
		}
		letters, records = append(letters, x), append(records, rec)
	}
	if len(records) == 0 {
		return nil
	}
	errs := r.m.dead.write(ctx, r.target, records)
	var failed error
	for i, x := range letters {
		e := errs[i]
		if e != nil && e.Code == api.CodeMessageTooLarge {
			// Of its batch, or of itself with the header that it got.
			e = r.m.dead.write(ctx, r.target, []*kgo.Record{plain(records[i])})[0]
		}
		switch {
		case e == nil:
			r.done(x)
		case e.Code == api.CodeMessageTooLarge, e.Code == api.CodeBadRecord:
			r.keep(x.l, e)
		default:
			failed = e
		}
	}
	return failed
}

// plain is a record without the header that says where it comes from.
func plain(r *kgo.Record) *kgo.Record {
	return &kgo.Record{Topic: r.Topic, Partition: r.Partition, Key: r.Key, Value: r.Value, Timestamp: r.Timestamp, Headers: r.Headers[:len(r.Headers)-1]}
}

// record is the message of a letter as it goes back: to its partition, where the
// topic has that still, at the present time, since retention would remove it by
// its former one before anybody has seen it. What did not fit into the letter is
// read where it was. kept says why it cannot be brought back.
func (r *redrive) record(ctx context.Context, x redriveLetter) (rec *kgo.Record, kept *api.Error, err error) {
	m := x.m
	if x.l.leftOut > 0 {
		rs, _, _, err := r.m.up.Peek(ctx, x.l.topic, x.l.partition, x.l.offset, 1, 1)
		switch {
		case isCode(err, api.CodeBrokersUnavailable):
			return nil, nil, err
		case isCode(err, api.CodeCorruptRecord):
			return nil, apiError(api.CodeMessageTooLarge, "%d bytes of it did not fit into the letter, and it cannot be read where it was: %v", x.l.leftOut, err), nil
		case err != nil || len(rs) == 0 || rs[0].Offset != x.l.offset || !sameMessage(x.l, m, rs[0]):
			return nil, apiError(api.CodeMessageTooLarge, "%d bytes of it did not fit into the letter, and the message is no longer where it was", x.l.leftOut), nil
		}
		m = rs[0]
	}
	rec = &kgo.Record{Topic: r.target.Name, Key: m.Key, Value: m.Value, Timestamp: time.Now()}
	for _, h := range m.Headers {
		if h.Key != headerRedriven { // of its former ways
			rec.Headers = append(rec.Headers, h)
		}
	}
	rec.Headers = append(rec.Headers, kgo.RecordHeader{Key: headerRedriven, Value: []byte(x.l.id)})
	n := len(r.target.Partitions)
	prefer := preferred(m.Key, x.l.partition, n)
	if r.target.Name == x.l.topic && int(x.l.partition) < n {
		prefer = x.l.partition
	}
	if m.Key != nil {
		// In another partition the messages of a key would lose their order.
		if p, ok := r.target.Partition(prefer); !ok || p.Leader < 0 {
			return nil, nil, apiError(api.CodeBrokersUnavailable, "partition %d of topic %s has no leader", prefer, r.target.Name)
		}
		rec.Partition = prefer
		return rec, nil, nil
	}
	rec.Partition, err = place(r.target, prefer)
	return rec, nil, err
}

// redriveLock lets one redrive of a group run at a time.
type redriveLock struct {
	m     *Manager
	group string
	sess  discovery.Session
}

func (m *Manager) lockRedrive(ctx context.Context, group string) (*redriveLock, error) {
	running := apiError(api.CodeConflict, "another redrive of group %s runs: wait until it is done", group)
	sess := m.session()
	if sess == nil {
		return nil, apiError(api.CodeStoreUnavailable, "this sidecar has no session with the coordination store: try again")
	}
	m.mu.Lock()
	mine := m.redriving[group]
	m.redriving[group] = true
	m.mu.Unlock()
	if mine {
		return nil, running
	}
	l := &redriveLock{m: m, group: group, sess: sess}
	_, err := m.store.Commit(ctx, discovery.Acquire(discovery.KeyRedriving(group), discovery.Encode(discovery.Owner{Sidecar: m.id, Nonce: m.nonce}), sess.ID()))
	if err != nil {
		l.forget()
		if errors.Is(err, discovery.ErrConflict) {
			return nil, running
		}
		return nil, storeError("lock the dead letters", err)
	}
	return l, nil
}

func (l *redriveLock) forget() {
	l.m.mu.Lock()
	delete(l.m.redriving, l.group)
	l.m.mu.Unlock()
}

// release gives the lock back; without the store it ends with the session.
func (l *redriveLock) release() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	key := discovery.KeyRedriving(l.group)
	if _, err := l.m.store.Commit(ctx, discovery.Held(key, l.sess.ID()), discovery.Delete(key)); err != nil {
		l.m.log.Debug("the lock of the dead letters could not be given back; it ends with the session", zap.Error(err))
	}
	l.forget()
}

// save notes what was brought back, while the lock is held.
func (l *redriveLock) save(ctx context.Context, group, topic, dead string, marks redrivenMarks) error {
	var ops []discovery.Op
	var saved []*redrivenMark
	for p, mark := range marks.by {
		if !mark.changed {
			continue
		}
		value, dropped := mark.pos.Encode()
		if dropped > 0 {
			return apiError(api.CodeConflict, "the letters that are left are too scattered to be noted in the coordination store: redrive or discard those in between first (leave out ids and reason)")
		}
		ops = append(ops, discovery.CAS(fmt.Sprint(discovery.PrefixRedriven(group, topic, dead), p), value, mark.version))
		saved = append(saved, mark)
	}
	if len(saved) == 0 {
		return nil
	}
	// What was written is noted even when the caller's time is over.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), redriveReserve)
	defer cancel()
	held := discovery.Held(discovery.KeyRedriving(group), l.sess.ID())
	for chunk := range slices.Chunk(ops, discovery.MaxCommitOps-1) {
		written, err := l.m.store.Commit(ctx, append([]discovery.Op{held}, chunk...)...)
		if errors.Is(err, discovery.ErrConflict) {
			return apiError(api.CodeConflict, "another redrive took over: letters of the last batch may be brought back once more")
		}
		if err != nil {
			return storeError("note what was redriven (letters of the last batch may be brought back once more)", err)
		}
		for i, e := range written {
			saved[i].version, saved[i].changed = e.Version, false
		}
		saved = saved[len(written):]
	}
	return nil
}
