package main

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

const (
	// lastAnswer is how long the answer to the request under way is waited for
	// after a stop was asked for: what is known then need not be repeated.
	lastAnswer    = 5 * time.Second
	produceFirst  = 250 * time.Millisecond // before the first repeat, doubled
	produceRarest = 2 * time.Second
)

type producer struct {
	client  *sdk.Client
	topic   string
	options produceOptions
	out     io.Writer
	notes   io.Writer // for people
	key     string    // of the run; each request has the number of its first line besides. "": none

	written, spooled int
	next             int  // the line after those that were sent
	heard            bool // a sidecar has answered
}

func newProducer(c *sdk.Client, topic string, o produceOptions, out, notes io.Writer) *producer {
	p := &producer{client: c, topic: topic, options: o, out: out, notes: notes, key: o.idempotencyKey, next: max(1, o.resume.first)}
	switch {
	case o.resume.key != "":
		p.key = o.resume.key
	case p.key == "" && !o.once:
		p.key = rand.Text()
	}
	return p
}

func (p *producer) summary() string {
	if p.spooled == 0 {
		return fmt.Sprintf("%s written to %s", plural(p.written, "message"), p.topic)
	}
	text := fmt.Sprintf("%s for %s taken into the spool", plural(p.spooled, "message"), p.topic)
	if p.written > 0 {
		text += fmt.Sprintf(", %d written", p.written)
	}
	return text
}

// run publishes batches until the input ends.
func (p *producer) run(ctx context.Context, in io.Reader) error {
	lines := make(chan input, p.options.batch)
	// A read of standard input cannot be interrupted: when ctx ends first the
	// reader stays in it until the process ends.
	go reading{whole: p.options.whole, blank: p.options.asJSON, first: p.next}.read(ctx, in, lines)
	// A repeat with an idempotency key has to make the same requests.
	how := collecting{most: p.options.batch, hurry: p.options.idempotencyKey == ""}
	if r := p.options.resume; r.key != "" {
		how = collecting{most: 1 << 30, last: r.last}
	}
	for {
		batch, err := how.collect(ctx, lines)
		how = collecting{most: p.options.batch, hurry: p.options.idempotencyKey == ""}
		if len(batch) > 0 {
			if err := p.publish(ctx, batch); err != nil {
				return err
			}
			p.next = batch[len(batch)-1].number + 1
		}
		switch {
		case errors.Is(err, io.EOF):
			return nil
		case ctx.Err() != nil:
			return ctx.Err()
		case err != nil:
			return fmt.Errorf("%w\nthe lines before it are written: mend the input, and the same command goes on with --resume %d", err, p.next)
		}
	}
}

// publish sends a batch. At a bad line, of which the sidecar says that it kept the
// whole request from being sent, the lines before it are sent by themselves: what
// is written does not depend on which lines came together.
func (p *producer) publish(ctx context.Context, batch []input) error {
	d := p.deliver(ctx, batch)
	p.written += d.result.Written
	p.spooled += d.result.Spooled
	if e, ok := errors.AsType[*api.Error](d.err); ok && d.outcome == api.NotWritten && e.Line > 0 && e.Line <= len(batch) {
		at := batch[e.Line-1].number
		before := batch[:e.Line-1]
		if p.options.idempotencyKey != "" || e.Code != api.CodeBadRecord && e.Code != api.CodeMessageTooLarge {
			before = nil
		} else if len(before) > 0 {
			if err := p.publish(ctx, before); err != nil {
				return err
			}
		}
		from := at
		if len(before) == 0 {
			from = batch[0].number
		}
		return fmt.Errorf("line %d: not written: %w\nnothing from line %d on is written: mend the input, and the same command goes on with --resume %d", at, lineError(e), from, from)
	}
	if p.options.show && d.err == nil {
		for _, r := range d.result.Results {
			if r.Error == nil {
				if err := p.print(r); err != nil {
					return err
				}
			}
		}
	}
	return p.failure(batch, d)
}

// failure is what is to be told of a batch, nil when it is written; its last line
// says how to go on.
func (p *producer) failure(batch []input, d delivery) error {
	var told []string
	var first error
	unknown, refused, again := 0, 0, false
	tell := func(lines []input, outcome api.Outcome, err error) {
		if first == nil {
			first = err
		}
		if outcome == api.Unknown {
			unknown += len(lines)
			told = append(told, fmt.Sprintf("%s: unknown whether written: %v", span(lines), err))
			return
		}
		refused += len(lines)
		told = append(told, fmt.Sprintf("%s: not written: %v", span(lines), err))
	}
	if d.err != nil {
		tell(batch, d.outcome, d.err)
	} else {
		for i := 0; i < len(batch) && i < len(d.result.Results); {
			e := d.result.Results[i].Error
			if e == nil {
				i++
				continue
			}
			end := i + 1 // those that follow and failed alike
			for end < len(batch) && end < len(d.result.Results) && d.result.Results[end].Error != nil &&
				d.result.Results[end].Error.Error() == e.Error() {
				end++
			}
			again = again || e.Retryable
			tell(batch[i:end], e.Code.Outcome(), e)
			i = end
		}
	}
	if first == nil {
		return nil
	}
	from, to := batch[0].number, batch[len(batch)-1].number
	var then string
	switch {
	case refused == len(batch):
		then = fmt.Sprintf("nothing from line %d on is written: the same command goes on with --resume %d", from, from)
	case p.key != "" && (unknown > 0 || again):
		then = fmt.Sprintf("nothing after line %d is sent: the same command, with the same input and to the same sidecar, goes on with --resume %s, and writes nothing twice",
			to, resumption{from, to, p.key})
	case unknown > 0:
		look := fmt.Sprintf("which of lines %d to %d are", from, to)
		if from == to {
			look = fmt.Sprintf("whether line %d is", from)
		}
		then = fmt.Sprintf("nothing after line %d is sent: look %s there; the same command goes on behind with --resume %d", to, look, to+1)
	default:
		then = fmt.Sprintf("nothing after line %d is sent: the same command goes on behind with --resume %d", to, to+1)
	}
	return &produceError{strings.Join(append(told, then), "\n"), first}
}

// produceError is a failure in the words of the command.
type produceError struct {
	text  string
	cause error
}

func (e *produceError) Error() string { return e.text }
func (e *produceError) Unwrap() error { return e.cause }

func (p *producer) print(r api.BatchResult) error {
	place := fmt.Sprint(r.Offset)
	if r.SpoolID != "" {
		place = "spool:" + r.SpoolID
	}
	_, err := fmt.Fprintf(p.out, "%s/%d/%s\n", p.topic, r.Partition, place)
	return err
}

// lineError is the sidecar's error about a line in the words of the command: its
// number is of the request, and options of the query are flags here.
func lineError(e *api.Error) *api.Error {
	own := *e
	own.Message = strings.TrimPrefix(own.Message, fmt.Sprintf("line %d: ", e.Line))
	own.Message = strings.NewReplacer(" use ?lines=1", ", leave out --json", ", or use ?lines=1", ", or leave out --json",
		"; nothing of this request was written", "").Replace(own.Message)
	return &own
}

// delivery is what became of a batch: results, or an error of all of it with its
// outcome.
type delivery struct {
	result  api.BatchPublished
	err     error
	outcome api.Outcome
}

// deliver sends a batch, and again what is unknown or may be taken later, as long
// as there is patience. A request that was stopped is not repeated, but its answer
// is waited for.
func (p *producer) deliver(ctx context.Context, batch []input) (d delivery) {
	calls, cancel := context.WithCancel(context.WithoutCancel(ctx))
	defer cancel()
	defer context.AfterFunc(ctx, func() {
		select {
		case <-time.After(lastAnswer):
			cancel()
		case <-calls.Done():
		}
	})()
	begun, wait := time.Now(), produceFirst
	told := api.Outcome("")
	for doubt := false; ; {
		d = delivery{outcome: api.Written}
		d.result, d.err = p.send(calls, batch)
		if d.err != nil {
			d.result = api.BatchPublished{Results: d.result.Results}
			if d.outcome = sdk.OutcomeOf(d.err); doubt {
				d.outcome = api.Unknown // the refusal is of this attempt
			}
			doubt = d.outcome == api.Unknown
		}
		if _, ok := errors.AsType[*api.Error](d.err); ok || d.err == nil {
			p.heard = true
		}
		state, cause := p.repeat(d)
		if state == "" || ctx.Err() != nil || time.Since(begun) >= p.options.patience {
			return d
		}
		if state != told {
			told = state
			_, _ = fmt.Fprintf(p.notes, "%s: %s, trying again: %v\n", span(batch), state, cause) // only for people
		}
		select {
		case <-time.After(max(wait, min(sdk.RetryAfter(cause), produceRarest))):
		case <-ctx.Done():
			return d
		}
		wait = min(2*wait, produceRarest)
	}
}

// repeat says whether a batch is to be sent again, as the outcome for which it is,
// and the error that tells why; "" when not.
func (p *producer) repeat(d delivery) (api.Outcome, error) {
	if d.err != nil {
		switch e, answered := errors.AsType[*api.Error](d.err); {
		case d.outcome == api.Unknown:
			if p.key == "" || answered && !e.Retryable && e.Code != api.CodeInternal {
				return "", nil // a repeat is unsafe, or is refused as this one was
			}
			return api.Unknown, d.err
		case answered && e.Retryable, !answered && p.heard:
			return api.NotWritten, d.err
		}
		return "", nil
	}
	if p.key == "" {
		return "", nil // what is written would be written again
	}
	var later error
	for i := range d.result.Results {
		switch e := d.result.Results[i].Error; {
		case e == nil:
		case e.Code.Outcome() == api.Unknown:
			return api.Unknown, e
		case e.Retryable && later == nil:
			later = e
		}
	}
	if later == nil {
		return "", nil
	}
	return api.NotWritten, later
}

// send sends a batch by one call of the client.
func (p *producer) send(ctx context.Context, batch []input) (api.BatchPublished, error) {
	key := ""
	if p.key != "" {
		key = fmt.Sprintf("%s/%d", p.key, batch[0].number)
	}
	options := p.options.publish(key)
	switch {
	case p.options.whole:
		at, err := p.client.Publish(ctx, p.topic, p.options.message(batch[0].line), options...)
		if err != nil {
			return api.BatchPublished{}, err
		}
		answer := api.BatchPublished{Topic: at.Topic, Written: 1, Results: []api.BatchResult{{Partition: at.Partition, Offset: at.Offset, SpoolID: at.SpoolID}}}
		if at.SpoolID != "" {
			answer.Written, answer.Spooled = 0, 1
		}
		return answer, nil
	case p.options.asJSON:
		return p.client.PublishNDJSON(ctx, p.topic, joinLines(batch), options...)
	case !p.options.records():
		return p.client.PublishLines(ctx, p.topic, joinLines(batch), options...)
	}
	messages := make([]sdk.Message, len(batch))
	for i, in := range batch {
		messages[i] = p.options.message(in.line)
	}
	return p.client.PublishBatch(ctx, p.topic, messages, options...)
}
