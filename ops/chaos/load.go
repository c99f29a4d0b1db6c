package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/url"
	"slices"
	"sync"
	"time"

	"sidestream/sdk/api"
)

// Load is applications at work: publishers that write through any sidecar that
// is well, and for each sidecar a few consumers of every group, which acknowledge
// most of what they get and mistreat the rest. All that happens goes to the
// groups' checkers.
type Load struct {
	Topic      string
	Publishers int

	groups map[string]*Checker
	ledger *Ledger
	seed   uint64

	publishing, consuming context.CancelFunc
	publishers, consumers sync.WaitGroup

	*targets
}

// consumer is one application of a group at one sidecar.
type consumer struct {
	*Load
	p       *Process
	base    string // of the group's topic there
	checker *Checker
	rng     *rand.Rand
}

const (
	publishEvery     = 40 * time.Millisecond // of each publisher: some three messages a second and partition
	consumersOfEach  = 3
	keys             = 500              // cover all partitions
	answerLimit      = 15 * time.Second // in which a sidecar must answer anything
	consumptionLease = 4 * time.Second  // short, so that what is abandoned comes again soon
)

// NewLoad makes a load on the sidecars; Start begins it.
func NewLoad(topic string, groups map[string]*Checker, seed uint64, l *Ledger, ps ...*Process) *Load {
	return &Load{Topic: topic, Publishers: 4, groups: groups, ledger: l, seed: seed, targets: newTargets(ps)}
}

// Start begins to publish and to consume.
func (l *Load) Start() {
	var publishing, consuming context.Context
	publishing, l.publishing = context.WithCancel(context.Background())
	consuming, l.consuming = context.WithCancel(context.Background())
	for w := range l.Publishers {
		l.publishers.Go(func() { l.publish(publishing, w) })
	}
	n := uint64(0)
	for _, p := range l.list {
		for group, checker := range l.groups {
			for range consumersOfEach {
				n++
				c := consumer{l, p, p.HTTP + "/groups/" + group + "/topics/" + l.Topic, checker, rand.New(rand.NewPCG(l.seed, 1000+n))}
				l.consumers.Go(func() { c.consume(consuming) })
			}
		}
	}
}

// StopPublishing ends the publishers; the consumers go on.
func (l *Load) StopPublishing() {
	l.publishing()
	l.publishers.Wait()
}

// Stop ends everything. It may be called again.
func (l *Load) Stop() {
	l.StopPublishing()
	l.consuming()
	l.consumers.Wait()
}

func (l *Load) publish(ctx context.Context, writer int) {
	rng := rand.New(rand.NewPCG(l.seed, uint64(writer)))
	tick := time.NewTicker(publishEvery)
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		ps := l.Healthy()
		if len(ps) == 0 {
			continue
		}
		p := ps[rng.IntN(len(ps))]
		key, value := fmt.Sprint("key-", rng.IntN(keys)), fmt.Sprintf("writer %d, event %d", writer, i)
		target := fmt.Sprintf("%s/topics/%s?timeout=5s&key=%s", p.HTTP, l.Topic, url.QueryEscape(key))
		var a api.Published
		sent := time.Now()
		if err := l.call(ctx, p, target, []byte(value), &a); err != nil {
			l.ledger.Unknown(value)
			l.judge(ctx, "publish", p, sent, err, api.CodeBrokersUnavailable, api.CodeUnknownOutcome, api.CodeDraining)
			continue
		}
		for _, c := range l.groups {
			c.Published(time.Now(), a.Partition, a.Offset, key, value)
		}
		if err := l.ledger.Published(l.Topic, a.Partition, a.Offset, value); err != nil {
			l.breakRule(ruleValue, "%v", err)
		}
	}
}

// call posts; the answer must come within answerLimit. A stopping load does not
// take answers away that are on their way.
func (l *Load) call(ctx context.Context, p *Process, target string, body []byte, into any) error {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), answerLimit)
	defer cancel()
	_, err := callUntil(call, "POST", target, body, into)
	return err
}

// breakRule tells any one of the checkers.
func (l *Load) breakRule(rule, format string, args ...any) {
	for _, c := range l.groups {
		c.Break(rule, format, args...)
		return
	}
}

// judge breaks a rule when an error has no reason: a code that is none of those
// allowed, or no answer at all from a sidecar that is well.
func (l *Load) judge(ctx context.Context, doing string, p *Process, sent time.Time, err error, allowed ...api.Code) {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		if !slices.Contains(allowed, e.Code) {
			l.breakRule(ruleAnswer, "%s at %s through %s: %v", doing, clock(sent), p.Name, err)
		}
	case !l.excused(p, sent):
		l.breakRule(ruleAnswer, "%s at %s through %s, which is well: %v after %v", doing, clock(sent), p.Name, err, time.Since(sent))
	}
	select {
	case <-ctx.Done():
	case <-time.After(50 * time.Millisecond): // an application backs off
	}
}

func (c consumer) consume(ctx context.Context) {
	for ctx.Err() == nil {
		var got api.Pulled
		sent := time.Now()
		err := c.call(ctx, c.p, fmt.Sprintf("%s/pull?max=%d&wait=500ms&lease=%s", c.base, 1+c.rng.IntN(40), consumptionLease), nil, &got)
		if err != nil {
			c.judge(ctx, "pull", c.p, sent, err, api.CodeDraining, api.CodeStoreUnavailable, api.CodeBrokersUnavailable)
			continue
		}
		if len(got.Messages) == 0 {
			if got.Reason == nil {
				c.checker.Break(ruleAnswer, "%s answered a pull with neither messages nor a reason", c.p.Name)
			}
			continue
		}
		c.checker.Delivered(c.p.Name, sent, time.Now(), got.Ownership == "unproven", got.Messages)
		time.Sleep(upTo(c.rng, 5*time.Millisecond)) // the application's work
		c.settle(ctx, got.Messages)
	}
}

// settle does with messages what applications do: nearly always the right thing.
func (c consumer) settle(ctx context.Context, ms []api.Message) {
	one := c.rng.IntN(len(ms))
	rest := slices.Delete(slices.Clone(ms), one, one+1)
	switch c.rng.IntN(40) {
	case 0: // one fails
		_, _ = c.post(ctx, "nack", ms[one:one+1], fmt.Sprintf("%dms", c.rng.IntN(300)))
		c.ack(ctx, rest)
	case 1: // out of order
		c.rng.Shuffle(len(rest), func(i, j int) { rest[i], rest[j] = rest[j], rest[i] })
		c.ack(ctx, rest)
		c.ack(ctx, ms[one:one+1])
	case 2: // needs longer
		_, _ = c.post(ctx, "extend", ms, "")
		c.ack(ctx, ms)
	case 3: // dies at it
		if c.rng.IntN(4) == 0 {
			c.ack(ctx, ms[:one])
			return
		}
		fallthrough
	default:
		c.ack(ctx, ms)
	}
}

func receiptsOf(ms []api.Message) (rs []string) {
	for _, m := range ms {
		rs = append(rs, m.Receipt)
	}
	return rs
}

func (c consumer) ack(ctx context.Context, ms []api.Message) {
	if len(ms) == 0 {
		return
	}
	c.checker.AckSent(ms)
	out, err := c.post(ctx, "ack", ms, "")
	if err == nil {
		c.checker.AckAnswered(c.p.Name, time.Now(), ms, out.Results)
	}
}

// post sends receipts. Where all fail alike the answer is that error, as one.
func (c consumer) post(ctx context.Context, what string, ms []api.Message, delay string) (api.ReceiptResponse, error) {
	body, err := json.Marshal(api.Receipts{Receipts: receiptsOf(ms), Delay: delay})
	if err != nil {
		return api.ReceiptResponse{}, err
	}
	var out api.ReceiptResponse
	sent := time.Now()
	err = c.call(ctx, c.p, c.base+"/"+what, body, &out)
	var e *api.Error
	switch {
	case errors.As(err, &e) && e.Code == api.CodeLeaseLost:
		out.Results = make([]api.ReceiptResult, len(ms))
		for i := range out.Results {
			out.Results[i].Error = e
		}
		return out, nil
	case err != nil:
		c.judge(ctx, what, c.p, sent, err, api.CodeDraining, api.CodeUnknownOutcome)
		return out, err
	}
	if what != "ack" {
		for i, res := range out.Results {
			if res.Error != nil && res.Error.Code != api.CodeLeaseLost {
				c.checker.Break(ruleReceipt, "%s of %s: %v", what, ms[i].ID, res.Error)
			}
		}
	}
	return out, err
}

// upTo is a random time below d.
func upTo(rng *rand.Rand, d time.Duration) time.Duration { return time.Duration(rng.Int64N(int64(d))) }
