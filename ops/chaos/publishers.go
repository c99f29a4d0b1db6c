package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sidestream/sdk/api"
)

// Publishers are applications that publish, a few at each sidecar, each in a way
// of its own. All that they are answered goes to the checker.
type Publishers struct {
	Topic      string
	Partitions int
	Checker    *PublishChecker

	*targets
	seed   uint64
	list   []*publisher
	cancel context.CancelFunc
	wg     sync.WaitGroup

	stalls   Stalls      // since the present fault began
	diskFull atomic.Bool // a sidecar's disk is or was full a moment ago
}

// manner is how a publisher publishes.
type manner struct {
	name     string
	acks     []string // one of them each time
	order    byWhat
	batch    int  // of ten requests so many are batches
	streamed bool // all are batches that are answered as they go
	keyed    bool // with an Idempotency-Key, and repeated until the fate is known
	fallback bool // takes a place in the spool where brokers are away
	caller   string
	refused  []api.Code // beside those that faults explain
	wrong    bool       // sends what must be refused, too
}

// byWhat is what a publisher's messages keep their order in.
type byWhat int

const (
	byNothing byWhat = iota
	byKey
	byPartition
)

// publisher is one application.
type publisher struct {
	*Publishers
	manner
	number int
	p      *Process
	rng    *rand.Rand

	lastGood atomic.Int64 // when it was answered well last, Unix nanoseconds
	good     atomic.Int64 // messages that were
}

const (
	postEvery    = 60 * time.Millisecond // of each publisher
	postTimeout  = 1500 * time.Millisecond
	mostMessages = 8    // of a batch
	mostStreamed = 60   // of one that is answered as it goes
	largest      = 4096 // bytes of a message that the sidecars take
	callerLimit  = 10   // messages a second of the caller that is limited

	// postLate is how much later than its timeout an answer may come.
	postLate = 3 * time.Second
)

// manners are those of the publishers of each sidecar.
var manners = []manner{
	{name: "all", acks: []string{"all"}, order: byKey, batch: 3},
	{name: "all to partitions", acks: []string{"all"}, order: byPartition, batch: 5, wrong: true},
	{name: "leader", acks: []string{"leader"}, order: byKey, batch: 5},
	{name: "all or leader without order", acks: []string{"all", "leader"}, batch: 5, wrong: true},
	{name: "spool", acks: []string{"spool"}, order: byKey, batch: 3},
	{name: "all, leader or spool", acks: []string{"all", "leader", "spool"}, order: byKey, batch: 3, wrong: true},
	{name: "all, or else the spool", acks: []string{"all"}, order: byKey, batch: 3, fallback: true},
	{name: "idempotency key", acks: []string{"all"}, order: byKey, batch: 3, keyed: true},
	{name: "idempotency key, all, leader or spool", acks: []string{"all", "leader", "spool"}, order: byPartition, batch: 5, keyed: true},
	{name: "stream", acks: []string{"all", "leader", "spool"}, order: byKey, streamed: true},
	{name: "limited", acks: []string{"all", "spool"}, batch: 3, caller: "limited", refused: []api.Code{api.CodeRateLimited}},
}

// NewPublishers makes publishers of every manner at each sidecar.
func NewPublishers(topic string, partitions int, seed uint64, manners []manner, ps ...*Process) *Publishers {
	all := &Publishers{Topic: topic, Partitions: partitions, Checker: NewPublishChecker(), targets: newTargets(ps), seed: seed}
	for _, p := range ps {
		for _, m := range manners {
			n := len(all.list)
			all.list = append(all.list, &publisher{Publishers: all, manner: m, number: n, p: p, rng: rand.New(rand.NewPCG(seed, uint64(n)))})
		}
	}
	return all
}

// Start begins to publish.
func (all *Publishers) Start() {
	var ctx context.Context
	ctx, all.cancel = context.WithCancel(context.Background())
	for _, w := range all.list {
		all.wg.Go(func() { w.run(ctx) })
	}
}

// Stop ends the publishers, once they know the fates of what has a key. It may be
// called again.
func (all *Publishers) Stop() {
	all.cancel()
	all.wg.Wait()
}

func (w *publisher) run(ctx context.Context) {
	tick := time.NewTicker(postEvery)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		w.publish(ctx, n)
	}
}

// request is one as it goes over HTTP, and again when it is repeated.
type request struct {
	batch    bool
	streamed bool
	url      string
	body     []byte
	header   http.Header
	expected api.Code // what must be answered; "" nothing certain
}

// publish makes one request, and repeats it when it has a key.
func (w *publisher) publish(ctx context.Context, n int) {
	req, messages := w.compose(n)
	post := w.Checker.Sent(w.number, fmt.Sprintf("post %d of publisher %d (%s) through %s at %s", n, w.number, w.name, w.p.Name, clock(time.Now())), messages)
	if w.keyed {
		defer w.misuse(req, n)
	}
	for began := time.Now(); ; {
		outcomes := w.send(post.what, req, len(messages))
		w.Checker.Answered(post, outcomes)
		good := 0
		for _, o := range outcomes {
			if o.good() {
				good++
			}
		}
		if good > 0 {
			w.good.Add(int64(good))
			w.lastGood.Store(time.Now().UnixNano())
		}
		switch {
		case good == len(outcomes) && w.keyed && w.rng.IntN(8) == 0 && ctx.Err() == nil:
			w.Checker.Count("repeats of what was answered", 1) // the answer got lost, for all that the sidecar knows
			continue
		case good == len(outcomes) || req.expected != "":
			return
		case !w.keyed:
			pause(ctx, 50*time.Millisecond) // an application backs off
			return
		case ctx.Err() != nil && time.Since(began) > wholeLimit:
			w.Checker.Break(ruleLate, "%s: no answer is the last word: %v", post.what, outcomes)
			return
		}
		w.Checker.Count("repeats of what was not", 1)
		time.Sleep(100 * time.Millisecond) // after the end of the load too: its fate is wanted
	}
}

// misuse uses the key of a request for another one, now and then.
func (w *publisher) misuse(first request, n int) {
	if w.rng.IntN(20) > 0 {
		return
	}
	req, messages := w.compose(-n - 1)
	req.header, req.expected = first.header, api.CodeIdempotencyConflict
	post := w.Checker.Sent(w.number, fmt.Sprintf("misuse of the key of post %d of publisher %d (%s) through %s at %s", n, w.number, w.name, w.p.Name, clock(time.Now())), messages)
	w.Checker.Answered(post, w.send(post.what, req, len(messages)))
}

func pause(ctx context.Context, d time.Duration) {
	select {
	case <-ctx.Done():
	case <-time.After(d):
	}
}

// compose makes a request of so many messages, each with a value of its own.
func (w *publisher) compose(n int) (request, []sent) {
	query := url.Values{"timeout": {postTimeout.String()}, "ack": {w.acks[w.rng.IntN(len(w.acks))]}}
	req := request{batch: w.rng.IntN(10) < w.batch, streamed: w.streamed, header: http.Header{}}
	count := 1
	switch {
	case req.streamed:
		req.batch, count = true, 1+w.rng.IntN(mostStreamed)
	case req.batch:
		count = 1 + w.rng.IntN(mostMessages)
	}
	messages := make([]sent, count)
	for i := range messages {
		m := sent{value: fmt.Sprintf("publisher %d, post %d, message %d %s", w.number, n, i, strings.Repeat("x", w.rng.IntN(200))), partition: -1}
		switch w.order {
		case byKey:
			m.key = fmt.Sprintf("key %d of publisher %d", w.rng.IntN(3), w.number)
			m.lane = m.key
		case byPartition:
			m.partition = int32(w.rng.IntN(w.Partitions))
			m.lane = fmt.Sprint("partition ", m.partition)
		}
		messages[i] = m
	}
	if w.wrong && !req.streamed && w.rng.IntN(10) == 0 {
		req.expected = api.CodeMessageTooLarge
		messages[0].value += strings.Repeat("y", largest)
	}
	if w.keyed {
		req.header.Set(api.HeaderIdempotencyKey, fmt.Sprintf("%d-%d-%d", w.seed, w.number, n))
	}
	if w.fallback {
		req.header.Set("Prefer", "respond-async")
	}
	if w.caller != "" {
		req.header.Set(api.HeaderCaller, w.caller)
	}
	if !req.batch {
		m := messages[0]
		if m.key != "" {
			query.Set("key", m.key)
		}
		if m.partition >= 0 {
			query.Set("partition", fmt.Sprint(m.partition))
		}
		req.url, req.body = fmt.Sprintf("%s/topics/%s?%s", w.p.HTTP, w.Topic, query.Encode()), []byte(m.value)
		return req, messages
	}
	var body bytes.Buffer
	for i, m := range messages {
		if req.streamed && w.rng.IntN(20) == 0 { // spoils no others
			messages[i].value += strings.Repeat("y", largest)
			m = messages[i]
		}
		line := map[string]any{"value": m.value}
		if m.key != "" {
			line["key"] = m.key
		}
		if m.partition >= 0 {
			line["partition"] = m.partition
		}
		b, _ := json.Marshal(line)
		body.Write(append(b, '\n'))
	}
	if w.wrong && !req.streamed && req.expected == "" && w.rng.IntN(10) == 0 {
		req.expected = api.CodeBadRecord
		body.WriteString("{\"value\":\n")
	}
	req.url, req.body = fmt.Sprintf("%s/topics/%s/batch?%s", w.p.HTTP, w.Topic, query.Encode()), body.Bytes()
	return req, messages
}

// send sends a request once and says what its answer says of each message.
func (w *publisher) send(what string, req request, count int) []outcome {
	if req.streamed {
		return w.stream(what, req, count)
	}
	all := func(o outcome) []outcome { return slices.Repeat([]outcome{o}, count) }
	sent := time.Now()
	status, replayed, body, err := exchange(req)
	if err != nil {
		if !w.excused(w.p, sent) {
			w.Checker.Break(ruleAnswer, "%s: no answer of a sidecar that is well: %v after %v", what, err, time.Since(sent))
		}
		return all(unanswered(err))
	}
	if replayed {
		w.Checker.Count("replayed", 1)
	}
	if took := time.Since(sent); took > postTimeout+postLate && !w.excused(w.p, sent) && w.stalls.Worst() <= stallLimit {
		w.Checker.Break(ruleLate, "%s: the answer came after %v, with a timeout of %v: %d %.200q", what, took, postTimeout, status, body)
	}
	var e api.ErrorBody
	var answer api.BatchPublished
	if req.batch {
		err = json.Unmarshal(body, &answer)
	} else {
		var one api.Published
		err = json.Unmarshal(body, &one)
		answer.Results = []api.BatchResult{{Partition: one.Partition, Offset: one.Offset, SpoolID: one.SpoolID}}
	}
	if err = errors.Join(err, json.Unmarshal(body, &e)); err != nil {
		w.Checker.Break(ruleAnswer, "%s: %d %.300q: %v", what, status, body, err)
		return all(outcome{why: err.Error()})
	}
	if e.Error != nil {
		if e.Error.Code.Status() != status {
			w.Checker.Break(ruleAnswer, "%s: status %d with %v", what, status, e.Error)
		}
		if !req.batch || len(answer.Results) == 0 {
			return all(w.fateOf(what, req, e.Error))
		}
	}
	if len(answer.Results) != count {
		w.Checker.Break(ruleAnswer, "%s: %d results for %d messages: %d %.300q", what, len(answer.Results), count, status, body)
		return all(outcome{why: "the results are not those of the messages"})
	}
	var outcomes []outcome
	kinds := map[fate]int{}
	for _, r := range answer.Results {
		o := outcome{fate: fateWritten, partition: r.Partition, offset: r.Offset, spool: r.SpoolID}
		switch {
		case r.Error != nil:
			o = w.fateOf(what, req, r.Error)
		case r.SpoolID != "":
			o.fate = fateSpooled
		}
		if o.fate == fateSpooled && w.fallback {
			w.Checker.Count("fell back", 1)
		}
		kinds[o.fate]++
		outcomes = append(outcomes, o)
	}
	w.checkStatus(what, status, kinds, count)
	return outcomes
}

// unanswered is what the lack of an answer says.
func unanswered(err error) outcome {
	var op *net.OpError
	if errors.As(err, &op) && op.Op == "dial" {
		return outcome{fate: fateRefused, why: "never sent", attempt: true}
	}
	return outcome{why: err.Error()}
}

// checkStatus demands that a status says what its answer does.
func (w *publisher) checkStatus(what string, status int, kinds map[fate]int, count int) {
	ok := true
	switch status {
	case http.StatusOK:
		ok = kinds[fateWritten] == count
	case http.StatusAccepted:
		ok = kinds[fateSpooled] > 0 && kinds[fateSpooled]+kinds[fateWritten] == count
	case http.StatusMultiStatus:
		ok = kinds[fateUnknown]+kinds[fateRefused] > 0
	default:
		ok = kinds[fateSpooled]+kinds[fateWritten] == 0
	}
	if !ok {
		w.Checker.Break(ruleAnswer, "%s: status %d with %v", what, status, kinds)
	}
}

// fateOf is what an error says; one that nothing explains breaks a rule.
func (w *publisher) fateOf(what string, req request, e *api.Error) outcome {
	w.Checker.Count(string(e.Code), 1)
	allowed := []api.Code{api.CodeBrokersUnavailable, api.CodeUnknownOutcome, api.CodeDraining, req.expected}
	if req.streamed {
		allowed = append(allowed, api.CodeMessageTooLarge)
	}
	if w.diskFull.Load() {
		allowed = append(allowed, api.CodeDiskUnavailable, api.CodeSpoolFull)
	}
	if !slices.Contains(append(allowed, w.refused...), e.Code) {
		w.Checker.Break(ruleAnswer, "%s: %v", what, e)
	}
	if e.Code == api.CodeUnknownOutcome || e.Code == api.CodeInternal {
		return outcome{why: e.Error()}
	}
	return outcome{fate: fateRefused, why: e.Error(), attempt: slices.Contains(beforeAll, e.Code)}
}

// beforeAll are the errors that are found before anything is looked at that was
// sent earlier.
var beforeAll = []api.Code{api.CodeDraining, api.CodeRateLimited, api.CodeDiskUnavailable}

// exchange sends a request and reads its answer, which must come in answerLimit.
func exchange(r request) (status int, replayed bool, body []byte, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), answerLimit)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, bytes.NewReader(r.body))
	if err != nil {
		return 0, false, nil, err
	}
	for name, values := range r.header {
		req.Header[name] = values
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return 0, false, nil, err
	}
	defer resp.Body.Close()
	body, err = io.ReadAll(resp.Body)
	return resp.StatusCode, resp.Header.Get("Idempotency-Replayed") == "true", body, err
}
