package kafka

import (
	"errors"
	"fmt"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// errWouldBlock is how an inline request says that this time it must wait.
var errWouldBlock = errors.New("the request must wait")

// tooNew answers ApiVersions requests of versions that we do not know.
var tooNew = api{
	key: keyApiVersions, name: "ApiVersions", kind: inline,
	serve: func(s *Server, c *call) (*response, error) {
		s.metrics.failed(codeUnsupportedVersion)
		return unsupportedApiVersions(c.header), nil
	},
}

// parse decodes a request. What cannot be decoded or is not served is an error, and the connection is closed: there is
// no answer that the client could read.
func parse(f *frame) (*api, *call, error) {
	h, body, err := parseHeader(f.buf, flexible)
	if err != nil {
		return nil, nil, err
	}
	c := &call{header: h}
	a := apiTable[h.key]
	switch {
	case a == nil:
		return nil, nil, fmt.Errorf("request key %d is not served: ask ApiVersions what is", h.key)
	case h.key == keyApiVersions && h.version > a.max:
		return &tooNew, c, nil
	case h.version < a.min || h.version > a.max:
		return nil, nil, fmt.Errorf("%s version %d is not served: ask ApiVersions for the range, which is %d to %d", a.name, h.version, a.min, a.max)
	case a.kind != produce && f.size > maxSmallRequest:
		return nil, nil, fmt.Errorf("%s request of %d bytes: the limit is %d", a.name, f.size, maxSmallRequest)
	}
	c.req = a.request()
	c.req.SetVersion(h.version)
	if a.shape != nil {
		if err := a.shape(body, h.version); err != nil {
			return nil, nil, fmt.Errorf("%s version %d: %w", a.name, h.version, err)
		}
	}
	if u, ok := c.req.(kmsg.UnsafeReadFrom); ok && a.kind == produce {
		err = u.UnsafeReadFrom(body) // topic names lie in the frame too, which outlives the request
	} else {
		err = c.req.ReadFrom(body)
	}
	if err != nil {
		return nil, nil, fmt.Errorf("%s version %d does not decode: %w", a.name, h.version, err)
	}
	return a, c, nil
}
