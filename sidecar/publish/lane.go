package publish

import (
	"errors"
	"fmt"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// lane brings messages to one partition with one kind of acknowledgement, in the
// order in which they entered. It has one batch under way at a time: while that
// flies, the next one grows. With ack=all a batch whose fate is unknown is sent
// again, the same to the letter and under the same sequence numbers, until a
// broker tells, so that it is there once; nothing overtakes it.
type lane struct {
	p         *Publisher
	of        *topicState
	topic     string
	uuid      string
	partition int32
	ack       Ack

	why   atomic.Pointer[string] // why the last attempt brought nothing; nil when nothing is known to be amiss of what waits
	stuck atomic.Bool            // messages wait, and attempts bring nothing

	// mu guards what follows.
	mu      sync.Mutex
	queue   []*piece
	running bool   // send runs, and will look at the queue once more
	flying  bool   // an attempt is under way
	entered uint64 // pieces, ever
	waiters []waiter

	// What follows is the sending goroutine's own, and of the client's that
	// writes its request while it waits.
	taken   []*piece // off the queue, in order; from head on not yet in a batch
	head    int
	b       batch
	request *attempt
	slow    *time.Timer // goes off while an attempt takes long
	tries   int         // in a row that brought nothing
	id      producerID
	next    int32 // sequence number of the next batch
	// A batch that was refused for one of its records is sent in smaller ones
	// until the records that were in it are through.
	most    int // records of a batch; 0: any number
	mostFor int // records still to be sent so
}

// gatherMost is how many requests are not waited for any more.
const gatherMost = 256

// enter gives a piece its place in the order. It does not block.
func (l *lane) enter(pc *piece) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.queue = append(l.queue, pc)
	l.entered++
	pc.at = l.entered
	if !l.running {
		l.running = true
		l.p.senders.Go(l.send)
	}
}

// more says whether anything is left to send; when not, the goroutine ends.
func (l *lane) more() bool {
	if !l.b.empty() {
		return true
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.head < len(l.taken) {
		l.pass(l.taken[l.head].at - 1)
		return true
	}
	if len(l.queue) > 0 {
		l.pass(l.queue[0].at - 1)
	} else {
		l.pass(l.entered)
	}
	if l.running = len(l.queue) > 0; !l.running {
		l.setStuck(false) // nobody waits: whoever comes may try
		l.why.Store(nil)
	}
	return l.running
}

// setStuck says whether messages without a key should pass the partition over.
func (l *lane) setStuck(stuck bool) {
	switch was := l.stuck.Swap(stuck); {
	case stuck && !was:
		l.of.stuck.Add(1)
	case was && !stuck:
		l.of.stuck.Add(-1)
	}
}

// send is the lane's goroutine, as long as there is something to send.
func (l *lane) send() {
	for l.more() {
		if l.p.ctx.Err() != nil {
			l.end(func() *api.Error { return unknown(l.topic, "the sidecar stopped before a broker told") },
				func() *api.Error { return away("the sidecar stops; the message was not sent") })
			continue
		}
		l.attempt()
	}
}

// attempt tries to bring one batch to the partition's leader.
func (l *lane) attempt() {
	t, err := l.p.up.Topic(l.p.ctx, l.topic)
	if l.isGone(t, err) {
		l.endGone()
		return
	}
	if err != nil {
		l.pause(noBroker, err.Error())
		return
	}
	part, ok := t.Partition(l.partition)
	if !ok || part.Leader < 0 {
		l.look()
		l.pause(noBroker, fmt.Sprintf("partition %d of topic %s has no leader: its broker is away", l.partition, l.topic))
		return
	}
	if l.ack == AckAll && l.id == noProducer {
		if l.id, err = l.of.ids.get(l.p.ctx); err != nil {
			l.pause(noBroker, fmt.Sprintf("the brokers give out no producer id: %v", l.p.up.Cause(err)))
			return
		}
		l.next = 0
	}
	if l.request == nil {
		l.request = newAttempt(l)
	}
	a := l.request
	a.appended = false
	if l.b.empty() {
		l.gather()
	}
	before := l.p.writes.to(part.Leader)
	l.beginAttempt()
	resp, err := l.p.request(l.ack, part.Leader, a)
	l.endAttempt()
	switch {
	case err != nil && (!a.appended || upstream.IsDial(err) || l.p.writes.to(part.Leader) == before):
		l.unsent(part.Leader, err)
	case l.b.empty(): // whoever wanted something had gone when it was written
	case err != nil:
		l.unheard(part.Leader, err)
	default:
		offset, err := a.resultIn(resp, l.partition)
		l.answered(part.Leader, offset, err)
	}
}

// gather lets those in who are about to enter, as long as some come: a batch
// costs the same, large or small. On a host that is idle nobody comes, and no
// time passes but what linger says.
func (l *lane) gather() {
	if linger := l.p.cfg.Linger; linger > 0 {
		select {
		case <-time.After(linger):
		case <-l.p.ctx.Done():
		}
	}
	for waiting := -1; ; {
		l.mu.Lock()
		n := len(l.queue)
		l.mu.Unlock()
		if n == waiting || n > gatherMost {
			return
		}
		waiting = n
		runtime.Gosched()
	}
}

// unsent is an attempt of which no byte was written.
func (l *lane) unsent(broker int32, err error) {
	if !l.b.doubt {
		l.putBack()
	}
	l.moved()
	why := saidBy(broker, err)
	if upstream.IsDial(err) {
		broker = noBroker // it is not there
	}
	l.pause(broker, why)
}

// saidBy is an error with the broker that said it, or that was asked.
func saidBy(broker int32, err error) string { return fmt.Sprintf("broker %d: %v", broker, err) }

// unheard is an attempt that may have been written, or not.
func (l *lane) unheard(broker int32, err error) {
	if l.ack == AckLeader {
		l.meet(broker, saidBy(broker, err))
		l.fail(unknown(l.topic, saidBy(broker, err)))
		return
	}
	l.b.doubt = true
	l.moved()
	l.pause(broker, saidBy(broker, err))
}

// answered is what the leader said of the batch.
func (l *lane) answered(broker int32, offset int64, err error) {
	if errors.Is(err, kerr.DuplicateSequenceNumber) {
		// It is there, but too old for the broker to know where.
		l.advance()
		l.fail(unknown(l.topic, "it is written, but its broker does not know any more at which offset"))
		return
	}
	if err == nil {
		l.advance()
		l.written(offset)
		return
	}
	gone := errors.Is(err, kerr.UnknownTopicOrPartition) || errors.Is(err, kerr.UnknownTopicID)
	if gone {
		t, lookErr := l.p.up.Refresh(l.p.ctx, l.topic)
		if l.isGone(t, lookErr) {
			l.endGone()
			return
		}
	}
	if l.ack == AckLeader { // one attempt
		if gone {
			l.fail(unknown(l.topic, "its broker does not know the topic, others do"))
			return
		}
		told := l.p.tell(err, l.topic)
		if told.Code == api.CodeBrokersUnavailable || told.Code == api.CodeUnknownOutcome {
			l.meet(broker, saidBy(broker, err))
		}
		l.fail(told)
		return
	}
	switch refusal := refusalOf(err); {
	case refusal == refusedSequence && l.b.doubt:
		// Whether the earlier attempt was written cannot be known any more.
		l.fail(unknown(l.topic, err.Error()))
		l.id = noProducer
		l.of.ids.forget()
	case refusal == refusedSequence:
		// The broker has forgotten this producer; as a new one it begins anew.
		l.putBack()
		l.id = noProducer
		l.of.ids.forget()
		l.tries++
		if l.tries > 1 {
			l.pause(broker, saidBy(broker, err))
		}
	case refusal == refusedNow || gone:
		if !l.b.doubt {
			l.putBack()
		}
		l.look()
		l.pause(broker, saidBy(broker, err))
	case refusal == refusedOne && !l.b.doubt && l.b.fields.count > 1:
		l.most, l.mostFor = int(l.b.fields.count)/2, int(l.b.fields.count)
		l.putBack()
	case kerr.IsRetriable(err):
		l.b.doubt = true
		l.look()
		l.pause(broker, saidBy(broker, err))
	default:
		told := l.p.tell(err, l.topic)
		if l.b.doubt { // what is refused now may have been taken then
			told = unknown(l.topic, fmt.Sprintf("no answer came to an earlier attempt, and asked again its broker says: %v", err))
		}
		if l.b.doubt || told.Code == api.CodeUnknownOutcome {
			l.id = noProducer // whether its sequence numbers are used up is not known
			l.of.ids.forget()
			l.meet(broker, saidBy(broker, err))
		}
		l.fail(told)
	}
}

// isGone says whether what the brokers tell of the topic is that it is no more.
func (l *lane) isGone(t upstream.Topic, err error) bool {
	if err != nil {
		return errors.Is(err, api.NewError(api.CodeTopicNotFound, ""))
	}
	return t.UUID != l.uuid
}

func (l *lane) endGone() {
	l.p.troubles.gone(l.topic, l.partition)
	l.end(func() *api.Error { return unknown(l.topic, "the topic was deleted meanwhile") },
		func() *api.Error {
			return api.NewError(api.CodeTopicNotFound, fmt.Sprintf("topic %s was deleted meanwhile", l.topic))
		})
}

// look asks the brokers anew who leads the partition.
func (l *lane) look() { _, _ = l.p.up.Refresh(l.p.ctx, l.topic) } // without an answer what is known stays

// moved looks for the leader, and for where its broker is now.
func (l *lane) moved() {
	l.passOver()
	l.look()
	l.p.findBrokers(l.ack)
}

// pause waits before the next attempt, the longer the more have failed.
func (l *lane) pause(broker int32, why string) {
	l.meet(broker, why)
	l.passOver()
	wait := min(50*time.Millisecond<<min(l.tries, 5), time.Second)
	l.tries++
	select {
	case <-time.After(wait):
	case <-l.p.ctx.Done():
	}
}

// passOver has messages without a key pass the partition over: those to come, and
// those that wait for it.
func (l *lane) passOver() {
	l.setStuck(true)
	l.requeue()
	l.giveAway()
}

// meet notes why an attempt brought nothing.
func (l *lane) meet(broker int32, why string) {
	l.why.Store(&why)
	l.p.troubles.meet(l.topic, l.partition, broker, why)
}

// advance uses up the sequence numbers of the batch.
func (l *lane) advance() {
	// After the highest number comes 0 (DefaultRecordBatch.incrementSequence).
	l.next = int32((int64(l.next) + int64(l.b.fields.count)) & (1<<31 - 1))
}

// written settles the batch: its first record is at the offset.
func (l *lane) written(offset int64) {
	for _, s := range l.b.spans {
		s.pc.job.land(s.pc, s.from, s.to, offset, nil)
		if offset >= 0 {
			offset += int64(s.to - s.from)
		}
	}
	l.tries = 0
	l.why.Store(nil)
	l.p.troubles.over(l.topic, l.partition)
	l.setStuck(false)
	l.over()
}

// fail settles the batch with an error.
func (l *lane) fail(err *api.Error) {
	for _, s := range l.b.spans {
		s.pc.job.land(s.pc, s.from, s.to, -1, err)
	}
	l.over()
}

// over forgets the batch.
func (l *lane) over() {
	if l.mostFor -= int(l.b.fields.count); l.mostFor <= 0 {
		l.most, l.mostFor = 0, 0
	}
	l.drop()
}

// putBack takes the batch apart: nothing of it was written, and its messages
// wait again. Whose caller has left meanwhile is dropped.
func (l *lane) putBack() {
	var again []*piece
	for _, s := range slices.Backward(l.b.spans) {
		j := s.pc.job
		j.mu.Lock()
		if j.gone {
			j.mu.Unlock()
			j.land(s.pc, s.from, s.to, -1, away("it was not sent in time"))
			continue
		}
		whole := s.pc.taken == len(s.pc.which) // then it is not in l.taken any more
		s.pc.taken = s.from
		j.mu.Unlock()
		if whole {
			again = append(again, s.pc)
		}
	}
	slices.Reverse(again)
	l.taken, l.head = append(again, l.taken[l.head:]...), 0
	l.drop()
}

// end settles all that the lane has.
func (l *lane) end(doubtful, unsent func() *api.Error) {
	if !l.b.empty() && l.b.doubt {
		l.fail(doubtful())
	} else {
		l.putBack()
	}
	l.mu.Lock()
	l.taken = append(l.taken, l.queue...)
	l.queue = nil
	l.mu.Unlock()
	err := unsent()
	for _, pc := range l.taken[l.head:] {
		j := pc.job
		j.mu.Lock()
		from, to := pc.taken, len(pc.which)
		pc.taken = to
		j.mu.Unlock()
		if from < to {
			j.land(pc, from, to, -1, err)
		}
	}
	l.taken, l.head = nil, 0
}
