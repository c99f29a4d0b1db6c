package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"strings"
	"time"

	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// answersAsItGoes tells that the request is a batch that is answered as it goes:
// its body is not read before.
func answersAsItGoes(h *fasthttp.RequestHeader, found *compiled) bool {
	return found.method == fasthttp.MethodPost && found.pattern == "/topics/{topic}/batch" && preferred(h) == api.ContentTypeNDJSON
}

func acceptsLines(ctx *fasthttp.RequestCtx) bool {
	return preferred(&ctx.Request.Header) == api.ContentTypeNDJSON
}

// preferred is the first media type that Accept names.
func preferred(h *fasthttp.RequestHeader) string {
	first, _, _ := bytes.Cut(h.Peek("Accept"), []byte{','})
	return mediaType(string(first))
}

// streamBatch is POST /topics/T/batch with Accept: application/x-ndjson.
func (s *Server) streamBatch(c *call) error {
	u, err := s.uploadOf(c)
	if err != nil {
		closeAfter(c.RequestCtx)
		return err
	}
	if err := u.begin(); err != nil {
		_ = u.Close()
		closeAfter(c.RequestCtx)
		var e *api.Error
		if !errors.As(err, &e) {
			s.unreadable(c.RequestCtx, err)
			return nil
		}
		return e
	}
	c.SetContentType(api.ContentTypeNDJSON)
	c.Response.Header.Set("Cache-Control", "no-store")
	c.Response.Header.Set(headerUnbuffered, "no")
	c.Response.ImmediateHeaderFlush = true
	c.Response.SetBodyStream(u, -1)
	return nil
}

// uploadOf reads all but the body.
func (s *Server) uploadOf(c *call) (*upload, error) {
	if !c.Request.Header.IsHTTP11() {
		return nil, apiError(api.CodeBadRequest, "a batch is answered as it goes in HTTP/1.1 only: leave Accept: application/x-ndjson out")
	}
	o, err := s.publishOptionsOf(c)
	if err != nil {
		return nil, err
	}
	if o.IdempotencyKey != "" {
		return nil, apiError(api.CodeBadRequest, "Idempotency-Key is not for a batch that is answered as it goes (Accept: application/x-ndjson): its answers tell what to repeat")
	}
	if c.sendsEvents() {
		return nil, apiError(api.CodeBadRequest, "a batch of CloudEvents is one JSON array and is not answered as it goes: leave Accept: application/x-ndjson out")
	}
	lines, err := c.batchLines()
	if err != nil {
		return nil, err
	}
	field, err := s.keyFieldOf(c)
	if err != nil {
		return nil, err
	}
	how, err := packingOf(c.RequestCtx)
	if err != nil {
		return nil, err
	}
	trace := c.trace()
	u := &upload{
		s: s, topic: c.args[0], options: o, lines: lines, keyField: field,
		headers: func(ms []publish.Message) { traceAll(ms, trace) },
		slots:   make(chan struct{}, piecesAtOnce),
		pieces:  make(chan *piece, piecesAtOnce),
	}
	if field.name != "" {
		u.path = pathOf(field.name)
	}
	u.ctx, u.cancel = context.WithCancel(s.requestContext())
	sock := c.Conn()
	u.alive = func() {
		_ = sock.SetReadDeadline(time.Now().Add(s.http.ReadTimeout)) // a failure shows when reading
		if s.ctx.Err() != nil || u.ctx.Err() != nil {
			u.interrupt(sock)
		}
	}
	u.stopDrain = context.AfterFunc(s.ctx, func() { u.interrupt(sock) })
	u.sock = sock
	if u.from, err = u.open(c, how); err != nil {
		u.stopDrain()
		u.cancel()
		return nil, err
	}
	return u, nil
}

// open gives the body as it was before it was packed.
func (u *upload) open(c *call, how *packing) (io.Reader, error) {
	body := c.RequestBodyStream()
	if body == nil {
		body = bytes.NewReader(nil)
	}
	length := c.Request.Header.ContentLength()
	var from io.Reader = &wholeBody{from: body, left: int64(length), known: length >= 0}
	if how == nil {
		return from, nil
	}
	memory := u.s.memory.share(how.memory)
	if err := u.s.memory.take(u.ctx, memory); err != nil {
		return nil, err
	}
	u.packedMemory = memory
	return &unpacking{how: how, from: from, u: u}, nil
}

// unpacking is a packed body, unpacked as it is read.
type unpacking struct {
	how  *packing
	from io.Reader
	u    *upload
}

func (r *unpacking) Read(to []byte) (int, error) {
	if r.u.unpacker == nil {
		var err error
		if r.u.unpacker, err = r.how.open(r.from); err != nil {
			return 0, err
		}
		r.u.how = r.how
	}
	n, err := r.u.unpacker.Read(to)
	if err != nil && err != io.EOF {
		var netErr net.Error
		if !errors.As(err, &netErr) && !errors.Is(err, errChunkSize) {
			err = r.how.wrong(err)
		}
	}
	return n, err
}

// wholeBody tells a body that ends before its length from one that ends there.
type wholeBody struct {
	from  io.Reader
	left  int64
	known bool
}

func (b *wholeBody) Read(to []byte) (int, error) {
	n, err := b.from.Read(to)
	b.left -= int64(n)
	switch {
	case err == io.EOF && b.known && b.left > 0:
		err = io.ErrUnexpectedEOF
	case err == nil && b.known && b.left == 0:
		err = io.EOF // with the last bytes: whether all is there decides about the status
	case err != nil && !b.known && strings.HasSuffix(err.Error(), "hex number"): // fasthttp has no name for it
		err = errChunkSize
	}
	return n, err
}

// errChunkSize is the end of a body of which a chunk has no size.
var errChunkSize = errors.New("a chunk of the body does not begin with its size")

// interrupt ends the reading of the body.
func (u *upload) interrupt(sock net.Conn) { _ = sock.SetReadDeadline(time.Unix(1, 0)) }

// Close ends the upload and waits for its goroutines. It is called when the
// answer is written, or cannot be.
func (u *upload) Close() error {
	if sock, ok := u.sock.(*conn); ok {
		defer sock.ends()
	}
	u.stopDrain()
	u.cancel()
	if p := u.current; p != nil {
		<-p.done
		u.current = nil
		u.free(p)
	}
	if u.reading {
		if !u.ended {
			u.interrupt(u.sock)
		}
		for p := range u.pieces {
			<-p.done
			u.free(p)
		}
	}
	u.wg.Wait()
	if u.unpacker != nil {
		u.how.close(u.unpacker)
		u.unpacker = nil
	}
	u.s.memory.give(u.packedMemory)
	u.packedMemory = 0
	return nil
}

// asRequestError makes an *api.Error of what ended a body.
func asRequestError(err error) *api.Error {
	var e *api.Error
	var netErr net.Error
	var chunk fasthttp.ErrBrokenChunk
	switch {
	case errors.As(err, &e):
		return e
	case errors.As(err, &netErr) && netErr.Timeout():
		return apiError(api.CodeBadRequest, "the body did not arrive in time")
	case errors.As(err, &chunk), errors.Is(err, errChunkSize):
		return apiError(api.CodeBadRequest, "a chunk of the body is broken or cut off: a last line without its end was not sent")
	case errors.Is(err, io.ErrUnexpectedEOF):
		return apiError(api.CodeBadRequest, "the body ends before its end: a last line without its end was not sent")
	}
	return apiError(api.CodeBadRequest, fmt.Sprintf("the body cannot be read: %v", err))
}
