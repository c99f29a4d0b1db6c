package api

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// Bounds of the heartbeat.
const (
	defaultHeartbeat = 15 * time.Second
	minHeartbeat     = 100 * time.Millisecond
	maxHeartbeat     = 5 * time.Minute
)

// Waits of a stream: before it says that it waits and why, for a reason that
// passes, and for the last that is written when the server drains.
const (
	firstWait   = 20 * time.Millisecond
	passingWait = time.Second
	lastWrites  = time.Second
)

type streamOptions struct {
	consume.StreamRequest
	heartbeat time.Duration
	events    bool // server-sent events in place of lines
}

func (s *Server) streamRequestOf(c *call) (r streamOptions, err error) {
	if r.Group, r.Topic, err = c.chosen(); err != nil {
		return r, err
	}
	n, err := c.integer("window", 0, 1, consume.MaxPull)
	if err != nil {
		return r, err
	}
	r.Window = int(n)
	if r.Lease, r.From, r.AutoAck, err = c.delivery(); err != nil {
		return r, err
	}
	if r.heartbeat, err = c.duration("heartbeat", minHeartbeat, maxHeartbeat); err != nil {
		return r, err
	}
	if r.heartbeat == 0 { // not given
		r.heartbeat = defaultHeartbeat
	}
	r.events = strings.Contains(strings.ToLower(string(c.Request.Header.Peek("Accept"))), api.ContentTypeEvents)
	if len(c.PostBody()) > 0 {
		return r, apiError(api.CodeBadRequest, "a stream takes no body: settle messages with POST …/ack, nack and extend while it runs")
	}
	return r, nil
}

// stream answers with messages until one side ends it. The answer has no end
// that could be known before and outlives the time that fasthttp gives an
// answer, so the connection is taken over.
func (s *Server) stream(c *call) error {
	o, err := s.streamRequestOf(c)
	if err != nil {
		return err
	}
	contentType := api.ContentTypeNDJSON
	if o.events {
		contentType = api.ContentTypeEvents
	}
	c.SetContentType(contentType)
	if c.IsHead() {
		return nil
	}
	sock, _ := c.Conn().(*conn)
	if sock != nil {
		o.Alive = sock.alive
	}
	opening, cancel := context.WithTimeout(s.ctx, callTime)
	defer cancel()
	st, err := s.opt.Consumer.OpenStream(opening, o.StreamRequest)
	if err != nil {
		if s.draining.Load() && opening.Err() != nil {
			return draining()
		}
		return err
	}
	out := &stream{s: s, from: st, events: o.events, heartbeat: o.heartbeat}
	chunked := c.Request.Header.IsHTTP11()
	s.streams.Add(1)
	if sock != nil {
		// Should the connection fail before it is taken over.
		sock.onUnsent(func() {
			if !out.began.Swap(true) {
				st.Close(0)
				s.streams.Done()
			}
		})
	}
	// Before the leases end, so that what is not taken goes back with no attempt
	// spent.
	stall := min(s.http.WriteTimeout, st.Lease()/2)
	c.HijackSetNoResponse(true)
	c.Hijack(func(nc net.Conn) {
		if out.began.Swap(true) {
			return
		}
		defer s.streams.Done()
		if sock != nil {
			nc = sock.Conn // its own counting is for answers that end
		}
		out.run(newWire(nc, chunked, stall), contentType)
	})
	return nil
}

// stream is one answer without end.
type stream struct {
	s         *Server
	from      *consume.Stream
	events    bool
	heartbeat time.Duration
	began     atomic.Bool

	w *wire
}

// run writes until the client is gone or the server drains.
func (o *stream) run(w *wire, contentType string) {
	o.w = w
	ctx, cancel := context.WithCancel(o.s.ctx)
	defer cancel()
	stop := readOn(w.conn, cancel)
	// A client that takes nothing must not hold up the end.
	defer context.AfterFunc(o.s.ctx, func() { w.hurry(lastWrites) })()

	err := o.head(contentType)
	if err == nil {
		err = o.body(ctx)
	}
	var e *api.Error
	if errors.As(err, &e) {
		o.s.metrics.errors.WithLabelValues(string(e.Code)).Inc()
		if err = o.status(api.StreamStatus{Status: api.StreamEnded, Error: e}); err == nil {
			err = w.end()
		}
	}
	reached := w.reached()
	if e != nil && err == nil {
		reached = 1<<63 - 1 // we end it, and the client is there: it has what we wrote
	}
	o.from.Close(reached)
	stop()
}

// headerUnbuffered has nginx pass on what it gets, which it would hold back until
// its buffers are full or the answer ends.
const headerUnbuffered = "X-Accel-Buffering"

// head writes what comes before the first message.
func (o *stream) head(contentType string) error {
	h := "HTTP/1.1 200 OK\r\nServer: sidestream\r\nContent-Type: " + contentType + "\r\nCache-Control: no-store\r\n" + headerUnbuffered + ": no\r\nConnection: close\r\n"
	if o.w.chunked {
		h += "Transfer-Encoding: chunked\r\n"
	}
	return o.w.raw([]byte(h + "\r\n"))
}

// body writes messages and statuses. The error is an *api.Error when the stream
// is ended from this side.
func (o *stream) body(ctx context.Context) error {
	wait, told, wrote, away := firstWait, "", time.Now(), 0
	for {
		b, err := o.from.Next(ctx, wait)
		if err != nil {
			return asError(err)
		}
		if o.s.ctx.Err() != nil {
			if len(b.Messages) > 0 {
				// They were taken in the moment that the end began.
				if err := o.messages(ctx, b); err != nil {
					return err
				}
			}
			return draining()
		}
		if ctx.Err() != nil {
			return ctx.Err() // the client is gone
		}
		if len(b.Messages) > 0 {
			if b.Away != away {
				away = b.Away
				if err := o.status(api.StreamStatus{Status: api.StreamDelivering, InFlight: b.Held, Ownership: b.Ownership, Away: away}); err != nil {
					return err
				}
			}
			if err := o.messages(ctx, b); err != nil {
				return err
			}
			wait, wrote = firstWait, time.Now()
			continue
		}
		now := fmt.Sprint(*b.Reason, b.Ownership, b.Away)
		if now != told || time.Since(wrote) >= o.heartbeat {
			told, wrote, away = now, time.Now(), b.Away
			if err := o.status(api.StreamStatus{Status: api.StreamWaiting, Reason: b.Reason, InFlight: b.Held, Ownership: b.Ownership, Away: b.Away}); err != nil {
				return err
			}
		}
		wait = o.heartbeat
		if *b.Reason != api.ReasonAtEnd && *b.Reason != api.ReasonInFlightFull {
			wait = min(wait, passingWait)
		}
	}
}

// messages writes a batch.
func (o *stream) messages(ctx context.Context, b consume.StreamBatch) error {
	o.w.reached() // forget what has arrived
	for i := range b.Messages {
		if o.events {
			o.w.buf = append(append(append(o.w.buf, "id: "...), b.Messages[i].ID...), "\nevent: message\ndata: "...)
		}
		release, err := o.s.roomToStream(ctx, b.Messages[i:i+1])
		if err != nil {
			return asError(err)
		}
		if err := o.line(&b.Messages[i]); err != nil {
			release()
			return err
		}
		o.w.mark()
		if o.w.pending() < flushAt && i < len(b.Messages)-1 {
			release()
			continue
		}
		err = o.w.flush()
		release()
		if err != nil {
			return err
		}
		if err := o.from.Left(ctx, b.First+uint64(i)); err != nil {
			return asError(err)
		}
	}
	return nil
}

// line writes one JSON value and what ends it.
func (o *stream) line(v any) error {
	e := json.NewEncoder(o.w)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		return asError(err)
	}
	if o.events {
		o.w.buf = append(o.w.buf, '\n')
	}
	return nil
}

// status writes what is no message.
func (o *stream) status(st api.StreamStatus) error {
	if o.events {
		o.w.buf = append(o.w.buf, "event: status\ndata: "...)
	}
	if err := o.line(st); err != nil {
		return err
	}
	return o.w.flush()
}

// readOn reads what the client still sends, which means nothing, until it is
// gone. The function it returns stops it and waits.
func readOn(c net.Conn, gone func()) (stop func()) {
	var wg sync.WaitGroup
	wg.Go(func() {
		defer gone()
		b := make([]byte, 512)
		for {
			if _, err := c.Read(b); err != nil {
				return
			}
		}
	})
	return func() {
		_ = c.SetReadDeadline(time.Unix(1, 0))
		wg.Wait()
	}
}
