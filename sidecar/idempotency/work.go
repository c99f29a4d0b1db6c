package idempotency

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/broker/commitlog"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// work is what the owner of an entry does for its request.
type work struct {
	k     *Keys
	ctx   context.Context
	e     *entry
	fates []fate
	why   string // why open ones could not be found out

	topic string
	ms    []publish.Message
	o     publish.Options
	batch bool
}

// do settles what is open, sends what is not written, and answers. The error
// is of the request as a whole: nothing of it was sent, now or before.
func (w *work) do() (results []api.BatchResult, millis int64, err error) {
	fresh := w.e.note < 0
	var errs []*api.Error
	defer func() {
		millis = w.e.millis
		left := count(w.fates, open) > 0
		w.k.release(w.e, w.fates)
		if left {
			w.k.signal() // nobody minds it now
		}
	}()
	result := "new"
	if !fresh {
		result = "resumed"
		w.settle()
	}
	switch absents := which(w.fates, absent); {
	case count(w.fates, open) > 0:
		result = "open"
	case len(absents) == 0:
		result = "replayed"
		replayed(w.o)
	default:
		var whole error
		if errs, whole = w.send(absents); whole != nil {
			err = whole
		}
	}
	if err != nil && count(w.fates, written)+count(w.fates, spooled) > 0 { // of others there is something to tell
		var ae *api.Error
		if !errors.As(err, &ae) {
			ae = api.NewError(api.CodeInternal, err.Error())
		}
		errs = make([]*api.Error, len(w.fates))
		for i := range errs {
			errs[i] = ae
		}
		err = nil
	}
	if isCode(err, codeNotKept) {
		result = "refused"
	}
	w.k.metrics.requests.WithLabelValues(result).Inc()
	if err != nil {
		return nil, 0, err
	}
	return resultsOf(w.fates, errs, w.why), 0, nil
}

// settle finds out what became of the open records.
func (w *work) settle() {
	if count(w.fates, open) == 0 {
		return
	}
	j := &job{e: w.e, fates: w.fates}
	w.k.settle(w.ctx, []*job{j})
	w.fates, w.why = j.fates, j.why
}

// send sends the records at some places of the request. The error says that
// nothing of them was sent; errs are those of the records that are not written.
func (w *work) send(at []int) (errs []*api.Error, err error) {
	k, e := w.k, w.e
	ms := make([]publish.Message, len(at))
	id := recordID(k.deps.Nonce, e.key, e.request)
	headers := make([]kgo.RecordHeader, 0, len(at)) // one block for all that have none of their own
	for n, i := range at {
		m := w.ms[i]
		mark := kgo.RecordHeader{Key: headerID, Value: []byte(idOf(id, i, w.batch))}
		if len(m.Headers) == 0 {
			headers = append(headers, mark)
			m.Headers = headers[len(headers)-1 : len(headers) : len(headers)]
		} else {
			m.Headers = append(slices.Clip(m.Headers), mark)
		}
		ms[n] = m
	}
	where, err := k.place(w.ctx, w.topic, ms, w.o)
	if err != nil {
		return nil, err
	}
	if !w.batch {
		if ms[0].Timestamp.IsZero() {
			ms[0].Timestamp = time.Now()
		}
		e.millis = ms[0].Timestamp.UnixMilli()
	}
	if err := w.intend(at, where); err != nil {
		return nil, err
	}
	f := &flight{at: at, done: make(chan struct{})}
	results, err := w.pass(ms, f)
	var whole *api.Error
	if err != nil && !errors.As(err, &whole) {
		whole = api.NewError(api.CodeInternal, err.Error())
	}
	errs = make([]*api.Error, len(w.fates))
	for n, i := range at {
		r := api.BatchResult{Offset: -1, Error: whole}
		if whole == nil {
			r = results[n]
		}
		w.fates[i] = fateOf(r)
		errs[i] = r.Error
	}
	if count(w.fates, open) > 0 {
		e.ask = w.o.Ack == publish.AckSpool || w.o.MaySpool
		e.flight = f
		if f.landed() {
			w.fates = e.land(w.fates)
		}
	}
	k.keep(e, w.fates)
	if whole != nil && count(w.fates, absent) == len(w.fates) {
		return nil, lineOf(whole, at)
	}
	return errs, nil
}

// lineOf says which message of the request an error is about that counts those
// that were sent.
func lineOf(e *api.Error, at []int) error {
	if e.Line > 0 && e.Line <= len(at) && at[e.Line-1] != e.Line-1 {
		moved := *e
		moved.Line = at[e.Line-1] + 1
		return &moved
	}
	return e
}

// fateOf is what an answer says of a record. Only what is certain is absent.
func fateOf(r api.BatchResult) fate {
	switch {
	case r.Error == nil && r.SpoolID != "":
		return fate{kind: spooled, partition: r.Partition, spool: r.SpoolID}
	case r.Error == nil:
		return fate{kind: written, partition: r.Partition, offset: r.Offset}
	case r.Error.Code == api.CodeUnknownOutcome, r.Error.Code == api.CodeInternal:
		return fate{kind: open}
	}
	return fate{kind: absent}
}

// codeNotKept is the code of a request whose intent the disk did not take.
const codeNotKept = api.CodeDiskUnavailable

// intend has it on disk that records are about to be sent.
func (w *work) intend(at []int, where places) error {
	k, e := w.k, w.e
	n := &note{
		kind: noteIntent, key: e.key, request: e.request, topic: e.topic, ack: e.ack, batch: e.batch,
		count: e.count, millis: e.millis, places: where,
	}
	if len(at) < len(w.fates) {
		sent := slices.Clone(w.fates)
		for _, i := range at {
			sent[i] = fate{kind: open}
		}
		n.fates = appendFates(nil, sent)
	}
	offset, err := k.journal.write(n, true)
	if err != nil {
		why := "its journal takes no more before a restart"
		switch {
		case errors.Is(err, commitlog.ErrNoSpace):
			why = "the disk is full"
		case errors.Is(err, commitlog.ErrOffline):
			why += ": " + err.Error()
		}
		if !k.refusing.Swap(true) { // of many, one is told
			k.log.Warn("the disk does not take Idempotency-Keys: requests with one are refused", zap.Error(err))
		}
		refused := api.NewError(codeNotKept, fmt.Sprintf("the %s cannot be kept on this host's disk, so nothing was sent: %s", api.HeaderIdempotencyKey, why))
		refused.RetryAfterMillis = 1000
		return refused
	}
	if k.refusing.Swap(false) {
		k.log.Info("the disk takes Idempotency-Keys again")
	}
	e.note, e.places = offset, where
	return nil
}

// pass passes records on, and has it noted when none of them is on its way.
func (w *work) pass(ms []publish.Message, f *flight) ([]api.BatchResult, error) {
	o := w.o
	landed, once := o.Landed, sync.Once{}
	o.Landed = func(fates []api.BatchResult) {
		once.Do(func() {
			if fates != nil {
				f.fates = make([]fate, len(fates))
				for i, r := range fates {
					f.fates[i] = fateOf(r)
				}
			}
			close(f.done)
			if fates != nil { // later than the answer
				w.k.signal()
			}
			if landed != nil {
				landed(fates)
			}
		})
	}
	if o.Ack == publish.AckSpool {
		defer o.Landed(nil) // it went to this host's disk, or nowhere
	}
	if w.batch {
		return w.k.next.PublishBatch(w.ctx, w.topic, ms, o)
	}
	done, err := w.k.next.Publish(w.ctx, w.topic, ms[0], o)
	if err != nil {
		return nil, err
	}
	return []api.BatchResult{{Partition: done.Partition, Offset: done.Offset, SpoolID: done.SpoolID}}, nil
}

// land takes over what became of the records that were on their way.
func (e *entry) land(fates []fate) []fate {
	f := e.flight
	e.flight = nil
	for n, i := range f.at {
		if f.fates != nil && fates[i].kind == open {
			fates[i] = f.fates[n]
		}
	}
	return fates
}

// keep notes the fates. A crash may take the note along unless one is in the
// spool: it was answered with an id that must be told again, and only the note
// has it.
func (k *Keys) keep(e *entry, fates []fate) {
	n := &note{kind: noteFates, key: e.key, fates: appendFates(nil, fates)}
	if count(fates, absent) == len(fates) {
		n = &note{kind: noteDropped, key: e.key}
	}
	if _, err := k.journal.write(n, count(fates, spooled) > 0); err != nil {
		k.log.Debug("the fate of a request is not kept; after a restart it is looked for", zap.Error(err))
	}
}
