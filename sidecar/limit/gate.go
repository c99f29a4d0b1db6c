package limit

import (
	"strings"
	"sync"
	"time"
)

// What a limit counts.
const (
	unitMessages = "messages"
	unitBytes    = "bytes"
)

// gate is what limits one topic, one caller, or all.
type gate struct {
	rates rates
	label label // in metrics
	title string

	// mu guards what follows; nobody sleeps under it.
	mu              sync.Mutex
	messages, bytes *limiter      // nil: no limit
	earlier         time.Duration // by which turns moved since those who wait were told
	moved           chan struct{} // closed when turns moved; nil when nobody waits
}

func newGate(r rates, l label, title string) *gate {
	g := &gate{rates: r, label: l, title: title}
	if r.messages > 0 {
		g.messages = newLimiter(r.messages)
	}
	if r.bytes > 0 {
		g.bytes = newLimiter(r.bytes)
	}
	return g
}

// turn is when a request may pass, and which unit says so; mu is held.
func (g *gate) turn(now time.Time) (at time.Time, unit string) {
	if g.messages != nil {
		at, unit = g.messages.turn(now), unitMessages
	}
	if g.bytes != nil {
		if t := g.bytes.turn(now); t.After(at) {
			at, unit = t, unitBytes
		}
	}
	return at, unit
}

// place is what a request has taken of a gate: where it begins by the clocks of
// its limiters.
type place struct{ messages, bytes time.Time }

// use takes a request's messages and bytes out of the rates; mu is held.
func (g *gate) use(r request, now time.Time) (p place) {
	if g.messages != nil {
		p.messages = g.messages.use(r.messages, now)
	}
	if g.bytes != nil {
		p.bytes = g.bytes.use(r.bytes, now)
	}
	return p
}

// giveBack returns what of a request was not sent after all.
func (g *gate) giveBack(p place, unsent, r request, now time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	earlier := time.Duration(0)
	if g.messages != nil {
		earlier = g.messages.giveBack(unsent.messages, r.messages, p.messages, now)
	}
	if g.bytes != nil {
		earlier = max(earlier, g.bytes.giveBack(unsent.bytes, r.bytes, p.bytes, now))
	}
	// Less than the slack is not worth waking all who wait.
	if g.earlier += earlier; g.earlier >= slackTime {
		g.earlier = 0
		if g.moved != nil {
			close(g.moved)
			g.moved = nil
		}
	}
}

// wait is how long a request still waits for its place, and what tells that the
// place has moved.
func (g *gate) wait(p place, now time.Time) (d time.Duration, moved <-chan struct{}) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.messages != nil {
		d = p.messages.Add(-g.messages.back).Sub(now)
	}
	if g.bytes != nil {
		d = max(d, p.bytes.Add(-g.bytes.back).Sub(now))
	}
	if d <= 0 {
		return 0, nil
	}
	if g.moved == nil {
		g.moved = make(chan struct{})
	}
	return d, g.moved
}

// longest is how long a request alone would use up the rates, and which of them.
func (g *gate) longest(r request) (d time.Duration, unit string) {
	if g.messages != nil {
		d, unit = g.messages.length(r.messages), unitMessages
	}
	if g.bytes != nil {
		if b := g.bytes.length(r.bytes); b > d {
			d, unit = b, unitBytes
		}
	}
	return d, unit
}

func (g *gate) idle(now time.Time) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.messages.idle(now) && g.bytes.idle(now)
}

// maxOthers bounds the gates of names that only "*" limits, since a name costs
// its inventor nothing. Those beyond share one.
const maxOthers = 10_000

// table is the gates of one scope, topics or callers.
type table struct {
	scope string
	named map[string]*gate // as configured; never written to
	each  rates            // of "*"
	rest  *gate            // for those beyond maxOthers

	// mu guards what follows.
	mu     sync.Mutex
	others map[string]*gate
	swept  time.Time
}

// newTable makes the gates of a scope; those of the table before whose rates are
// the same are kept, with what they remember.
func newTable(scope string, texts map[string]string, before *table) (*table, error) {
	t := &table{scope: scope, named: make(map[string]*gate, len(texts)), others: map[string]*gate{}}
	for name, text := range texts {
		r, err := parseRates(text)
		switch {
		case err != nil:
			return nil, err
		case name == every:
			t.each = r
			continue
		}
		if before != nil && before.named[name] != nil && before.named[name].rates == r {
			t.named[name] = before.named[name]
			continue
		}
		t.named[name] = newGate(r, label{scope, name}, title(scope, name))
	}
	if t.each.none() {
		return t, nil
	}
	if before != nil && before.each == t.each {
		t.rest = before.rest
		before.mu.Lock()
		for name, g := range before.others {
			t.others[name] = g
		}
		before.mu.Unlock()
		return t, nil
	}
	t.rest = newGate(t.each, label{scope, every}, "each other "+scope)
	return t, nil
}

// every is the name that stands for each other one.
const every = "*"

func title(scope, name string) string {
	if name == "" {
		return "a " + scope + " without a name"
	}
	return scope + " " + name
}

// empty tells that nothing is limited.
func (t *table) empty() bool { return len(t.named) == 0 && t.each.none() }

// of is the gate of a name, nil when nothing limits it. name may lie in memory
// that is used again.
func (t *table) of(name string, now time.Time) *gate {
	if g := t.named[name]; g != nil || t.each.none() {
		return g
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if g := t.others[name]; g != nil {
		return g
	}
	if len(t.others) >= maxOthers && now.Sub(t.swept) >= time.Second {
		t.swept = now
		for name, g := range t.others {
			if g.idle(now) {
				delete(t.others, name)
			}
		}
	}
	if len(t.others) >= maxOthers {
		return t.rest
	}
	g := newGate(t.each, label{t.scope, every}, title(t.scope, name))
	t.others[strings.Clone(name)] = g
	return g
}
