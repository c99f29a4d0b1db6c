package offsets

// Verdict says what became of the other position in a merge.
type Verdict int

const (
	// Merged: same topic and seek epoch; the result is the union.
	Merged Verdict = iota
	// OlderSeek: the other is of an earlier seek epoch and was dropped.
	OlderSeek
	// NewerSeek: the other is of a later seek epoch and replaced the caller's.
	NewerSeek
	// OtherTopic: the other is of another topic UUID and was dropped.
	OtherTopic
)

func (v Verdict) String() string {
	return [...]string{"merged", "older seek epoch", "newer seek epoch", "other topic"}[v]
}

// SameTopic says whether two topic UUIDs may name the same topic: equal, or one
// of them unknown (brokers that began to give UUIDs must not cost a group its
// positions).
func SameTopic(a, b string) bool { return a == b || a == "" || b == "" }

// Merge joins q into p and returns the result, which shares nothing with
// either. For one topic UUID: of two seek epochs the higher wins whole; within
// one epoch acknowledged offsets are united, the edges and the leader epoch are
// the higher ones, and of two retries of an offset the one with more attempts
// (then the later time) stays. A q of another topic UUID is dropped: the
// caller's own is what it knows to be the present topic. So merging positions
// of one topic is commutative, associative and idempotent in what is acked.
func (p Position) Merge(q Position) (Position, Verdict) {
	if !SameTopic(p.Topic, q.Topic) {
		return p.Clone(), OtherTopic
	}
	topic := p.Topic
	if topic == "" {
		topic = q.Topic
	}
	switch {
	case q.SeekEpoch < p.SeekEpoch:
		out := p.Clone()
		out.Topic = topic
		return out, OlderSeek
	case q.SeekEpoch > p.SeekEpoch:
		out := q.Clone()
		out.Topic = topic
		return out, NewerSeek
	}
	out := Position{
		Topic:       topic,
		SeekEpoch:   p.SeekEpoch,
		Low:         max(p.Low, q.Low),
		Acked:       unite(p.Acked, q.Acked),
		HandOut:     max(p.HandOut, q.HandOut),
		LeaderEpoch: max(p.LeaderEpoch, q.LeaderEpoch),
	}
	out.settle()
	// What either handed out was handed out.
	out.SetPassed(intersect(p.notHanded(), q.notHanded()))
	out.SetRetries(uniteRetries(p.Retries, q.Retries))
	return out, Merged
}

// MergeAcks adds to p what q acknowledged and nothing else of it: neither edges,
// retries nor leader epoch. It is what a former owner may do to the position of
// the present one. The seek epoch and topic rules are those of Merge.
func (p Position) MergeAcks(q Position) (Position, Verdict) {
	if !SameTopic(p.Topic, q.Topic) || p.SeekEpoch != q.SeekEpoch {
		return p.Merge(q)
	}
	q.HandOut, q.Passed, q.Retries, q.LeaderEpoch = q.Low, nil, nil, p.LeaderEpoch
	return p.Merge(q)
}

// uniteRetries keeps for each offset the retry that spent more attempts, then
// the one that waits longer.
func uniteRetries(a, b []Retry) []Retry {
	best := make(map[int64]Retry, len(a)+len(b))
	for _, list := range [][]Retry{a, b} {
		for _, r := range list {
			have, ok := best[r.Offset]
			if !ok || r.Attempt > have.Attempt || r.Attempt == have.Attempt && r.NotBefore.After(have.NotBefore) {
				best[r.Offset] = r
			}
		}
	}
	out := make([]Retry, 0, len(best))
	for _, r := range best {
		out = append(out, r)
	}
	return out
}
