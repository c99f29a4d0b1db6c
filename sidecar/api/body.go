package api

import (
	"context"
	"errors"
	"fmt"
	"io"
	"sync"
	"time"

	"github.com/valyala/fasthttp"
	"golang.org/x/sync/semaphore"

	"sidestream/sdk/api"
)

// Bodies grow as they arrive: what a client announces and does not send costs
// nothing. What they take beyond their first bytes is taken from one store.
const (
	firstBody  = 64 << 10 // room for a body at first, which needs nothing of the store
	secondBody = 1 << 20  // and then; beyond it, for all that it may have

	bodyWait = time.Second // how long a body waits for memory before it is refused
)

// bodyMemory is the room for the bodies of all requests under way. Nil has no
// end.
type bodyMemory struct {
	free *semaphore.Weighted
	all  int64
}

func newBodyMemory(bytes int64) *bodyMemory {
	if bytes <= 0 {
		return nil
	}
	return &bodyMemory{free: semaphore.NewWeighted(bytes), all: bytes}
}

func (m *bodyMemory) take(ctx context.Context, bytes int64) error {
	if m == nil || m.free.TryAcquire(bytes) {
		return nil
	}
	ctx, cancel := context.WithTimeout(ctx, bodyWait)
	defer cancel()
	if m.free.Acquire(ctx, bytes) == nil {
		return nil
	}
	e := apiError(api.CodeRateLimited, fmt.Sprintf("the bodies of other requests take all memory allowed for them, %d bytes (max_request_memory); nothing of this one was used", m.all))
	e.RetryAfterMillis = bodyWait.Milliseconds()
	return e
}

// share is so much, but no more than would leave too little for what it is taken
// for.
func (m *bodyMemory) share(bytes int64) int64 {
	if m == nil {
		return bytes
	}
	return min(bytes, m.all/4)
}

func (m *bodyMemory) give(bytes int64) {
	if m != nil && bytes > 0 {
		m.free.Release(bytes)
	}
}

// body is the memory of a request's body.
type body struct {
	b     []byte
	taken int64 // of the store
}

// smallBodies and largeBodies keep the memory of bodies that were answered; what
// is small must not hold on to what is large.
var smallBodies, largeBodies sync.Pool

func newBody() *body {
	if b, ok := smallBodies.Get().(*body); ok {
		return b
	}
	return &body{b: make([]byte, 0, 4<<10)}
}

func (b *body) free(m *bodyMemory) {
	if b == nil {
		return
	}
	m.give(b.taken)
	b.b, b.taken = b.b[:0], 0
	switch {
	case cap(b.b) <= firstBody:
		smallBodies.Put(b)
	default:
		largeBodies.Put(b)
	}
}

// grow makes room for size bytes, those that are there included.
func (b *body) grow(ctx context.Context, m *bodyMemory, size int) error {
	if size <= cap(b.b) {
		return nil
	}
	if more := int64(size-firstBody) - b.taken; more > 0 {
		if err := m.take(ctx, more); err != nil {
			return err
		}
		b.taken += more
	}
	var to []byte
	if size > firstBody {
		// One that is far too large would be more than was taken.
		if kept, ok := largeBodies.Get().(*body); ok && cap(kept.b) >= size && cap(kept.b) <= 2*size {
			to = kept.b[:0]
		}
	}
	if to == nil {
		to = make([]byte, 0, size)
	}
	b.b = append(to, b.b...)
	return nil
}

// nextSize is how large a body that fills size bytes gets.
func nextSize(size, length int) int {
	switch {
	case size < firstBody:
		return firstBody
	case size < secondBody:
		return secondBody
	case length >= 0:
		return length
	}
	return 2 * size
}

// errBodyTooLarge is the end of a body that has more bytes than are allowed.
var errBodyTooLarge = errors.New("the body is too large")

// read reads a body to its end: length bytes if that is known (not below 0),
// most bytes at most.
func (b *body) read(ctx context.Context, m *bodyMemory, from io.Reader, length, most int) error {
	size := firstBody
	if length >= 0 {
		size = min(length, firstBody)
	}
	for {
		if err := b.grow(ctx, m, size); err != nil {
			return err
		}
		room := b.b[len(b.b):cap(b.b)]
		if length >= 0 {
			room = room[:min(len(room), length-len(b.b))]
		}
		n, err := from.Read(room)
		b.b = b.b[:len(b.b)+n]
		switch {
		case length >= 0 && len(b.b) == length:
			return nil
		case len(b.b) > most:
			return errBodyTooLarge
		case err == io.EOF && length >= 0:
			return io.ErrUnexpectedEOF // the client went before all was there
		case err == io.EOF: // and nothing that wraps it, which is a body that was cut off
			return nil
		case err != nil:
			return err
		}
		if len(b.b) == cap(b.b) {
			size = nextSize(len(b.b), length)
			if length >= 0 {
				size = min(size, length)
			} else {
				size = min(size, most+1) // the one more tells that it is too large
			}
		}
	}
}

// readBody reads the whole body of a request, unpacks it, and has PostBody return
// it, unless its handler reads it. The memory is the caller's to free. When it
// cannot be read the request is answered, and ok is false.
func (s *Server) readBody(ctx *fasthttp.RequestCtx, found *compiled) (b *body, ok bool) {
	if answersAsItGoes(&ctx.Request.Header, found) {
		return nil, true
	}
	packing, err := packingOf(ctx)
	if err != nil {
		s.refuse(ctx, asError(err))
		return nil, false
	}
	stream := ctx.RequestBodyStream()
	if stream == nil {
		return nil, true
	}
	length := ctx.Request.Header.ContentLength()
	if length > s.opt.MaxRequestSize {
		s.refuse(ctx, s.tooLarge(length))
		closeAfter(ctx)
		return nil, false
	}
	b = newBody()
	err = b.read(s.ctx, s.memory, stream, length, s.opt.MaxRequestSize)
	if err == nil && packing != nil {
		plain := newBody()
		if err = plain.unpack(s.ctx, s.memory, packing, b.b, s.opt.MaxRequestSize); err != nil {
			plain.free(s.memory)
		} else {
			b.free(s.memory)
			b = plain
		}
	}
	if err != nil {
		b.free(s.memory)
		s.refuseBody(ctx, err)
		return nil, false
	}
	ctx.Request.SetBodyRaw(b.b)
	return b, true
}

// refuseBody answers a request whose body could not be read.
func (s *Server) refuseBody(ctx *fasthttp.RequestCtx, err error) {
	var e *api.Error
	switch {
	case errors.As(err, &e):
		s.refuse(ctx, e)
		if e.Code != api.CodeBadRequest {
			closeAfter(ctx) // the rest of it is not waited for
		}
	case errors.Is(err, errBodyTooLarge):
		s.refuse(ctx, s.tooLarge(0))
		closeAfter(ctx)
	default:
		s.unreadable(ctx, err)
		closeAfter(ctx)
	}
}

// closeAfter closes the connection after the answer, though the client may still
// be sending.
func closeAfter(ctx *fasthttp.RequestCtx) {
	ctx.SetConnectionClose()
	if c, ok := ctx.Conn().(*conn); ok {
		c.lingers()
	}
}
