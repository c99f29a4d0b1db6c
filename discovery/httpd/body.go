// Package httpd is what the two daemons' HTTP servers have in common: what they
// refuse of a request before anything looks at what it asks for.
package httpd

import (
	"bytes"
	"errors"

	"github.com/valyala/fasthttp"
)

// Fault is why a request is refused.
type Fault struct {
	Status int
	Why    string
}

// Reasons for refusing how a body is announced.
const (
	noLength       = "the request has no Content-Length, so it has no body (RFC 9112, 6.3): say how long the body is, 0 for an empty one, or send it with Transfer-Encoding: chunked"
	otherCoding    = "the request has a Transfer-Encoding that is not available: send the body with a Content-Length, or as Transfer-Encoding: chunked and nothing else, which HTTP/1.0 does not have"
	bothGiven      = "the request has a Content-Length and a Transfer-Encoding, so it cannot be told where its body ends: send one of them"
	severalLengths = "the request has several headers Content-Length: send one"
)

var (
	contentLength    = []byte(fasthttp.HeaderContentLength)
	transferEncoding = []byte(fasthttp.HeaderTransferEncoding)
	chunked          = []byte("chunked")
)

// CheckBody judges how a request says where its body ends, which fasthttp takes
// more lightly than is safe: it takes a request without a length for one with
// the length 0, and what the client sends as the body for the next request.
// needed says that the request is about its body.
//
// last says that the connection must not be used after the answer, since what
// comes on it may be a body that nobody announced.
func CheckBody(h *fasthttp.RequestHeader, needed bool) (f *Fault, last bool) {
	length := h.ContentLength() // 0 as well when there is none
	if length > 0 && !h.ConnectionClose() {
		return nil, false // fasthttp sets that where there is a Transfer-Encoding besides
	}
	hasLength, coding := announced(h.RawHeaders())
	switch {
	case coding != nil && hasLength:
		return &Fault{fasthttp.StatusBadRequest, bothGiven}, true
	case coding != nil && !bytes.EqualFold(coding, chunked): // identity, which there was before RFC 7230
		return &Fault{fasthttp.StatusNotImplemented, otherCoding}, true
	case hasLength || coding != nil || !mayHaveBody(h):
		return nil, false
	case needed || len(h.ContentType()) > 0:
		return &Fault{fasthttp.StatusLengthRequired, noLength}, true
	}
	return nil, true
}

// mayHaveBody tells so of methods that clients use with a body. Of the others
// nobody expects one, and general clients give them a Content-Type all the same.
func mayHaveBody(h *fasthttp.RequestHeader) bool {
	return h.IsPost() || h.IsPut() || h.IsPatch()
}

// announced looks for the two headers in the lines of a head: whether there is a
// length, and the coding, nil for none.
func announced(lines []byte) (length bool, coding []byte) {
	for len(lines) > 0 {
		var line []byte
		line, lines, _ = bytes.Cut(lines, []byte{'\n'})
		switch name, value, _ := bytes.Cut(line, []byte{':'}); {
		case len(name) == len(contentLength) && bytes.EqualFold(name, contentLength):
			length = true
		case len(name) == len(transferEncoding) && bytes.EqualFold(name, transferEncoding):
			coding = append([]byte{}, bytes.TrimSpace(value)...) // not nil, however empty
		}
	}
	return length, coding
}

// CheckError says what an error of fasthttp, by which a request could not be
// read, has to do with its body; nil for nothing. It needs a server with
// SecureErrorLogMessage, which has errors that can be told apart.
func CheckError(err error) *Fault {
	switch {
	case errors.Is(err, fasthttp.ErrUnsupportedTransferEncoding):
		return &Fault{fasthttp.StatusNotImplemented, otherCoding}
	case errors.Is(err, fasthttp.ErrDuplicateContentLength):
		return &Fault{fasthttp.StatusBadRequest, severalLengths}
	}
	return nil
}
