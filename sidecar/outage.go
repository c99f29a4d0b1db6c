package sidecar

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"sidestream/sidecar/upstream"
)

// Bounds of what is told of an outage: a topic may have 1,000 partitions and an
// application may use 1,000 topics.
const (
	mostAwayTopics     = 20 // in the status
	mostAwayPartitions = 20 // of each
	mostNamedTopics    = 5  // in a cause and in the log
)

// outageQuiet is for how long nothing must be away until an outage is over: a
// broker that comes and goes is one outage.
const outageQuiet = 2 * time.Second

// unknownPartitions stands for all partitions of a topic of which no broker has
// told yet how many there are.
const unknownPartitions = -1

// outageAgain is how long the log is silent about an outage that grows.
const outageAgain = time.Minute

// OutageStatus is what of the topics that are used here is away.
type OutageStatus struct {
	Since      time.Time   `json:"since"`
	Partitions int         `json:"away_partitions"`
	Topics     []AwayTopic `json:"topics"` // the first 20
	MoreTopics int         `json:"more_topics,omitempty"`
	Brokers    []int32     `json:"brokers"` // that would have them, as far as the brokers tell
	// Of publishes to topics that were away since it began, in messages. Unknown
	// are those of the failed that may be written all the same.
	Failed  int64  `json:"failed_messages"`
	Unknown int64  `json:"failed_unknown_messages"`
	Cause   string `json:"cause,omitempty"` // why nothing can be asked of the brokers; the topics are as known before
}

// AwayTopic is a topic of which partitions are away.
type AwayTopic struct {
	Topic      string  `json:"topic"`
	Partitions int     `json:"partitions"`      // that it has; 0: not known
	Away       int     `json:"away_partitions"` // of those
	First      []int32 `json:"first_partitions"`
	Used       string  `json:"used"` // publish, consume or both
}

// sighting is what was seen of the topics that are used here at a moment.
type sighting struct {
	published []upstream.TopicAway // topics that messages were published to lately
	consumed  map[string][]int32   // partitions of pulls that cannot be read
	cause     string               // no broker answers; "": one did
	failures  map[string]failures  // by topic, since the process began
}

// failures counts messages whose publish failed for want of a broker.
type failures struct{ failed, unknown int64 }

// outage is what the decision remembers from one look to the next. A look makes
// another; nothing in it is changed.
type outage struct {
	since   time.Time // zero: nothing is away
	quiet   time.Time // since when nothing is away any more, while the outage is not over
	base    map[string]failures
	sizes   map[string]int    // partitions of the published topics, as last told
	touched map[string]bool   // topics that were away at some time
	largest int               // partitions that were away at once
	logged  time.Time         // last line about it
	now     map[string]awayed // by topic
	brokers []int32
	cause   string
	counts  map[string]failures // as last seen
}

// awayed are the partitions of a topic that are away.
type awayed struct {
	partitions map[int32]bool
	total      int
	used       string
}

// event is what of a look is worth a line in the log.
type event int

const (
	eventNone event = iota
	eventBegins
	eventGrows
	eventEnds
)

// look says what is away now. It is pure.
func (o outage) look(s sighting, now time.Time) (outage, event) {
	next := outage{since: o.since, base: o.base, touched: o.touched, largest: o.largest, logged: o.logged,
		now: map[string]awayed{}, cause: s.cause, counts: s.failures, sizes: map[string]int{}}
	count := 0
	add := func(topic string, total int, used string, partitions []int32) {
		a, ok := next.now[topic]
		if !ok {
			a = awayed{partitions: map[int32]bool{}, used: used}
		} else if a.used != used {
			a.used = "both"
		}
		a.total = max(a.total, total)
		for _, p := range partitions {
			if !a.partitions[p] {
				a.partitions[p] = true
				count++
			}
		}
		next.now[topic] = a
	}
	var brokers []int32
	for _, t := range s.published {
		next.sizes[t.Topic] = t.Partitions
		if len(t.Away) > 0 {
			add(t.Topic, t.Partitions, "publish", t.Away)
			brokers = append(brokers, t.Brokers...)
		}
	}
	if s.cause != "" { // all that was known is out of reach
		next.sizes = o.sizes
		for topic := range s.failures {
			n := o.sizes[topic]
			if n == 0 {
				add(topic, 0, "publish", []int32{unknownPartitions})
				continue
			}
			all := make([]int32, n)
			for i := range all {
				all[i] = int32(i)
			}
			add(topic, n, "publish", all)
		}
	}
	for topic, partitions := range s.consumed {
		add(topic, next.sizes[topic], "consume", partitions)
	}
	slices.Sort(brokers)
	next.brokers = slices.Compact(brokers)

	switch {
	case count == 0 && o.since.IsZero():
		next.base = s.failures
		return next, eventNone
	case count == 0 && o.quiet.IsZero():
		next.quiet = now
		return next, eventNone
	case count == 0 && now.Sub(o.quiet) < outageQuiet:
		next.quiet = o.quiet
		return next, eventNone
	case count == 0:
		return next, eventEnds
	}
	next.touched = maps.Clone(o.touched)
	if next.touched == nil || o.since.IsZero() {
		next.touched = map[string]bool{}
	}
	for topic := range next.now {
		next.touched[topic] = true
	}
	switch {
	case o.since.IsZero():
		next.since, next.logged, next.largest = now, now, count
		if next.base == nil {
			next.base = map[string]failures{}
		}
		return next, eventBegins
	case count > o.largest && now.Sub(o.logged) >= outageAgain:
		next.logged, next.largest = now, count
		return next, eventGrows
	}
	next.largest = max(o.largest, count)
	return next, eventNone
}

// over is the state after an outage that has ended.
func (o outage) over() outage {
	return outage{sizes: o.sizes, base: o.counts, counts: o.counts}
}

// failed counts the messages whose publish failed since the outage began, to
// topics that were away in it.
func (o outage) failed() (f failures) {
	for topic := range o.touched {
		f.failed += o.counts[topic].failed - o.base[topic].failed
		f.unknown += o.counts[topic].unknown - o.base[topic].unknown
	}
	return f
}

// status is nil while nothing is away.
func (o outage) status() *OutageStatus {
	if o.since.IsZero() || len(o.now) == 0 {
		return nil
	}
	st := &OutageStatus{Since: o.since.UTC(), Topics: []AwayTopic{}, Brokers: append([]int32{}, o.brokers...), Cause: o.cause}
	f := o.failed()
	st.Failed, st.Unknown = f.failed, f.unknown
	for _, topic := range slices.Sorted(maps.Keys(o.now)) {
		a := o.now[topic]
		first := slices.DeleteFunc(slices.Sorted(maps.Keys(a.partitions)), func(p int32) bool { return p == unknownPartitions })
		st.Partitions += len(first)
		st.Topics = append(st.Topics, AwayTopic{Topic: topic, Partitions: a.total, Away: len(first), First: first[:min(len(first), mostAwayPartitions)], Used: a.used})
	}
	// The worst first.
	slices.SortStableFunc(st.Topics, func(a, b AwayTopic) int { return cmp.Compare(b.Away, a.Away) })
	if n := len(st.Topics); n > mostAwayTopics {
		st.Topics, st.MoreTopics = st.Topics[:mostAwayTopics], n-mostAwayTopics
	}
	return st
}

// text says in one line what is away.
func (st *OutageStatus) text() string {
	text := fmt.Sprintf("%d partitions are away since %s: %s", st.Partitions, st.Since.Format("15:04:05 UTC"), st.topicsText())
	switch st.Partitions {
	case 0:
		text = strings.Replace(text, "0 partitions", "topics", 1)
	case 1:
		text = strings.Replace(text, "1 partitions are", "1 partition is", 1)
	}
	switch len(st.Brokers) {
	case 0:
	case 1:
		text += fmt.Sprintf("; broker %d has them", st.Brokers[0])
	default:
		text += fmt.Sprintf("; brokers %v have them", st.Brokers[:min(len(st.Brokers), mostNamedTopics)])
	}
	if st.Failed > 0 {
		text += fmt.Sprintf("; %d messages for these topics were not taken", st.Failed)
		if st.Unknown > 0 {
			text += fmt.Sprintf(" (of %d of them it is not known)", st.Unknown)
		}
	}
	return text
}

func (st *OutageStatus) topicsText() string {
	var names []string
	for _, t := range st.Topics[:min(len(st.Topics), mostNamedTopics)] {
		of := ""
		if t.Partitions > 0 {
			of = fmt.Sprintf(" of %d", t.Partitions)
		}
		if t.Away == 0 { // nobody has told how many there are
			names = append(names, t.Topic)
			continue
		}
		names = append(names, fmt.Sprintf("%s (%d%s)", t.Topic, t.Away, of))
	}
	text := strings.Join(names, ", ")
	if more := len(st.Topics) - len(names) + st.MoreTopics; more > 0 {
		text += fmt.Sprintf(" and %d more topics", more)
	}
	return text
}
