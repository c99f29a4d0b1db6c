package api

import (
	"context"
	"fmt"
	"strings"
	"sync"
	"time"

	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// Answers are held until their client has read them, or for as long as it may take
// its time, and so count as bodies do: a client that asks for messages by the
// megabyte on hundreds of connections and reads none of them would have us hold
// them all.

const (
	// firstAnswer is what an answer takes without being counted.
	firstAnswer = 64 << 10
	// lookCosts is what is counted of a look at messages while they are read and
	// written down: as records, as texts and as JSON.
	lookCosts = 3 * maxPeekBytes
	// answerLook is how often one that waits for room looks for it.
	answerLook = 10 * time.Millisecond
)

// answerMemory is the room for answers. Nil has no end.
type answerMemory struct {
	most int64

	mu   sync.Mutex // guards used
	used int64
}

func newAnswerMemory(bytes int64) *answerMemory {
	if bytes <= 0 {
		return nil
	}
	return &answerMemory{most: bytes}
}

// try counts bytes, unless that is more than there is room for; what is larger than
// all of it has room when nothing else is there.
func (m *answerMemory) try(bytes int64) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.used > 0 && m.used+bytes > m.most {
		return false
	}
	m.used += bytes
	return true
}

// add counts bytes of an answer that is there, whatever room there is: what it tells
// has been done.
func (m *answerMemory) add(bytes int64) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.used += bytes
}

// take waits a while for room. A release must follow unless it is an error, which
// is rate_limited.
func (m *answerMemory) take(ctx context.Context, bytes int64) (release func(), err error) {
	if m == nil {
		return func() {}, nil
	}
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	for !m.try(bytes) {
		select {
		case <-time.After(answerLook):
		case <-ctx.Done():
			e := apiError(api.CodeRateLimited, fmt.Sprintf("the answers that other clients have not read yet take all memory allowed for them, %d bytes (half of max_request_memory); nothing was done for this request", m.most))
			e.RetryAfterMillis = bodyWait.Milliseconds()
			return nil, e
		}
	}
	return func() { m.add(-bytes) }, nil
}

// answerCost is what is counted of an answer before it is made; 0 for those that
// are answered whatever else is going on.
func answerCost(method, pattern string) int64 {
	switch {
	case strings.HasSuffix(pattern, "/messages"), strings.HasSuffix(pattern, "/dead"):
		return lookCosts
	case strings.HasSuffix(pattern, "/pull"):
		return firstAnswer // what it hands out has its room already, until it is acknowledged
	case method != "GET" || strings.HasSuffix(pattern, "/stream"):
		return 0
	}
	switch pattern {
	case "/", "/healthz", "/readyz", "/status":
		return 0
	}
	return firstAnswer
}

// waitsLong says that a request may wait for something to come before it is
// answered, for which no room is held.
func (c *compiled) waitsLong() bool { return strings.HasSuffix(c.pattern, "/pull") }

// roomForAnswer holds room for an answer while it is made.
func (s *Server) roomForAnswer(found *compiled) (release func(), err error) {
	if found.cost == 0 || s.answers == nil {
		return func() {}, nil
	}
	release, err = s.answers.take(s.ctx, min(found.cost, max(s.answers.most/2, firstAnswer)))
	if err == nil && found.waitsLong() {
		release()
		return func() {}, nil
	}
	return release, err
}

// closeLook is how many bytes messages may have together before it is looked at what
// they take in JSON: six times as many at most.
const closeLook = 512 << 10

// sizeInJSON bounds what messages take in JSON; 0 when that is not much in any case.
// A control character takes six bytes: what came as two kilobytes, well packed, was
// hundreds of megabytes of JSON before anybody counted it.
func sizeInJSON(messages []api.Message) int64 {
	const around = 512 // names, numbers and punctuation of a message
	var raw int64
	each := func(add func(s *string)) {
		for i := range messages {
			m := &messages[i]
			add(m.Key)
			add(m.Key64)
			add(m.Value)
			add(m.Value64)
			for j := range m.Headers {
				h := &m.Headers[j]
				add(&h.Name)
				add(h.Value)
				add(h.Value64)
			}
		}
	}
	each(func(s *string) {
		if s != nil {
			raw += int64(len(*s)) + 32
		}
	})
	if raw < closeLook {
		return 0
	}
	n := raw + around*int64(len(messages))
	each(func(s *string) {
		if s == nil {
			return
		}
		for i := range len(*s) {
			switch c := (*s)[i]; {
			case c < ' ', c == 0xE2: // the line ends of JavaScript begin so, and are written out
				n += 5
			case c == '"', c == '\\':
				n++
			}
		}
	})
	return n
}

// roomToWrite holds room for messages in JSON while that is made, and makes the body
// for it. Those that there is no room for go back: they come again.
func (s *Server) roomToWrite(ctx context.Context, c *call, d *consume.Delivery) (release func(), err error) {
	n := sizeInJSON(d.Messages)
	if n == 0 || s.answers == nil {
		return func() {}, nil
	}
	release, err = s.answers.take(ctx, n)
	if err != nil {
		if d.Return == nil {
			return func() {}, nil // they count as acknowledged already
		}
		d.Return()
		return nil, err
	}
	c.Response.SwapBody(make([]byte, 0, n))
	return release, nil
}

// roomToStream waits for the room that a line of a stream takes while it is made,
// twice: as it is encoded and as it is to be sent.
func (s *Server) roomToStream(ctx context.Context, m []api.Message) (release func(), err error) {
	n := 2 * sizeInJSON(m)
	if n == 0 || s.answers == nil {
		return func() {}, nil
	}
	for {
		if release, err = s.answers.take(ctx, n); err == nil {
			return release, nil
		}
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
	}
}

// holdAnswer counts an answer until it is written.
func (s *Server) holdAnswer(ctx *fasthttp.RequestCtx) {
	sock, ok := ctx.Conn().(*conn)
	if !ok || s.answers == nil || ctx.Response.IsBodyStream() {
		return
	}
	if n := int64(len(ctx.Response.Body())) - firstAnswer; n > 0 {
		s.answers.add(n)
		sock.onDone(func() { s.answers.add(-n) })
	}
}
