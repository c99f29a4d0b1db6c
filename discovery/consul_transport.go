package discovery

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
)

// newConsulClient makes a client with connections of its own; maxConns 0 means
// no limit. closeIdle ends those that carry no request.
func newConsulClient(cfg ConsulConfig, maxConns int) (client *capi.Client, closeIdle func(), err error) {
	ac := capi.DefaultConfig() // reads Consul's environment variables
	set := func(to *string, v string) {
		if v != "" {
			*to = v
		}
	}
	set(&ac.Address, cfg.Address)
	set(&ac.Datacenter, cfg.Datacenter)
	set(&ac.Token, cfg.Token)
	set(&ac.TokenFile, cfg.TokenFile)
	set(&ac.TLSConfig.CAFile, cfg.TLS.CAFile)
	set(&ac.TLSConfig.CAPath, cfg.TLS.CAPath)
	set(&ac.TLSConfig.CertFile, cfg.TLS.CertFile)
	set(&ac.TLSConfig.KeyFile, cfg.TLS.KeyFile)
	set(&ac.TLSConfig.Address, cfg.TLS.ServerName)
	if cfg.TLS.InsecureSkipVerify {
		ac.TLSConfig.InsecureSkipVerify = true
	}

	dialer := &net.Dialer{Timeout: 3 * time.Second, KeepAlive: 15 * time.Second}
	tr := &http.Transport{
		Proxy:               http.ProxyFromEnvironment,
		DialContext:         dialer.DialContext,
		ForceAttemptHTTP2:   true,
		TLSHandshakeTimeout: 3 * time.Second,
		IdleConnTimeout:     time.Minute,
		MaxConnsPerHost:     maxConns,
		MaxIdleConns:        32,
		MaxIdleConnsPerHost: 32,
	}
	if path, ok := strings.CutPrefix(ac.Address, "unix://"); ok {
		// The library would replace our client by one of its own.
		tr.DialContext = func(ctx context.Context, _, _ string) (net.Conn, error) {
			return dialer.DialContext(ctx, "unix", path)
		}
		tr.Proxy = nil
		ac.Address = "localhost"
	}
	ac.Transport = tr
	hc, err := capi.NewHttpClient(tr, ac.TLSConfig)
	if err != nil {
		return nil, nil, fmt.Errorf("TLS settings: %w", err)
	}
	hc.Transport = statusTransport{hc.Transport}
	ac.HttpClient = hc
	client, err = capi.NewClient(ac)
	if err != nil {
		return nil, nil, err
	}
	return client, tr.CloseIdleConnections, nil
}

// statusError is a reply that is none of those which the library understands.
type statusError struct {
	Code int
	Body string
}

func (e *statusError) Error() string {
	return fmt.Sprintf("Consul answered %d: %s", e.Code, e.Body)
}

// statusTransport turns replies of failure into a *statusError, because some of
// the library's calls hide the status. 404 and 409 have meanings of their own.
type statusTransport struct{ next http.RoundTripper }

func (t statusTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	resp, err := t.next.RoundTrip(req)
	if date, asked := req.Context().Value(dateKey{}).(*string); asked && err == nil {
		*date = resp.Header.Get("Date")
	}
	if err != nil || resp.StatusCode < 400 || resp.StatusCode == http.StatusNotFound || resp.StatusCode == http.StatusConflict {
		return resp, err
	}
	defer resp.Body.Close()
	body, err := io.ReadAll(io.LimitReader(resp.Body, 4<<10))
	if err != nil && len(body) == 0 {
		body = []byte(err.Error())
	}
	return nil, &statusError{Code: resp.StatusCode, Body: strings.TrimSpace(string(body))}
}
