package consume

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/offsets"
	"sidestream/sidecar/upstream"
)

// Bounds of one look at dead letters: what it may cost however many letters of
// other groups lie between.
const (
	defaultDead   = 10
	MaxDead       = 1000
	deadPage      = 500     // records of one fetch
	deadPageBytes = 4 << 20 // and their bytes
	deadScan      = 20_000  // records of one request
	deadScanBytes = 64 << 20
	deadBytes     = 8 << 20 // of letters in one answer
)

// DeadRequest asks for dead letters.
type DeadRequest struct {
	Group, Topic string // Topic: where the messages were
	Max          int    // 0: 10
	After        string // Next of an earlier answer
	Reason       string // letters of this reason only; "" any
	Dead         string // topic of the letters; "": the group's
	All          bool   // those too that were redriven
}

// Dead shows the dead letters of a group that came from a topic. Errors:
// bad_request, group_not_found, brokers_unavailable, store_unavailable.
func (m *Manager) Dead(ctx context.Context, req DeadRequest) (api.DeadLetters, error) {
	out := api.DeadLetters{Letters: []api.DeadLetter{}}
	switch {
	case req.Max == 0:
		req.Max = defaultDead
	case req.Max < 0 || req.Max > MaxDead:
		return out, badRequest("max=%d: use 1 to %d", req.Max, MaxDead)
	}
	err := checkReason(req.Reason)
	if err != nil {
		return out, err
	}
	var unknown error
	if out.Topic, unknown, err = m.deadTopicOf(ctx, req.Group, req.Topic, req.Dead); err != nil {
		return out, err
	}
	look, err := m.lookAtDead(ctx, out.Topic, req.After)
	if look == nil && err == nil {
		err = unknown
	}
	if err != nil || look == nil {
		return out, err
	}
	done, err := m.readRedriven(ctx, req.Group, req.Topic, look.topic)
	if err != nil {
		return out, err
	}
	size := 0
	err = look.scan(ctx, m.up, func(r *kgo.Record) bool {
		l, msg, ok := letterOf(r)
		if !ok || l.group != req.Group || l.topic != req.Topic || req.Reason != "" && l.reason != req.Reason {
			return true
		}
		redriven := done.isDone(r.Partition, r.Offset)
		if redriven && !req.All {
			return true
		}
		if len(out.Letters) == req.Max || size > 0 && size+sizeOf(r) > deadBytes {
			return false
		}
		size += sizeOf(r)
		shown := l.show(msg)
		shown.Redriven = redriven
		out.Letters = append(out.Letters, shown)
		return true
	})
	out.Next, out.Unread = look.cursor.String(), look.unread
	return out, err
}

// deadTopicOf is where the dead letters of a group are. The letters outlive the
// group: unknown is what to say when there is neither.
func (m *Manager) deadTopicOf(ctx context.Context, group, topic, named string) (dead string, unknown, err error) {
	if err := checkNames(group, topic); err != nil {
		return "", nil, err
	}
	c, _, err := m.readConfig(ctx, group)
	if isCode(err, api.CodeGroupNotFound) {
		unknown, err = err, nil
	}
	if err != nil {
		return "", nil, err
	}
	if named != "" {
		if err := discovery.CheckName("topic", named); err != nil {
			return "", nil, badRequest("dead=%q: %v", named, err)
		}
		return named, unknown, nil
	}
	switch dead := deadOf(group, c); dead {
	case deadSkip, deadOff:
		return "", nil, badRequest("group %s keeps no dead letters (dead=%s): name the topic of earlier ones, dead=%s for example", group, dead, deadTopic(group))
	default:
		return dead, unknown, nil
	}
}

// deadLook is a way through a topic of dead letters.
type deadLook struct {
	topic  upstream.Topic
	cursor deadCursor
	unread []int32 // partitions that could not be read
}

// lookAtDead begins a way through a topic of dead letters, or goes on with one;
// nil when there is no such topic: nothing has died yet.
func (m *Manager) lookAtDead(ctx context.Context, dead, after string) (*deadLook, error) {
	t, err := m.up.Refresh(ctx, dead)
	if isCode(err, api.CodeTopicNotFound) {
		return nil, nil
	}
	if err != nil {
		return nil, brokerError("read the topic of the dead letters", err)
	}
	look := &deadLook{topic: t}
	if after != "" {
		look.cursor, err = parseDeadCursor(after)
		return look, err
	}
	var partial *upstream.PartialError
	starts, err := m.up.StartOffsets(ctx, dead)
	if err != nil && !errors.As(err, &partial) {
		return nil, brokerError("find the dead letters", err)
	}
	ends, err := m.up.EndOffsets(ctx, dead)
	if err != nil && !errors.As(err, &partial) {
		return nil, brokerError("find the dead letters", err)
	}
	look.cursor = deadCursor{}
	for _, p := range t.Partitions {
		start, known := starts[p.ID]
		end, ended := ends[p.ID]
		switch {
		case !known || !ended:
			look.unread = append(look.unread, p.ID)
		case start < end:
			look.cursor[p.ID] = deadSpan{start, end}
		}
	}
	return look, nil
}

// deadCursor is what is still to be looked at of each partition.
type deadCursor map[int32]deadSpan

// deadSpan is from which offset on up to which, the latter not in it.
type deadSpan struct{ at, until int64 }

// String is the cursor as applications send it back: "" when nothing is left.
func (c deadCursor) String() string {
	var parts []string
	for _, p := range slices.Sorted(maps.Keys(c)) {
		parts = append(parts, fmt.Sprintf("%d.%d-%d", p, c[p].at, c[p].until))
	}
	return strings.Join(parts, ",")
}

func parseDeadCursor(s string) (deadCursor, error) {
	c := deadCursor{}
	for part := range strings.SplitSeq(s, ",") {
		number, span, ok := strings.Cut(part, ".")
		first, last, ok2 := strings.Cut(span, "-")
		p, err := strconv.ParseInt(number, 10, 32)
		at, err2 := strconv.ParseInt(first, 10, 64)
		until, err3 := strconv.ParseInt(last, 10, 64)
		if !ok || !ok2 || errors.Join(err, err2, err3) != nil || p < 0 || at < 0 || until <= at {
			return nil, badRequest("after=%q: use the next of an earlier answer, unchanged", s)
		}
		c[int32(p)] = deadSpan{at, until}
	}
	return c, nil
}

// scan shows records to visit, partition after partition, until it returns
// false, nothing is left, or the request has cost enough; the cursor then is at
// the first that visit did not take. Partitions whose leader is away are left
// for another time.
func (l *deadLook) scan(ctx context.Context, up Upstream, visit func(r *kgo.Record) bool) error {
	records, bytes := 0, 0
	for _, p := range slices.Sorted(maps.Keys(l.cursor)) {
		for span := l.cursor[p]; span.at < span.until; {
			if records >= deadScan || bytes >= deadScanBytes {
				return nil
			}
			rs, next, _, err := up.Peek(ctx, l.topic.Name, p, span.at, deadPage, deadPageBytes)
			if isCode(err, api.CodeCorruptRecord) && len(rs) == 0 {
				// The dead letters themselves: what can be read of them is shown.
				seen, ierr := up.Inspect(ctx, l.topic.Name, p, max(next, span.at))
				if ierr != nil {
					return brokerError("read the dead letters", ierr)
				}
				seen.Release()
				next, err = seen.After, nil
			}
			if err != nil && !isCode(err, api.CodeCorruptRecord) {
				if ctx.Err() != nil {
					return nil // what was seen until now is the answer
				}
				l.unread = append(l.unread, p)
				delete(l.cursor, p)
				break
			}
			if len(rs) == 0 && next <= span.at {
				next = span.until // the end
			}
			for _, r := range rs {
				if r.Offset >= span.until {
					break
				}
				if !visit(r) {
					span.at = r.Offset
					l.cursor[p] = span
					return nil
				}
				records++
				bytes += sizeOf(r)
				span.at = r.Offset + 1
			}
			span.at = max(span.at, next)
			l.cursor[p] = span
		}
		if span, ok := l.cursor[p]; ok && span.at >= span.until {
			delete(l.cursor, p)
		}
	}
	return nil
}

// redrivenMarks are the dead letters of a group and a topic that were brought
// back or discarded, by partition: those that are acknowledged in a position.
type redrivenMarks struct {
	uuid string // of the topic of dead letters
	by   map[int32]*redrivenMark
}

type redrivenMark struct {
	pos     offsets.Position
	version uint64 // of its key; 0: absent
	changed bool
}

func (r redrivenMarks) isDone(partition int32, offset int64) bool {
	mark := r.by[partition]
	return mark != nil && mark.pos.IsAcked(offset)
}

// mark counts a letter as done.
func (r redrivenMarks) mark(partition int32, offset int64) {
	m := r.by[partition]
	if m == nil {
		m = &redrivenMark{pos: offsets.Position{Topic: r.uuid}}
		r.by[partition] = m
	}
	m.changed = m.pos.Ack(offset) || m.changed
}

// readRedriven reads what was brought back of the letters in a topic. Letters of
// an earlier topic of its name do not count.
func (m *Manager) readRedriven(ctx context.Context, group, topic string, dead upstream.Topic) (redrivenMarks, error) {
	marks := redrivenMarks{uuid: dead.UUID, by: map[int32]*redrivenMark{}}
	prefix := discovery.PrefixRedriven(group, topic, dead.Name)
	es, err := m.store.List(ctx, prefix)
	if err != nil {
		return marks, storeError("read which dead letters were redriven", err)
	}
	for _, e := range es {
		p, err := strconv.ParseInt(strings.TrimPrefix(e.Key, prefix), 10, 32)
		if err != nil {
			continue
		}
		mark := &redrivenMark{version: e.Version, pos: offsets.Position{Topic: dead.UUID}}
		if pos, err := offsets.Decode(e.Value); err == nil && offsets.SameTopic(pos.Topic, dead.UUID) {
			mark.pos = pos
		}
		marks.by[int32(p)] = mark
	}
	return marks, nil
}
