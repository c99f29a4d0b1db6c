package idempotency

import (
	"context"
	"errors"
	"time"

	"sidestream/sidecar/upstream"
)

const (
	// quiet is the time between two looks that must both not find a record
	// before it is believed to be absent: a broker may have it in a queue.
	quiet = time.Second
	// skew is how far the brokers' clocks may be from this host's.
	skew = 10 * time.Minute
	// gone is how long the brokers must have denied a topic before its records
	// are gone with it: less could be a restart of brokers.
	gone = time.Minute
)

// target is a record that is looked for.
type target struct {
	j *job
	i int
}

// search looks for the open records of entries of one topic.
type search struct {
	k     *Keys
	topic string
	jobs  []*job
	ids   map[string]target // those that are not found yet
}

// begin lists what is open.
func (s *search) begin() {
	for _, j := range s.jobs {
		id := recordID(s.k.deps.Nonce, j.e.key, j.e.request)
		for _, i := range which(j.fates, open) {
			s.ids[idOf(id, i, j.e.batch)] = target{j, i}
		}
	}
}

func (s *search) set() map[string]struct{} {
	set := make(map[string]struct{}, len(s.ids))
	for id := range s.ids {
		set[id] = struct{}{}
	}
	return set
}

func (s *search) found(id string, f fate) {
	if t, ok := s.ids[id]; ok {
		t.j.fates[t.i] = f
		delete(s.ids, id)
	}
}

// askSpool finds what the spool has, for entries that may be in it: those of an
// earlier life, and those that asked for it. What it does not hold by now it never
// will, so each is asked for once.
func (s *search) askSpool() error {
	set := map[string]struct{}{}
	for id, t := range s.ids {
		if t.j.e.ask {
			set[id] = struct{}{}
		}
	}
	if s.k.deps.Spool == nil || len(set) == 0 {
		return nil
	}
	held, err := s.k.deps.Spool.Held(set)
	if err != nil {
		return err
	}
	for id, r := range held {
		s.found(id, fateOf(r))
	}
	for _, j := range s.jobs {
		j.e.ask = false
	}
	return nil
}

// look looks twice. What was not found then, in partitions that were both times
// read to their end, is absent. A topic that is not there is an error.
func (s *search) look(ctx context.Context) error {
	var last *round
	for n := range 2 {
		if len(s.ids) == 0 {
			return nil
		}
		if n > 0 {
			select {
			case <-time.After(s.k.deps.quiet):
			case <-ctx.Done():
				return ctx.Err()
			}
		}
		var err error
		if last, err = s.round(ctx, last); err != nil {
			return err
		}
	}
	if len(s.ids) == 0 {
		return nil
	}
	starts, err := s.k.deps.Brokers.StartOffsets(ctx, s.topic)
	var partial *upstream.PartialError
	if err != nil && !errors.As(err, &partial) {
		return err
	}
	for id, t := range s.ids {
		if s.certain(&t.j.e.places, last, starts) {
			s.found(id, fate{kind: absent})
		}
	}
	return nil
}

// deny notes whether the brokers deny the topic. Those that were looked for while
// they did so for long are absent.
func (s *search) deny(denied bool) {
	for _, j := range s.jobs {
		switch {
		case !denied:
			j.e.missing = time.Time{}
		case j.e.missing.IsZero():
			j.e.missing = time.Now()
		case time.Since(j.e.missing) >= s.k.deps.gone:
			for _, i := range which(j.fates, open) {
				j.fates[i] = fate{kind: absent}
			}
		}
	}
}

// round is one look into the partitions.
type round struct {
	uuid string
	read map[int32]reach // of each partition that was read to its end
	bad  map[int32]error // of each that was not
}

// reach is what was read of a partition.
type reach struct {
	from, end int64
}

// round looks once: on from where an earlier one came to, or from where the
// records may be. An error says that nothing is known.
func (s *search) round(ctx context.Context, earlier *round) (*round, error) {
	t, err := s.k.deps.Brokers.Refresh(ctx, s.topic)
	if err != nil {
		return nil, err
	}
	r := &round{uuid: t.UUID, read: map[int32]reach{}, bad: map[int32]error{}}
	if earlier != nil && earlier.uuid != r.uuid {
		return nil, errors.New("it was made anew between the looks")
	}
	var since map[int32]int64
	for _, part := range t.Partitions {
		from, wanted, known := s.from(t, part.ID)
		if !wanted {
			continue
		}
		if !known {
			if since == nil {
				if since, err = s.since(ctx); err != nil {
					return nil, err
				}
			}
			at, ok := since[part.ID]
			if !ok {
				r.bad[part.ID] = errors.New("its leader is away")
				continue
			}
			from = min(from, at)
		}
		begun, once := from, false
		if earlier != nil {
			if e, ok := earlier.read[part.ID]; ok {
				begun, from = e.from, max(from, e.end)
			} else {
				once = true
			}
		}
		found, end, err := s.k.deps.Brokers.Find(ctx, s.topic, part.ID, from, s.set())
		for id, offset := range found {
			s.found(id, fate{kind: written, partition: part.ID, offset: offset})
		}
		switch {
		case len(s.ids) == 0:
			return r, nil
		case err != nil:
			r.bad[part.ID] = err
		case end < from:
			// The log is shorter than it was: it was made anew, or lost its end.
			r.bad[part.ID] = errors.New("it is shorter than it was")
			s.forget(part.ID)
		case once:
			r.bad[part.ID] = errors.New("it could not be read before")
		default:
			r.read[part.ID] = reach{begun, end}
		}
	}
	return r, nil
}

// from is the lowest offset from which a partition must be read for what is
// still looked for; known is false if the time must tell it for some.
func (s *search) from(t upstream.Topic, partition int32) (from int64, wanted, known bool) {
	from, known = 1<<63-1, true
	for _, j := range s.jobs {
		if count(j.fates, open) == 0 {
			continue
		}
		offset, may := j.e.places.in(t.UUID, partition)
		if !may {
			continue
		}
		wanted = true
		if offset < 0 {
			known = false
			continue
		}
		from = min(from, offset)
	}
	return from, wanted, known
}

// in is the offset from which on records may be in a partition of a topic that
// has this UUID now; -1: the time must tell. may is false if none can be there.
func (p *places) in(uuid string, partition int32) (offset int64, may bool) {
	for _, f := range p.from {
		if f.partition == partition {
			if uuid != p.uuid {
				return -1, true
			}
			return f.offset, true
		}
	}
	return -1, p.all
}

// since is where the partitions were at the time of the oldest request that
// needs it.
func (s *search) since(ctx context.Context) (map[int32]int64, error) {
	oldest := int64(1<<63 - 1)
	for _, j := range s.jobs {
		oldest = min(oldest, j.e.places.since)
	}
	at, err := s.k.deps.Brokers.OffsetsAt(ctx, s.topic, time.UnixMilli(oldest).Add(-skew))
	var partial *upstream.PartialError
	if errors.As(err, &partial) {
		err = nil
	}
	return at, err
}

// forget has a partition looked for by the time from now on.
func (s *search) forget(partition int32) {
	for _, j := range s.jobs {
		for i := range j.e.places.from {
			if j.e.places.from[i].partition == partition {
				j.e.places.from[i].offset = -1
			}
		}
	}
}

// certain tells whether everything was read where a record may be that was not
// found. Where retention has removed the beginning it may have been there.
func (s *search) certain(p *places, r *round, starts map[int32]int64) bool {
	check := func(partition int32) bool {
		offset, may := p.in(r.uuid, partition)
		if !may {
			return true
		}
		if r.bad[partition] != nil {
			return false
		}
		got, ok := r.read[partition]
		if !ok || offset < 0 {
			return ok
		}
		start, known := starts[partition]
		return got.from <= offset && known && start <= offset
	}
	for partition := range r.bad {
		if !check(partition) {
			return false
		}
	}
	for partition := range r.read {
		if !check(partition) {
			return false
		}
	}
	for _, f := range p.from {
		if _, there := r.read[f.partition]; there || r.bad[f.partition] != nil {
			continue
		}
		if r.uuid == p.uuid && f.offset >= 0 {
			return false // a partition that was there is not told of
		}
	}
	return true
}
