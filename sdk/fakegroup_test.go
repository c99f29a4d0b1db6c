package sdk_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// fakeGroup is a sidecar with one group on one topic "t" that keeps leases,
// attempts and the orders of groups as a sidecar does, without a network, for
// synctest bubbles.
type fakeGroup struct {
	order string
	lease time.Duration
	skew  time.Duration           // of its clock
	fault func(verb string) fault // may be nil; called with mu held

	mu         sync.Mutex // guards what follows
	parts      [][]*fakeMessage
	generation int
	seeks      int
	lastLease  int
	changed    chan struct{} // closed and made anew at every change
	nacks      []api.Receipts
	extended   int                      // receipts
	most       int                      // handed out at once, over the whole run
	answers    map[string][]api.Message // by attempt token
}

// fault is what goes wrong with one request.
type fault int

const (
	noFault  fault = iota
	refused        // 503, nothing was done
	cut            // it was done and the answer is lost
	down           // nobody listens
	draining       // 503, the sidecar is about to stop
)

type fakeMessage struct {
	api.Message
	attempt   int
	lease     int // under which it is out, 0: it is not
	until     time.Time
	notBefore time.Time
	acked     bool
}

func newFakeGroup(order string, partitions int) *fakeGroup {
	return &fakeGroup{order: order, lease: 30 * time.Second, parts: make([][]*fakeMessage, partitions), generation: 1,
		changed: make(chan struct{}), answers: map[string][]api.Message{}}
}

// put appends a message; no key when key is "".
func (f *fakeGroup) put(partition int, key, value string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	m := &fakeMessage{Message: api.Message{Topic: "t", Partition: int32(partition), Offset: int64(len(f.parts[partition])), Value: &value}}
	m.ID = fmt.Sprintf("t/%d/%d", partition, m.Offset)
	if key != "" {
		m.Key = &key
	}
	f.parts[partition] = append(f.parts[partition], m)
	f.change()
}

// change wakes the pulls. It needs mu.
func (f *fakeGroup) change() {
	close(f.changed)
	f.changed = make(chan struct{})
}

// restart is a sidecar that ends and comes again: all leases are over.
func (f *fakeGroup) restart() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.generation++
	f.each(func(m *fakeMessage) { m.lease = 0 })
	f.change()
}

// seek moves the group to the start.
func (f *fakeGroup) seek() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.seeks++
	f.each(func(m *fakeMessage) { m.lease, m.acked, m.attempt, m.notBefore = 0, false, 0, time.Time{} })
	f.change()
}

func (f *fakeGroup) each(do func(*fakeMessage)) {
	for _, p := range f.parts {
		for _, m := range p {
			do(m)
		}
	}
}

// left counts the messages that are not acknowledged.
func (f *fakeGroup) left() (n int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.each(func(m *fakeMessage) {
		if !m.acked {
			n++
		}
	})
	return n
}

// out counts the messages that are under a lease.
func (f *fakeGroup) out(now time.Time) (n int) {
	f.each(func(m *fakeMessage) {
		if !m.acked && m.lease != 0 && m.until.After(now) {
			n++
		}
	})
	return n
}

func (f *fakeGroup) client(t *testing.T) *sdk.Client {
	t.Helper()
	c, err := sdk.New("", sdk.WithHTTPClient(&http.Client{Transport: f}))
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func (f *fakeGroup) RoundTrip(r *http.Request) (*http.Response, error) {
	if err := r.Context().Err(); err != nil {
		return nil, err
	}
	verb := r.URL.Path[strings.LastIndexByte(r.URL.Path, '/')+1:]
	f.mu.Lock()
	defer f.mu.Unlock()
	wrong := noFault
	if f.fault != nil {
		wrong = f.fault(verb)
	}
	w := httptest.NewRecorder()
	switch wrong {
	case refused:
		refuse(api.CodeStoreUnavailable, "")(w)
		return w.Result(), nil
	case draining:
		refuse(api.CodeDraining, "")(w)
		return w.Result(), nil
	case down:
		return nil, &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	}
	switch verb {
	case "pull":
		pulled, err := f.pull(r)
		if err != nil {
			return nil, err
		}
		answer(w, 200, pulled)
	case "ack", "nack", "extend":
		f.receipts(w, r, verb)
	default: // the group
		answer(w, 200, api.Group{Group: verb, Config: api.GroupConfig{Order: f.order, Lease: f.lease.String()}})
	}
	if wrong == cut {
		return nil, errors.New("connection reset")
	}
	return w.Result(), nil
}

// pull waits for messages. It needs mu, and lets go of it meanwhile.
func (f *fakeGroup) pull(r *http.Request) (api.Pulled, error) {
	wait, _ := time.ParseDuration(r.URL.Query().Get("wait"))
	most, _ := strconv.Atoi(r.URL.Query().Get("max"))
	deadline := time.Now().Add(wait)
	token := r.URL.Query().Get("attempt_token")
	if messages := f.answers[token]; len(messages) > 0 && f.holds(messages) {
		for i, m := range messages {
			held := f.parts[m.Partition][m.Offset]
			held.until = time.Now().Add(f.lease)
			messages[i].LeaseUntil = new(held.until.Add(f.skew))
		}
		return api.Pulled{Messages: messages}, nil
	}
	for {
		if messages := f.take(most); len(messages) > 0 {
			f.answers[token] = messages
			return api.Pulled{Messages: messages}, nil
		}
		left := time.Until(deadline)
		if left <= 0 {
			return api.Pulled{Messages: []api.Message{}, Reason: new(api.ReasonAtEnd)}, nil
		}
		changed := f.changed
		f.mu.Unlock()
		select {
		case <-changed:
		case <-time.After(min(left, 100*time.Millisecond)): // leases end and delays pass
		case <-r.Context().Done():
		}
		f.mu.Lock()
		if err := r.Context().Err(); err != nil {
			return api.Pulled{}, err
		}
	}
}

// holds reports whether all messages are still out as they were given.
func (f *fakeGroup) holds(messages []api.Message) bool {
	for _, m := range messages {
		held := f.parts[m.Partition][m.Offset]
		if held.acked || !held.until.After(time.Now()) || m.Receipt != f.receipt(held) || held.lease == 0 {
			return false
		}
	}
	return true
}

func (f *fakeGroup) receipt(m *fakeMessage) string {
	return fmt.Sprintf("%d-%d-%d-%d-%d", f.generation, f.seeks, m.lease, m.Partition, m.Offset)
}

// lane is what must be in order with a message.
func (f *fakeGroup) lane(m *fakeMessage) string {
	switch {
	case f.order == "partition":
		return fmt.Sprint(m.Partition)
	case f.order == "key" && m.Key != nil:
		return fmt.Sprint(m.Partition, " ", *m.Key)
	}
	return m.ID
}

func (f *fakeGroup) take(most int) (messages []api.Message) {
	now := time.Now()
	f.lastLease++
	for _, p := range f.parts {
		blocked := map[string]bool{}
		for _, m := range p {
			switch lane := f.lane(m); {
			case m.acked:
			case m.lease != 0 && m.until.After(now), m.notBefore.After(now):
				blocked[lane] = true
			case len(messages) < most && !blocked[lane]:
				m.attempt++
				m.lease, m.until = f.lastLease, now.Add(f.lease)
				x := m.Message
				x.Attempt = m.attempt
				x.LeaseUntil = new(m.until.Add(f.skew))
				x.Receipt = f.receipt(m)
				messages = append(messages, x)
			}
		}
	}
	f.most = max(f.most, f.out(now))
	return messages
}

func (f *fakeGroup) receipts(w http.ResponseWriter, r *http.Request, verb string) {
	var body api.Receipts
	_ = json.NewDecoder(r.Body).Decode(&body)
	delay, _ := time.ParseDuration(body.Delay)
	if verb == "nack" {
		f.nacks = append(f.nacks, body)
	}
	response := api.ReceiptResponse{}
	var back []*fakeMessage
	now := time.Now()
	for _, receipt := range body.Receipts {
		var generation, seeks, lease, partition, offset int
		_, _ = fmt.Sscanf(receipt, "%d-%d-%d-%d-%d", &generation, &seeks, &lease, &partition, &offset)
		m := f.parts[partition][offset]
		result := api.ReceiptResult{Receipt: receipt, ID: m.ID}
		leased := m.lease == lease && m.until.After(now) && !m.acked
		switch {
		case generation != f.generation, seeks != f.seeks, verb != "ack" && !leased:
			result.Error = api.NewError(api.CodeLeaseLost, "the lease is over")
			response.Failed++
		case verb == "ack":
			m.acked = true
		case verb == "extend":
			f.extended++
			m.until = now.Add(f.lease)
			result.LeaseUntil = new(m.until.Add(f.skew))
		default:
			m.notBefore = now.Add(delay)
			back = append(back, m)
			if body.Unhandled {
				m.attempt--
			}
		}
		response.Results = append(response.Results, result)
	}
	for _, m := range back {
		// What follows in its order comes back as well.
		lane, lease := f.lane(m), m.lease
		for _, other := range f.parts[m.Partition][m.Offset:] {
			if other.lease == lease && f.lane(other) == lane {
				other.lease = 0
			}
		}
	}
	f.change()
	response.OK = len(response.Results) - response.Failed
	status := http.StatusOK
	if response.Failed > 0 {
		status = http.StatusMultiStatus
		if response.OK == 0 {
			status = http.StatusConflict
		}
	}
	answer(w, status, response)
}

// witness notes what handlers do and what they must not.
type witness struct {
	t *testing.T
	f *fakeGroup

	mu      sync.Mutex
	done    map[string]int // guarded by mu, by ID: handled well
	running map[string]int // guarded by mu, by lane
	inside  map[string]int // guarded by mu, by ID
	most    int            // guarded by mu: handlers at once
	now     int            // guarded by mu
	// unordered: messages may be handled before what precedes them was handled
	// here, since others handle it.
	unordered bool
}

func newWitness(t *testing.T, f *fakeGroup) *witness {
	return &witness{t: t, f: f, done: map[string]int{}, running: map[string]int{}, inside: map[string]int{}}
}

// begin checks that a handler may have the message now.
func (w *witness) begin(m api.Message) {
	w.mu.Lock()
	defer w.mu.Unlock()
	lane := w.f.lane(&fakeMessage{Message: m})
	if w.running[lane]++; w.running[lane] > 1 {
		w.t.Errorf("%s is handled beside another of lane %q", m.ID, lane)
	}
	if w.inside[m.ID]++; w.inside[m.ID] > 1 {
		w.t.Errorf("%s is in two handlers", m.ID)
	}
	if w.now++; w.now > w.most {
		w.most = w.now
	}
	if w.unordered {
		return
	}
	for offset := range m.Offset {
		w.f.mu.Lock()
		before := w.f.parts[m.Partition][offset]
		w.f.mu.Unlock()
		if w.f.lane(before) == lane && w.done[before.ID] == 0 {
			w.t.Errorf("%s is handled before %s was", m.ID, before.ID)
		}
	}
}

func (w *witness) end(m api.Message, well bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.running[w.f.lane(&fakeMessage{Message: m})]--
	w.inside[m.ID]--
	w.now--
	if well {
		w.done[m.ID]++
	}
}

// handler does what work says, watched.
func (w *witness) handler(work func(context.Context, api.Message) error) sdk.Handler {
	return func(ctx context.Context, m api.Message) error {
		w.begin(m)
		err := work(ctx, m)
		w.end(m, err == nil)
		return err
	}
}
