// Package sdk is a thin client of the Sidestream sidecar's HTTP API. Whatever
// is clever (partitions, batching, groups, offsets) happens in the sidecar; this
// package only spells the requests, types the answers and loops where a loop
// is wanted ([Client.Consume]).
//
// Every error that the sidecar answered is an [*api.Error]; test it with
// errors.Is against a code:
//
//	if errors.Is(err, &api.Error{Code: api.CodeTopicNotFound}) { … }
//
// A whole program is in examples/hello. The module is called "sidestream" and
// is on no proxy: a program of another module names a checkout,
//
//	go mod edit -require=sidestream@v0.0.0 -replace=sidestream=/path/to/sidestream
package sdk

import (
	"context"
	"fmt"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
)

// DefaultAddress is where a sidecar listens unless told otherwise.
const DefaultAddress = "http://127.0.0.1:4100"

// EnvAddress is the environment variable that says where the sidecar is, for
// a program that names no address itself.
const EnvAddress = "SIDESTREAM_SIDECAR"

// Client speaks to one sidecar. It is safe for concurrent use.
type Client struct {
	base  string // scheme and host, without a slash at the end
	where string // the address for people
	http  *http.Client
	retry Retry
	// caller is the application's name, "" when it gives none.
	caller string
}

// Option changes a new Client.
type Option func(*Client)

// WithHTTPClient replaces the HTTP client, for example to set a transport. It
// must have no Timeout shorter than the longest wait of a pull.
func WithHTTPClient(h *http.Client) Option { return func(c *Client) { c.http = h } }

// WithRetry makes calls repeat after failures that a repeat may help and that
// are certain to have changed nothing. Without it every failure is returned.
func WithRetry(r Retry) Option { return func(c *Client) { c.retry = r } }

// WithCaller tells the sidecar which application this is: it may limit how much
// each one publishes. The name is 1 to 128 of a-z A-Z 0-9 . _ -
func WithCaller(name string) Option { return func(c *Client) { c.caller = name } }

// New makes a client of the sidecar at address: "http://127.0.0.1:4100",
// "127.0.0.1:4100", "unix:/run/sidestream.sock", or "" for the one that the
// environment variable [EnvAddress] names, else [DefaultAddress]. Nothing is
// sent yet.
func New(address string, options ...Option) (*Client, error) {
	c := &Client{}
	if address == "" {
		address = os.Getenv(EnvAddress)
	}
	transport := http.DefaultTransport.(*http.Transport).Clone()
	transport.Proxy = nil              // a sidecar is on this host
	transport.MaxIdleConnsPerHost = 64 // as many pulls and publishes as one application runs at once
	switch path, unix := strings.CutPrefix(address, "unix:"); {
	case unix:
		path = strings.TrimPrefix(path, "//")
		if path == "" {
			return nil, fmt.Errorf("sidecar address %q: use unix:/path/of/the.sock", address)
		}
		transport.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", path)
		}
		c.base, c.where = "http://localhost", "unix:"+path
	default:
		base, err := parseAddress(address)
		if err != nil {
			return nil, err
		}
		c.base, c.where = base, base
	}
	c.http = &http.Client{Transport: transport}
	for _, o := range options {
		o(c)
	}
	return c, nil
}

func parseAddress(address string) (string, error) {
	if address == "" {
		return DefaultAddress, nil
	}
	full := address
	if !strings.Contains(full, "://") {
		full = "http://" + full
	}
	u, err := url.Parse(full)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" || strings.Trim(u.Path, "/") != "" || u.RawQuery != "" {
		return "", fmt.Errorf("sidecar address %q: use http://host:port, host:port or unix:/path", address)
	}
	return u.Scheme + "://" + u.Host, nil
}

// Close closes idle connections. Calls after it still work.
func (c *Client) Close() { c.http.CloseIdleConnections() }

// Retry says how calls are repeated. A publish is repeated only when the
// sidecar said that nothing was written (429 and 503) or could not be
// connected to, never when its outcome is unknown, unless it has an
// [IdempotencyKey].
type Retry struct {
	Attempts int           // in all, the first included; 0 and 1: no repeat
	Longest  time.Duration // longest wait before a repeat, also of a Retry-After; 0: 10 s
}

const (
	firstBackoff   = 100 * time.Millisecond
	longestBackoff = 10 * time.Second
)

// wait is how long to wait before repeat number n (from 1), given what the
// sidecar asked for (0: nothing).
func (r Retry) wait(n int, asked time.Duration) time.Duration {
	longest := r.Longest
	if longest <= 0 {
		longest = longestBackoff
	}
	backoff := firstBackoff << min(n-1, 20)
	return min(max(asked, backoff), longest)
}
