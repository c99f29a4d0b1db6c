package publish

import (
	"context"
	"iter"
	"sync"
	"sync/atomic"
	"time"

	"sidestream/sdk/api"
)

// job is one request: its messages, who waits for them, and what became of each.
//
// The messages' bytes are the caller's. They are read when a batch is written to
// a broker and not before, so that what has not been written when the caller's
// time is over was certainly not sent: its caller leaves, and nobody reads its
// bytes any more.
type job struct {
	ms     []Message
	now    time.Time // the time of messages that have none
	pieces []piece
	placed bool          // none of its messages may go to another partition than was chosen
	done   chan struct{} // of room for one: filled once for a caller that waits, when all has landed or its time is over
	room   room          // what it takes of the buffer
	wait   until

	// mu guards what follows, and the pieces; it is held while messages are
	// encoded, never across I/O.
	mu      sync.Mutex
	results []api.BatchResult
	left    int  // messages that have not landed
	told    bool // done has been filled, or is about to be, or nobody looks at it
	gone    bool // the caller has left
	late    func(fates []api.BatchResult)
	parted  []*piece // what was parted from pieces, to go elsewhere

	// alarm tells the caller that its time is over. It is not stopped when the
	// caller has its answer: when it goes off, it looks for whom it is now. So a
	// job that is used again and again costs no timer each time.
	alarm   *time.Timer
	alarmAt time.Time // when it goes off; zero: it does not
	waiting bool

	// Of a request with one message.
	oneMessage [1]Message
	oneResult  [1]api.BatchResult
	onePiece   [1]piece
	oneWhich   [1]int32
}

// piece is those messages of a job that go to one partition, in order.
type piece struct {
	job *job
	at  uint64 // its number among those that entered its lane, whose mutex guards it

	// Guarded by job.mu. landed ≤ taken ≤ len(which).
	lane   *lane
	which  []int32 // of job.ms
	taken  int     // so many have been put into a batch that may have been written
	landed int     // the fates of so many are known
}

// singles are jobs to be used again; whoever waited for one was the last to
// know it.
var singles = sync.Pool{New: func() any {
	return &job{done: make(chan struct{}, 1)}
}}

func newSingle(m Message) *job {
	j := singles.Get().(*job)
	j.oneMessage[0] = m
	j.ms, j.results, j.left, j.told = j.oneMessage[:], j.oneResult[:], 1, false
	j.results[0] = api.BatchResult{}
	return j
}

// reuse gives a single job back whose caller waited until it had landed.
func (j *job) reuse() {
	if j.gone {
		return // it is still on its way
	}
	j.oneMessage[0] = Message{}
	j.onePiece[0] = piece{}
	j.ms, j.pieces, j.results, j.late, j.parted = nil, nil, nil, nil, nil
	j.wait.Context = nil
	j.wait.real.Store(nil)
	singles.Put(j)
}

func newJob(ms []Message) *job {
	return &job{ms: ms, done: make(chan struct{}, 1), results: make([]api.BatchResult, len(ms)), left: len(ms)}
}

// land settles the messages from from to to of a piece, in the order of the
// piece: they are at offset and after it, or have the error.
func (j *job) land(pc *piece, from, to int, offset int64, err *api.Error) {
	j.mu.Lock()
	for k, i := range pc.which[from:to] {
		r := &j.results[i]
		r.Partition, r.Offset, r.Error = pc.lane.partition, -1, err
		if err == nil && offset >= 0 {
			r.Offset = offset + int64(k)
		}
	}
	pc.landed = to
	j.settled(to - from)
}

// refuse settles messages that go to no partition at all.
func (j *job) refuse(i int, partition int32, err *api.Error) {
	j.results[i] = api.BatchResult{Partition: partition, Offset: -1, Error: err}
	j.left--
}

// settled counts n messages off; mu is held, and released.
func (j *job) settled(n int) {
	j.left -= n
	over, gone, told, late := j.left == 0, j.gone, j.told, j.late
	fates := j.results
	j.told = j.told || over
	j.mu.Unlock()
	if !over {
		return
	}
	if !gone {
		if !told {
			j.done <- struct{}{} // the caller's own from here on
		}
		return
	}
	j.room.free()
	if late != nil {
		late(fates)
	}
}

// hasLanded waits until all has landed; false when the caller's time is over first.
func (j *job) hasLanded() bool {
	j.mu.Lock()
	j.waiting = true
	if j.alarmAt.IsZero() || j.wait.deadline.Before(j.alarmAt) {
		j.alarmAt = j.wait.deadline
		if j.alarm == nil {
			j.alarm = time.AfterFunc(time.Until(j.alarmAt), j.ring)
		} else {
			j.alarm.Reset(time.Until(j.alarmAt))
		}
	}
	j.mu.Unlock()
	if ended := j.wait.Context.Done(); ended == nil {
		<-j.done
	} else {
		select {
		case <-j.done:
		case <-ended:
			j.turnAway()
		}
	}
	j.mu.Lock()
	defer j.mu.Unlock()
	j.waiting = false
	if len(j.ms) > 1 {
		j.alarm.Stop() // it would keep the messages
	}
	return j.left == 0
}

// turnAway has nobody fill done any more, and empties it.
func (j *job) turnAway() {
	j.mu.Lock()
	told := j.told
	j.told = true
	j.mu.Unlock()
	if told {
		<-j.done
	}
}

// ring is the alarm.
func (j *job) ring() {
	j.mu.Lock()
	defer j.mu.Unlock()
	j.alarmAt = time.Time{}
	if !j.waiting || j.told {
		return
	}
	if left := time.Until(j.wait.deadline); left > 0 {
		j.alarmAt = j.wait.deadline
		j.alarm.Reset(left)
		return
	}
	j.told = true
	j.done <- struct{}{} // it has room: nobody else has told
}

// every lists the job's pieces; mu is held.
func (j *job) every() iter.Seq[*piece] {
	return func(yield func(*piece) bool) {
		for k := range j.pieces {
			if !yield(&j.pieces[k]) {
				return
			}
		}
		for _, pc := range j.parted {
			if !yield(pc) {
				return
			}
		}
	}
}

// leave is the caller's when its time is over: what is on its way is unheard(lane),
// what was not sent is unsent(lane) and never will be. It returns the fates for
// the caller to keep, and whether nothing is on its way any more.
func (j *job) leave(unheard, unsent func(*lane) *api.Error, late func([]api.BatchResult)) (fates []api.BatchResult, landed bool) {
	j.mu.Lock()
	if j.left == 0 { // just now
		j.mu.Unlock()
		return j.results, true
	}
	j.gone = true
	for pc := range j.every() {
		if pc.taken == len(pc.which) {
			continue
		}
		err := unsent(pc.lane)
		for _, i := range pc.which[pc.taken:] {
			j.results[i] = api.BatchResult{Partition: pc.lane.partition, Offset: -1, Error: err}
		}
		j.left -= len(pc.which) - pc.taken
		pc.which = pc.which[:pc.taken]
	}
	if j.left == 0 {
		j.mu.Unlock()
		return j.results, true
	}
	fates = append([]api.BatchResult(nil), j.results...)
	for pc := range j.every() {
		if pc.landed == len(pc.which) {
			continue
		}
		err := unheard(pc.lane)
		for _, i := range pc.which[pc.landed:] {
			fates[i] = api.BatchResult{Partition: pc.lane.partition, Offset: -1, Error: err}
		}
	}
	j.late = late
	j.mu.Unlock()
	return fates, false
}

// until is a context that ends at a deadline and costs nothing as long as nobody
// waits for that.
type until struct {
	context.Context
	deadline time.Time
	real     atomic.Pointer[ending] // made when somebody waits
}

type ending struct {
	context.Context
	cancel context.CancelFunc
}

func (u *until) Deadline() (time.Time, bool) { return u.deadline, true }

func (u *until) Done() <-chan struct{} { return u.make().Done() }

func (u *until) make() *ending {
	e := u.real.Load()
	if e == nil {
		e = &ending{}
		e.Context, e.cancel = context.WithDeadline(u.Context, u.deadline)
		if !u.real.CompareAndSwap(nil, e) {
			e.cancel()
			e = u.real.Load()
		}
	}
	return e
}

// AfterFunc has what is derived from the context not watch it from a goroutine
// of its own, which could outlive it.
func (u *until) AfterFunc(f func()) (stop func() bool) {
	return context.AfterFunc(u.make().Context, f)
}

func (u *until) Err() error {
	if e := u.real.Load(); e != nil {
		return e.Err()
	}
	if err := u.Context.Err(); err != nil || time.Now().Before(u.deadline) {
		return err
	}
	return context.DeadlineExceeded
}

// end frees what was made.
func (u *until) end() {
	if e := u.real.Load(); e != nil {
		e.cancel()
	}
}
