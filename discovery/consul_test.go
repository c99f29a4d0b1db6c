package discovery_test

import (
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	d "sidestream/discovery"
	"sidestream/discovery/discoverytest"
)

// fakeConsul answers as a test says.
type fakeConsul struct {
	*httptest.Server
	answer atomic.Pointer[http.HandlerFunc]
}

func newFakeConsul(t *testing.T) *fakeConsul {
	t.Helper()
	f := &fakeConsul{}
	f.says(http.StatusOK, "[]")
	f.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		(*f.answer.Load())(w, r)
	}))
	t.Cleanup(f.Close)
	return f
}

func (f *fakeConsul) does(h http.HandlerFunc) { f.answer.Store(&h) }

func (f *fakeConsul) says(code int, body string) {
	f.does(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("X-Consul-Index", "7")
		w.WriteHeader(code)
		io.WriteString(w, body)
	})
}

// drops takes the request and closes the connection without an answer.
func (f *fakeConsul) drops() {
	f.does(func(w http.ResponseWriter, r *http.Request) {
		io.Copy(io.Discard, r.Body)
		conn, _, err := http.NewResponseController(w).Hijack()
		if err == nil {
			conn.Close()
		}
	})
}

func config(address string) d.ConsulConfig {
	cfg := d.DefaultConsulConfig()
	cfg.Address = address
	cfg.SessionTTL = time.Second
	return cfg
}

func newConsul(t *testing.T, cfg d.ConsulConfig) d.Store {
	t.Helper()
	s, err := d.NewConsul(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

var allErrors = []error{d.ErrNotFound, d.ErrConflict, d.ErrUnavailable, d.ErrUnknownOutcome, d.ErrSessionLost, d.ErrTooLarge}

// isOnly wants want and none of the other errors of the package; nil wants an
// error that is none of them.
func isOnly(t *testing.T, what string, err, want error) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error", what)
	}
	for _, e := range allErrors {
		if errors.Is(err, e) != (e == want) {
			t.Errorf("%s: %v, want %v", what, err, want)
			return
		}
	}
}

func TestConsulErrors(t *testing.T) {
	f := newFakeConsul(t)
	s := newConsul(t, config(f.URL))
	for _, c := range []struct {
		code         int
		body         string
		read, commit error
	}{
		{500, "No cluster leader", d.ErrUnavailable, d.ErrUnavailable},
		{500, "rpc error making call: No cluster leader", d.ErrUnavailable, d.ErrUnavailable},
		{500, "No known Consul servers", d.ErrUnavailable, d.ErrUnavailable},
		{500, "rpc error getting client: failed to get conn: dial tcp 10.0.0.1:8300: connect: connection refused", d.ErrUnavailable, d.ErrUnavailable},
		{500, "raft apply failed: node is not the leader", d.ErrUnavailable, d.ErrUnavailable},
		{500, "rpc error making call: raft apply failed: leadership lost while committing log", d.ErrUnavailable, d.ErrUnknownOutcome},
		{500, "rpc error making call: EOF", d.ErrUnavailable, d.ErrUnknownOutcome},
		{502, "a proxy's words", d.ErrUnavailable, d.ErrUnknownOutcome},
		{429, "Your IP is issuing too many concurrent connections, please rate limit your calls", d.ErrUnavailable, d.ErrUnavailable},
		{413, "Request body too large", d.ErrTooLarge, d.ErrTooLarge},
		{403, "Permission denied: token lacks permission", nil, nil},
		{400, "Bad request", nil, nil},
	} {
		f.says(c.code, c.body)
		what := fmt.Sprintf("%d %s", c.code, c.body)
		_, err := s.Get(t.Context(), "a")
		isOnly(t, "get, "+what, err, c.read)
		_, err = s.List(t.Context(), "a")
		isOnly(t, "list, "+what, err, c.read)
		_, _, err = s.Watch(t.Context(), "a", 1)
		isOnly(t, "watch, "+what, err, c.read)
		_, err = s.Commit(t.Context(), d.Set("a", nil))
		isOnly(t, "commit, "+what, err, c.commit)
		if err != nil && !strings.Contains(err.Error(), c.body) {
			t.Errorf("the error %q does not say %q", err, c.body)
		}
	}

	for _, c := range []struct {
		body string
		want error
		op   int
	}{
		{`{"Results":null,"Errors":[{"OpIndex":1,"What":"failed to set key \"a\", index is stale"}]}`, d.ErrConflict, 1},
		{`{"Results":null,"Errors":[{"OpIndex":0,"What":"invalid session \"x\""}]}`, d.ErrSessionLost, 0},
		{`{"Results":null,"Errors":[{"OpIndex":0,"What":"Permission denied: token lacks permission 'key:write'"}]}`, nil, 0},
		{`{"Results":null,"Errors":null}`, d.ErrConflict, -1},
		{`{"Results":null,"Errors":[{"OpIndex":99,"What":"?"}]}`, d.ErrConflict, -1},
	} {
		f.says(409, c.body)
		_, err := s.Commit(t.Context(), d.Set("a", nil), d.Set("b", nil))
		isOnly(t, c.body, err, c.want)
		var conflict *d.ConflictError
		if errors.As(err, &conflict) && conflict.Op != c.op {
			t.Errorf("%s: operation %d, want %d", c.body, conflict.Op, c.op)
		}
	}

	f.drops()
	_, err := s.Get(t.Context(), "a")
	isOnly(t, "get, dropped", err, d.ErrUnavailable)
	_, err = s.Commit(t.Context(), d.Set("a", nil))
	isOnly(t, "commit, dropped", err, d.ErrUnknownOutcome)

	release := make(chan struct{})
	f.does(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err = s.Commit(ctx, d.Set("a", nil))
	isOnly(t, "commit, no answer", err, d.ErrUnknownOutcome)
	if !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("commit, no answer: %v", err)
	}
	close(release)

	f.Close()
	_, err = s.Commit(t.Context(), d.Set("a", nil))
	isOnly(t, "commit, refused", err, d.ErrUnavailable)
}

// A commit that waits for one of the few connections was not sent.
func TestConsulCommitThatFoundNoConnection(t *testing.T) {
	f := newFakeConsul(t)
	s := newConsul(t, config(f.URL))
	release := make(chan struct{})
	var busy sync.WaitGroup
	const conns = 8
	busy.Add(conns)
	var n atomic.Int32
	f.does(func(w http.ResponseWriter, r *http.Request) {
		if n.Add(1) <= conns {
			busy.Done()
		}
		<-release
		w.WriteHeader(http.StatusNotFound)
	})
	var wg sync.WaitGroup
	for range conns {
		wg.Go(func() { s.Get(t.Context(), "a") })
	}
	busy.Wait()
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	_, err := s.Commit(ctx, d.Set("a", nil))
	isOnly(t, "commit", err, d.ErrUnavailable)
	close(release)
	wg.Wait()
}

func TestConsulWatchIndexes(t *testing.T) {
	f := newFakeConsul(t)
	s := newConsul(t, config(f.URL))
	for _, c := range []struct{ asked, header, want uint64 }{
		{0, 7, 7}, {5, 7, 7}, {7, 7, 7},
		{8, 7, 0}, // backwards: begin again
		{0, 0, 1}, // 0 would not block
	} {
		f.does(func(w http.ResponseWriter, r *http.Request) {
			if c.asked > 0 {
				wait, err := time.ParseDuration(r.URL.Query().Get("wait"))
				if err != nil || wait > d.MaxWait || wait < d.MaxWait/2 {
					t.Errorf("wait %s, %v", wait, err)
				}
			}
			if _, ok := r.URL.Query()["consistent"]; !ok {
				t.Errorf("not a consistent read: %s", r.URL)
			}
			w.Header().Set("X-Consul-Index", fmt.Sprint(c.header))
			io.WriteString(w, "[]")
		})
		if _, next, err := s.Watch(t.Context(), "a", c.asked); err != nil || next != c.want {
			t.Errorf("asked from %d, answered %d: next %d, %v, want %d", c.asked, c.header, next, err, c.want)
		}
		if _, next, err := s.WatchServices(t.Context(), "a", c.asked); err != nil || next != c.want {
			t.Errorf("services, asked from %d, answered %d: next %d, %v, want %d", c.asked, c.header, next, err, c.want)
		}
	}
}

// Only a 404 that a consistent read confirms is the end of a session.
func TestConsulRenewals(t *testing.T) {
	f := newFakeConsul(t)
	s := newConsul(t, config(f.URL))
	var created string
	f.does(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		created = string(b)
		io.WriteString(w, `{"ID":"s1"}`)
	})
	sess, err := s.NewSession(t.Context(), "me")
	if err != nil || sess.ID() != "s1" {
		t.Fatal(sess, err)
	}
	for _, want := range []string{`"LockDelay":"1ms"`, `"TTL":"1s"`, `"Behavior":"delete"`, `"Name":"me"`, `"NodeChecks":[]`} {
		if !strings.Contains(created, want) {
			t.Errorf("the session was asked for as %s, without %s", created, want)
		}
	}
	renewals := make(chan string, 100)
	for _, code := range []int{500, 429, 403, 503} {
		f.does(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(code)
			select {
			case renewals <- r.URL.Path:
			default:
			}
		})
		for range 2 {
			if path := <-renewals; path != "/v1/session/renew/s1" {
				t.Fatalf("call to %s", path)
			}
		}
		if sess.Ownership() == d.Lost {
			t.Fatalf("lost by status %d", code)
		}
	}

	// A leader that has not replayed its log does not know the session; the
	// consistent read fails, or finds it.
	notFound := func(code int, info string) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasPrefix(r.URL.Path, "/v1/session/renew/"):
				w.WriteHeader(404)
			case strings.HasPrefix(r.URL.Path, "/v1/session/info/"):
				if _, ok := r.URL.Query()["consistent"]; !ok {
					t.Errorf("asked for %s", r.URL)
				}
				w.WriteHeader(code)
				io.WriteString(w, info)
				select {
				case renewals <- r.URL.Path:
				default:
				}
			default:
				io.WriteString(w, "true")
			}
		}
	}
	for len(renewals) > 0 {
		<-renewals
	}
	f.does(notFound(500, "Not ready to serve consistent reads"))
	for path := range renewals {
		if path == "/v1/session/info/s1" {
			break
		}
	}
	f.does(notFound(200, `[{"ID":"s1"}]`))
	<-renewals
	<-renewals
	if sess.Ownership() == d.Lost {
		t.Fatal("lost by a 404 that was not confirmed")
	}
	if err := s.DestroySession(t.Context(), "s1"); !errors.Is(err, d.ErrUnavailable) {
		t.Fatalf("destroyed one that is still there: %v", err)
	}

	f.does(notFound(200, "[]"))
	if err := s.DestroySession(t.Context(), "s1"); err != nil {
		t.Fatal(err)
	}
	select {
	case <-sess.Lost():
	case <-time.After(time.Minute):
		t.Fatal("not lost by a confirmed 404")
	}

	f.says(500, "Invalid Session TTL '1s', must be between [10s=24h0m0s]")
	if _, err := s.NewSession(t.Context(), "me"); err == nil || !strings.Contains(err.Error(), "session_ttl") || errors.Is(err, d.ErrUnavailable) {
		t.Fatalf("a TTL that is refused: %v", err)
	}
}

// A registration that the agent forgot is made again.
func TestConsulRegistersAgain(t *testing.T) {
	f := newFakeConsul(t)
	cfg := config(f.URL)
	cfg.CheckTTL = time.Second
	s := newConsul(t, cfg)
	calls := make(chan string, 100)
	record := func(status int) http.HandlerFunc {
		return func(w http.ResponseWriter, r *http.Request) {
			b, _ := io.ReadAll(r.Body)
			if strings.Contains(r.URL.Path, "/check/update/") {
				w.WriteHeader(status)
			}
			select {
			case calls <- r.URL.Path + " " + string(b):
			default:
			}
		}
	}
	f.does(record(200))
	r, err := s.Register(t.Context(), d.Service{ID: "a-1", Name: "a", Address: "h", Port: 1, Meta: map[string]string{"k": "v"}})
	if err != nil {
		t.Fatal(err)
	}
	await := func(parts ...string) {
		t.Helper()
		timeout := time.After(time.Minute)
		for {
			select {
			case call := <-calls:
				found := true
				for _, p := range parts {
					found = found && strings.Contains(call, p)
				}
				if found {
					return
				}
			case <-timeout:
				t.Fatalf("no call with %q", parts)
			}
		}
	}
	await("/v1/agent/service/register", `"ID":"a-1@main"`, `"Tags":["main"]`, `"Status":"passing"`, `"TTL":"1s"`, `"Meta":{"k":"v","sidestream-cluster":"main"}`, `"DeregisterCriticalServiceAfter":"30m0s"`)
	await("/v1/agent/check/update/service:a-1@main", `"passing"`)
	f.does(record(404))
	await("/v1/agent/service/register", `"ID":"a-1@main"`)
	f.does(record(404))
	await("/v1/agent/service/register", `"ID":"a-1@main"`)
	if err := r.Deregister(t.Context()); err != nil {
		t.Fatal(err)
	}
	await("/v1/agent/service/deregister/a-1@main")
}

// A process that came back after a crash was suspected at once: Consul's agent
// had taken its registration, but the catalog still showed the check that its
// earlier life left critical. Register returns when others see it passing.
func TestConsulRegistersOverACriticalCheck(t *testing.T) {
	ctx := t.Context()
	cfg := discoverytest.Start(t, "").Config("main")
	cfg.CheckTTL = time.Second
	s := d.Service{ID: "x-1", Name: "x", Address: "127.0.0.1", Port: 1}
	seen := func(store d.Store) []d.Instance {
		t.Helper()
		in, _, err := store.WatchServices(ctx, "x", 0)
		if err != nil {
			t.Fatal(err)
		}
		return in
	}
	for range 3 {
		before, err := d.NewConsul(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := before.Register(ctx, s); err != nil {
			t.Fatal(err)
		}
		before.Close() // as a crash: nothing is deregistered
		store, err := d.NewConsul(cfg, nil)
		if err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(30 * time.Second); ; time.Sleep(20 * time.Millisecond) {
			if in := seen(store); len(in) == 1 && !in[0].Passing {
				break
			}
			if time.Now().After(deadline) {
				t.Fatal("the check of the crashed process never turned critical")
			}
		}
		if _, err := store.Register(ctx, s); err != nil {
			t.Fatal(err)
		}
		if in := seen(store); len(in) != 1 || !in[0].Passing {
			t.Errorf("after Register others see %+v", in)
		}
		store.Close()
	}
}

func TestConsulConnection(t *testing.T) {
	dir := t.TempDir()
	var got atomic.Pointer[http.Request]
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got.Store(r)
		w.WriteHeader(http.StatusNotFound)
	})
	plain := httptest.NewServer(handler)
	defer plain.Close()
	secure := httptest.NewTLSServer(handler)
	defer secure.Close()
	ca := filepath.Join(dir, "ca.pem")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: secure.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	tokenFile := filepath.Join(dir, "token")
	if err := os.WriteFile(tokenFile, []byte("from-file\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "sock")
	l, err := net.Listen("unix", socket)
	if err != nil {
		t.Fatal(err)
	}
	unix := httptest.NewUnstartedServer(handler)
	unix.Listener.Close()
	unix.Listener = l
	unix.Start()
	defer unix.Close()

	for _, c := range []struct {
		name  string
		env   map[string]string
		set   func(*d.ConsulConfig)
		token string
		query string
		fails bool
	}{
		{name: "address", set: func(c *d.ConsulConfig) { c.Address = plain.URL }},
		{name: "host and port, token, datacenter", set: func(c *d.ConsulConfig) {
			c.Address, c.Token, c.Datacenter = plain.Listener.Addr().String(), "t", "dc7"
		}, token: "t", query: "dc=dc7"},
		{name: "token file", set: func(c *d.ConsulConfig) { c.Address, c.Token, c.TokenFile = plain.URL, "t", tokenFile }, token: "from-file"},
		{name: "environment", env: map[string]string{"CONSUL_HTTP_ADDR": plain.URL, "CONSUL_HTTP_TOKEN": "env"}, token: "env"},
		{name: "config over environment", env: map[string]string{"CONSUL_HTTP_ADDR": "127.0.0.1:1", "CONSUL_HTTP_TOKEN": "env"},
			set: func(c *d.ConsulConfig) { c.Address, c.Token = plain.URL, "t" }, token: "t"},
		{name: "unix socket", set: func(c *d.ConsulConfig) { c.Address = "unix://" + socket }},
		{name: "TLS", set: func(c *d.ConsulConfig) { c.Address, c.TLS.CAFile = secure.URL, ca }},
		{name: "TLS by environment", env: map[string]string{"CONSUL_HTTP_ADDR": secure.URL, "CONSUL_CACERT": ca}},
		{name: "TLS with a stranger", set: func(c *d.ConsulConfig) { c.Address = secure.URL }, fails: true},
		{name: "TLS unchecked", set: func(c *d.ConsulConfig) { c.Address, c.TLS.InsecureSkipVerify = secure.URL, true }},
	} {
		t.Run(c.name, func(t *testing.T) {
			for k, v := range c.env {
				t.Setenv(k, v)
			}
			cfg := d.DefaultConsulConfig()
			cfg.Cluster = "blue"
			if c.set != nil {
				c.set(&cfg)
			}
			_, err := newConsul(t, cfg).Get(t.Context(), "topics/a b")
			if c.fails {
				isOnly(t, "get", err, d.ErrUnavailable)
				return
			}
			isOnly(t, "get", err, d.ErrNotFound)
			r := got.Load()
			if r.URL.Path != "/v1/kv/sidestream/blue/topics/a b" {
				t.Errorf("asked for %q", r.URL.Path)
			}
			if token := r.Header.Get("X-Consul-Token"); token != c.token {
				t.Errorf("token %q, want %q", token, c.token)
			}
			if _, ok := r.URL.Query()["consistent"]; !ok || !strings.Contains(r.URL.RawQuery, c.query) {
				t.Errorf("query %q", r.URL.RawQuery)
			}
		})
	}
}

func TestConsulConfigValidate(t *testing.T) {
	if err := d.DefaultConsulConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for want, change := range map[string]func(*d.ConsulConfig){
		"cluster:":          func(c *d.ConsulConfig) { c.Cluster = "a/b" },
		"session_ttl:":      func(c *d.ConsulConfig) { c.SessionTTL = -time.Second },
		"check_ttl:":        func(c *d.ConsulConfig) { c.CheckTTL = time.Millisecond },
		"deregister_after:": func(c *d.ConsulConfig) { c.DeregisterAfter = time.Second },
		"tls.cert_file, ":   func(c *d.ConsulConfig) { c.TLS.CertFile = "consul_test.go" },
		"tls.ca_file:":      func(c *d.ConsulConfig) { c.TLS.CAFile = "/does/not/exist" },
		"tls.key_file:":     func(c *d.ConsulConfig) { c.TLS.KeyFile = "/does/not/exist" },
		"token_file:":       func(c *d.ConsulConfig) { c.TokenFile = "/does/not/exist" },
		`got "ht tp:/x"`:    func(c *d.ConsulConfig) { c.Address = "ht tp:/x" },
		"no host:port":      func(c *d.ConsulConfig) { c.Address = "consul" },
		"ftp is not spoken": func(c *d.ConsulConfig) { c.Address = "ftp://x:1" },
		"begins with /":     func(c *d.ConsulConfig) { c.Address = "unix://run/x" },
		"no host and port":  func(c *d.ConsulConfig) { c.Address = "http://" },
	} {
		cfg := d.DefaultConsulConfig()
		change(&cfg)
		if err := cfg.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want one about %s", err, want)
		}
		if _, err := d.NewConsul(cfg, nil); err == nil {
			t.Errorf("a store was made with a wrong %s", want)
		}
	}
	for _, address := range []string{"127.0.0.1:8500", "[::1]:8500", "consul:8500", "http://consul", "https://consul:8501/", "unix:///run/consul.sock"} {
		cfg := d.DefaultConsulConfig()
		cfg.Address = address
		if err := cfg.Validate(); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}
