package idempotency

import (
	"context"
	"sync"
	"time"

	"go.uber.org/zap"

	"sidestream/sdk/api"
)

const (
	settleTime   = 20 * time.Second // for one round in the background
	settleMost   = 10_000           // entries of a round
	settleTopics = 8                // that are looked into at the same time
	settleRetry  = time.Second      // before what could not be settled is tried again, doubled
	settleRare   = 30 * time.Second // at most that
	sweepEvery   = time.Minute
)

// job is an entry whose owner has it settled.
type job struct {
	e     *entry
	fates []fate
	why   string // why its open records could not be found out; "" where nothing is amiss
}

// signal wakes the settler.
func (k *Keys) signal() {
	select {
	case k.wake <- struct{}{}:
	default:
	}
}

// run settles what is open and forgets what is old until ctx ends.
func (k *Keys) run(ctx context.Context) {
	retry, swept := settleRetry, time.Now()
	for {
		left := k.settleOpen(ctx)
		if time.Since(swept) >= sweepEvery {
			swept = time.Now()
			k.sweep()
		}
		pause := sweepEvery
		if left {
			pause, retry = retry, min(2*retry, settleRare)
		} else {
			retry = settleRetry
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return
		case <-k.wake:
			timer.Stop()
		case <-timer.C:
		}
	}
}

// settleOpen settles what nobody minds, and tells whether some of it is still
// open.
func (k *Keys) settleOpen(ctx context.Context) (left bool) {
	es := k.claimOpen(settleMost)
	if len(es) == 0 {
		return false
	}
	ctx, cancel := context.WithTimeout(ctx, settleTime)
	defer cancel()
	jobs := make([]*job, len(es))
	for i, e := range es {
		jobs[i] = &job{e: e, fates: e.read()}
	}
	k.settle(ctx, jobs)
	for _, j := range jobs {
		left = left || count(j.fates, open) > 0
		k.release(j.e, j.fates)
	}
	return left
}

// sweep forgets what is older than the window.
func (k *Keys) sweep() {
	if err := k.journal.forget(k.expire()); err != nil {
		k.log.Warn("the journal of Idempotency-Keys keeps what is not needed any more", zap.Error(err))
	}
}

// settle finds out what became of the open records of entries that the caller
// owns. What it finds is noted. Records that are on their way are waited for
// until ctx ends; nothing else may be open longer than ctx.
func (k *Keys) settle(ctx context.Context, jobs []*job) {
	before := make([]int, len(jobs))
	byTopic := map[string][]*job{}
	for i, j := range jobs {
		before[i] = count(j.fates, open)
		if f := j.e.flight; f != nil {
			select {
			case <-f.done:
				j.fates = j.e.land(j.fates)
			case <-ctx.Done():
				continue
			}
		}
		if count(j.fates, open) > 0 {
			byTopic[j.e.topic] = append(byTopic[j.e.topic], j)
		}
	}
	var wg sync.WaitGroup
	turns := make(chan struct{}, settleTopics)
	for topic, js := range byTopic {
		turns <- struct{}{}
		wg.Go(func() {
			defer func() { <-turns }()
			k.search(ctx, topic, js)
		})
	}
	wg.Wait()
	for i, j := range jobs {
		if now := count(j.fates, open); now < before[i] {
			k.keep(j.e, j.fates)
			k.metrics.settle(j.e.read(), j.fates)
		}
	}
}

// search finds the open records of entries of one topic.
func (k *Keys) search(ctx context.Context, topic string, jobs []*job) {
	s := search{k: k, topic: topic, jobs: jobs, ids: map[string]target{}}
	s.begin()
	err := s.askSpool()
	if err == nil {
		err = s.look(ctx)
	}
	s.deny(isCode(err, api.CodeTopicNotFound))
	if err != nil {
		for _, j := range jobs {
			j.why = err.Error()
		}
		k.log.Debug("messages cannot be looked for now", zap.String("topic", topic), zap.Error(err))
	}
}

// keepLanded notes what has landed since the settler stopped, without looking
// for anything.
func (k *Keys) keepLanded() {
	for _, e := range k.claimOpen(int(^uint(0) >> 1)) {
		fates := e.read()
		if e.flight != nil {
			if before := count(fates, open); before > count(e.land(fates), open) {
				k.keep(e, fates)
			}
		}
		k.release(e, fates)
	}
}
