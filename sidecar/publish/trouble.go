package publish

import (
	"cmp"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sidestream/sdk/api"
)

const (
	// troublePatience is how long attempts must have failed before it is told of
	// without a message that failed with them: a leader moves in less.
	troublePatience = time.Second
	// troubleAge is how long a trouble is remembered that nobody runs into any
	// more: without messages nobody sees whether it is over.
	troubleAge = 10 * time.Minute
	// troublesMost bounds what is remembered: names that are made up must not
	// grow it while no broker is there.
	troublesMost = 10_000
	troublesTold = 20 // of Away
)

// noBroker is that of troubles that no broker speaks of: nobody leads, or whoever
// does takes no connection. The topic as a whole is its partition noPartition.
const (
	noBroker    = -1
	noPartition = -1
)

// Away is a partition to which messages do not get through.
type Away struct {
	Topic     string    `json:"topic"`
	Partition int32     `json:"partition"` // -1: the topic as a whole
	Since     time.Time `json:"since"`
	Last      time.Time `json:"last"`  // when somebody last ran into it
	Cause     string    `json:"cause"` // what a broker said, or why none did
}

// troubles remembers to where messages do not get through, until one does. What
// stands in the log is by broker, one line when it begins and one when it ends:
// a broker without room has as many partitions as it likes, and more messages.
type troubles struct {
	log  *zap.Logger
	some atomic.Bool // there is any; set under mu

	mu       sync.Mutex // guards what follows
	at       map[place]*trouble
	byBroker map[int32]*incident
}

type place struct {
	topic     string
	partition int32
}

type trouble struct {
	of          *incident
	since, last time.Time
	cause       string
}

// incident is the troubles of one broker.
type incident struct {
	broker              int32
	since               time.Time
	told                bool
	open, partitions    int // now, ever
	notWritten, unknown int64
}

func newTroubles(log *zap.Logger) *troubles {
	return &troubles{log: log, at: map[place]*trouble{}, byBroker: map[int32]*incident{}}
}

// meet notes that an attempt at a partition of a broker has failed.
func (t *troubles) meet(topic string, partition, broker int32, cause string) {
	now := time.Now()
	t.mu.Lock()
	defer t.mu.Unlock()
	tr := t.at[place{topic, partition}]
	if tr == nil {
		t.forget(now)
		if len(t.at) >= troublesMost {
			return
		}
		in := t.byBroker[broker]
		if in == nil {
			in = &incident{broker: broker, since: now}
			t.byBroker[broker] = in
		}
		in.open++
		in.partitions++
		tr = &trouble{of: in, since: now}
		t.at[place{topic, partition}] = tr
		t.some.Store(true)
	}
	tr.last, tr.cause = now, cause
	if now.Sub(tr.of.since) >= troublePatience {
		t.tell(tr, topic, partition)
	}
}

// failed counts messages that ended in a trouble, by what their callers are told.
func (t *troubles) failed(topic string, partition int32, code api.Code, n int) {
	if !t.some.Load() || code != api.CodeBrokersUnavailable && code != api.CodeUnknownOutcome {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	tr := t.at[place{topic, partition}]
	if tr == nil {
		partition = noPartition
		if tr = t.at[place{topic, partition}]; tr == nil {
			return
		}
	}
	if code == api.CodeUnknownOutcome {
		tr.of.unknown += int64(n)
	} else {
		tr.of.notWritten += int64(n)
	}
	t.tell(tr, topic, partition)
}

// tell says once that a trouble has begun. mu is held; a log is no I/O that waits.
// Brokers that are not there at all are told by who watches for them, whether
// anybody publishes or not.
func (t *troubles) tell(tr *trouble, topic string, partition int32) {
	if tr.of.told || tr.of.broker == noBroker {
		return
	}
	tr.of.told = true
	t.log.Warn("messages do not get through", zap.Int32("broker", tr.of.broker), zap.String("topic", topic), zap.Int32("partition", partition),
		zap.String("cause", tr.cause))
}

// over notes that a message got through to a partition.
func (t *troubles) over(topic string, partition int32) {
	if !t.some.Load() {
		return
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(place{topic, partition}, "messages get through again")
	t.end(place{topic, noPartition}, "messages get through again")
}

// gone notes that a topic is no more.
func (t *troubles) gone(topic string, partition int32) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.end(place{topic, partition}, "the topics are deleted to which messages did not get through")
	t.end(place{topic, noPartition}, "the topics are deleted to which messages did not get through")
}

// end forgets a trouble, and tells when it was the last one of its broker. mu is
// held.
func (t *troubles) end(at place, how string) {
	tr := t.at[at]
	if tr == nil {
		return
	}
	delete(t.at, at)
	t.some.Store(len(t.at) > 0)
	in := tr.of
	if in.open--; in.open > 0 {
		return
	}
	delete(t.byBroker, in.broker)
	if in.told {
		t.log.Info(how, zap.Int32("broker", in.broker), zap.Duration("after", time.Since(in.since).Round(time.Millisecond)),
			zap.Int("partitions", in.partitions), zap.Int64("not_written", in.notWritten), zap.Int64("unknown", in.unknown))
	}
}

// forget drops what nobody has run into for long. mu is held.
func (t *troubles) forget(now time.Time) {
	for at, tr := range t.at {
		if now.Sub(tr.last) >= troubleAge {
			t.end(at, "nobody sends any more to where messages did not get through")
		}
	}
}

// list are the troubles, the oldest first, and how many there are.
func (t *troubles) list() (first []Away, n int) {
	first = []Away{}
	if !t.some.Load() {
		return first, 0
	}
	t.mu.Lock()
	t.forget(time.Now())
	for at, tr := range t.at {
		first = append(first, Away{at.topic, at.partition, tr.since, tr.last, tr.cause})
	}
	t.mu.Unlock()
	slices.SortFunc(first, func(a, b Away) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.Partition, b.Partition))
	})
	n = len(first)
	return first[:min(n, troublesTold)], n
}

// Away are the partitions to which messages do not get through just now, the
// first 20 of how many there are. It is known from messages alone: where nobody
// publishes nothing is away.
func (p *Publisher) Away() (first []Away, n int) { return p.troubles.list() }

// Cause is what a broker last said of a partition to which nothing gets through,
// or why none did; "" where nothing is amiss.
func (p *Publisher) Cause(topic string, partition int32) string {
	t := p.troubles
	if !t.some.Load() {
		return ""
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if tr := t.at[place{topic, partition}]; tr != nil {
		return tr.cause
	}
	return ""
}
