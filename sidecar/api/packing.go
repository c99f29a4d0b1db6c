package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"
	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
)

// packing is how a body is packed.
type packing struct {
	name    string
	memory  int64 // what unpacking takes beside what it yields, about and at most
	readers *sync.Pool
	make    func(io.Reader) (unpacker, error)
}

// unpacker unpacks one body after the other.
type unpacker interface {
	io.Reader
	Reset(io.Reader) error
}

// zstdWindow is how far back a zstd body may refer: what RFC 8878 asks a decoder
// to have.
const zstdWindow = 8 << 20

var packings = map[string]*packing{
	"gzip": {"gzip", 64 << 10, &sync.Pool{}, func(r io.Reader) (unpacker, error) { return gzip.NewReader(r) }},
	"zstd": {"zstd", zstdWindow, &sync.Pool{}, func(r io.Reader) (unpacker, error) {
		// With one at a time it has no goroutines, and needs no end.
		return zstd.NewReader(r, zstd.WithDecoderConcurrency(1), zstd.WithDecoderLowmem(true), zstd.WithDecoderMaxWindow(zstdWindow))
	}},
}

// packingOf is how the request's body is packed, nil when it is not.
func packingOf(ctx *fasthttp.RequestCtx) (*packing, error) {
	header := ctx.Request.Header.Peek("Content-Encoding")
	if len(header) == 0 {
		return nil, nil
	}
	name := strings.ToLower(strings.TrimSpace(string(header)))
	if name == "identity" {
		return nil, nil
	}
	if p, ok := packings[strings.TrimPrefix(name, "x-")]; ok && len(ctx.Request.Header.PeekAll("Content-Encoding")) == 1 {
		return p, nil
	}
	ctx.Response.Header.Set("Accept-Encoding", "gzip, zstd")
	return nil, apiError(api.CodeBadRequest, fmt.Sprintf("Content-Encoding %q is not available: pack the body once, with gzip or zstd, or send it as it is", header))
}

// open unpacks what r has. The reader is given back by close.
func (p *packing) open(r io.Reader) (unpacker, error) {
	if u, ok := p.readers.Get().(unpacker); ok {
		if err := u.Reset(r); err != nil {
			p.readers.Put(u)
			return nil, p.wrong(err)
		}
		return u, nil
	}
	u, err := p.make(r)
	if err != nil {
		return nil, p.wrong(err)
	}
	return u, nil
}

func (p *packing) close(u unpacker) {
	_ = u.Reset(bytes.NewReader(nil)) // it must not hold on to what it read; gzip says that it is empty
	p.readers.Put(u)
}

// wrong is the error of a body that is not packed so.
func (p *packing) wrong(err error) error {
	if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
		return apiError(api.CodeBadRequest, fmt.Sprintf("the body says Content-Encoding: %s and ends in the middle of it", p.name))
	}
	if errors.Is(err, zstd.ErrWindowSizeExceeded) {
		return apiError(api.CodeBadRequest, fmt.Sprintf("the body's zstd window is too large: at most %d bytes are taken (no --long)", zstdWindow))
	}
	return apiError(api.CodeBadRequest, fmt.Sprintf("the body says Content-Encoding: %s and is not: %v", p.name, err))
}

// unpack fills the body with what is packed, most bytes at most: a few packed
// bytes can stand for any number.
func (b *body) unpack(ctx context.Context, m *bodyMemory, p *packing, packed []byte, most int) error {
	memory := m.share(p.memory)
	if err := m.take(ctx, memory); err != nil {
		return err
	}
	defer m.give(memory)
	u, err := p.open(bytes.NewReader(packed))
	if err != nil {
		return err
	}
	defer p.close(u)
	err = b.read(ctx, m, u, -1, most)
	var e *api.Error
	switch {
	case err == nil, errors.As(err, &e):
		return err
	case errors.Is(err, errBodyTooLarge):
		return apiError(api.CodeRequestTooLarge, fmt.Sprintf("the request's body has more than the %d bytes allowed (max_request_bytes) when it is unpacked", most))
	}
	return p.wrong(err)
}
