package discovery

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
	"go.uber.org/zap"
)

// ConsulConfig says how to reach Consul. Empty fields of the connection take
// Consul's own environment variables (CONSUL_HTTP_ADDR, CONSUL_HTTP_TOKEN,
// CONSUL_HTTP_TOKEN_FILE, CONSUL_HTTP_SSL, CONSUL_CACERT, CONSUL_CAPATH,
// CONSUL_CLIENT_CERT, CONSUL_CLIENT_KEY, CONSUL_TLS_SERVER_NAME,
// CONSUL_HTTP_SSL_VERIFY, CONSUL_HTTP_AUTH), then the library's defaults.
type ConsulConfig struct {
	Address    string    `yaml:"address" help:"Consul's HTTP address: host:port, http://…, https://… or unix:///path; empty takes CONSUL_HTTP_ADDR, else 127.0.0.1:8500, since an agent belongs on every host."`
	Datacenter string    `yaml:"datacenter" help:"Consul datacenter; empty takes that of the agent."`
	Token      string    `yaml:"token" help:"ACL token; empty takes CONSUL_HTTP_TOKEN. Prefer token_file, which does not show in configs."`
	TokenFile  string    `yaml:"token_file" help:"File that holds the ACL token, read once at the start; it wins over token."`
	TLS        ConsulTLS `yaml:"tls" help:"TLS towards Consul, used with an https:// address."`

	Cluster         string        `yaml:"cluster" help:"Name of the Sidestream cluster: keys live under sidestream/<cluster>/ (default main), so that one Consul can hold several. Agents and sidecars of one name see nothing of another's."`
	SessionTTL      time.Duration `yaml:"session_ttl" help:"TTL of sessions, 10s to 24h (default 10s, Consul's own minimum; down to 1s where its session_ttl_min is lowered). A crashed process holds its locks for twice this."`
	CheckTTL        time.Duration `yaml:"check_ttl" help:"TTL of the service's health check, at least 1s (default 3s); it is beaten three times as often. Suspicion of a dead process begins after it."`
	DeregisterAfter time.Duration `yaml:"deregister_after" help:"How long a critical service stays listed before Consul forgets it, at least 1m (default 30m), so that an operator sees it a while."`
}

// ConsulTLS is how a TLS connection to Consul is made and checked.
type ConsulTLS struct {
	CAFile             string `yaml:"ca_file" help:"PEM file of the authorities that Consul's certificate is checked against; empty takes CONSUL_CACERT, else the system's."`
	CAPath             string `yaml:"ca_path" help:"Folder of PEM files, in place of ca_file."`
	CertFile           string `yaml:"cert_file" help:"PEM file of the client certificate, for a Consul that asks for one."`
	KeyFile            string `yaml:"key_file" help:"PEM file of the client certificate's key."`
	ServerName         string `yaml:"server_name" help:"Name expected in Consul's certificate, when it is not the host of the address."`
	InsecureSkipVerify bool   `yaml:"insecure_skip_verify" help:"Accept any certificate (default false): anybody on the way can then read and change what is sent."`
}

// DefaultConsulConfig is what a cluster with Consul's own defaults needs.
func DefaultConsulConfig() ConsulConfig {
	return ConsulConfig{
		Cluster:         "main",
		SessionTTL:      DefaultSessionTTL,
		CheckTTL:        DefaultCheckTTL,
		DeregisterAfter: 30 * time.Minute,
	}
}

// Validate says what is wrong with a config, by the name of the field.
func (c ConsulConfig) Validate() error {
	if err := CheckName("cluster", c.Cluster); err != nil {
		return fmt.Errorf("cluster: %w", err)
	}
	if err := checkConsulAddress(c.Address); err != nil {
		return fmt.Errorf("address: got %q: %w: use host:port, http://host:port, https://host:port or unix:///path", c.Address, err)
	}
	for _, f := range []struct{ key, path string }{
		{"token_file", c.TokenFile}, {"tls.ca_file", c.TLS.CAFile}, {"tls.ca_path", c.TLS.CAPath},
		{"tls.cert_file", c.TLS.CertFile}, {"tls.key_file", c.TLS.KeyFile},
	} {
		if err := checkReadable(f.path); err != nil {
			return fmt.Errorf("%s: %w: name one that this user can read", f.key, err)
		}
	}
	switch {
	case c.SessionTTL < time.Second || c.SessionTTL > 24*time.Hour:
		return fmt.Errorf("session_ttl: got %q: use 10s to 24h, such as 10s (down to 1s where Consul's session_ttl_min is lowered)", c.SessionTTL)
	case c.CheckTTL < time.Second:
		return fmt.Errorf("check_ttl: got %q: use at least 1s, such as 3s", c.CheckTTL)
	case c.DeregisterAfter < time.Minute:
		return fmt.Errorf("deregister_after: got %q: use at least 1m, such as 30m", c.DeregisterAfter)
	case (c.TLS.CertFile == "") != (c.TLS.KeyFile == ""):
		return fmt.Errorf("tls.cert_file, tls.key_file: got %q and %q: set both or neither", c.TLS.CertFile, c.TLS.KeyFile)
	}
	return nil
}

// checkConsulAddress says what is wrong with an address; none is right.
func checkConsulAddress(address string) error {
	if address == "" {
		return nil
	}
	scheme, rest, found := strings.Cut(address, "://")
	if !found {
		scheme, rest = "", address
	}
	switch scheme {
	case "unix":
		if !strings.HasPrefix(rest, "/") {
			return errors.New("the path of a socket begins with /")
		}
		return nil
	case "":
		if _, _, err := net.SplitHostPort(rest); err != nil {
			return errors.New("it is no host:port")
		}
	case "http", "https":
	default:
		return fmt.Errorf("%s is not spoken", scheme)
	}
	u, err := url.Parse("http://" + rest)
	if err != nil || u.Hostname() == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" {
		return errors.New("it is no host and port")
	}
	return nil
}

// checkReadable says why a file or folder cannot be read; "" is none.
func checkReadable(path string) error {
	if path == "" {
		return nil
	}
	f, err := os.Open(path)
	if err != nil {
		return err
	}
	return f.Close()
}

// callTimeout bounds every call that does not long-poll. Consul itself holds a
// request for up to 7 s while it has no leader (rpc_hold_timeout).
const callTimeout = 10 * time.Second

// Longest polls: Consul adds up to a sixteenth to the wait that it is asked for.
const (
	pollWait    = MaxWait - MaxWait/16
	pollTimeout = MaxWait + callTimeout
)

// rootOfAll is above the roots of all clusters.
const rootOfAll = "sidestream/"

// consul is the Store in Consul. It holds no mutex: its state is Consul's.
type consul struct {
	cfg  ConsulConfig
	log  *zap.Logger
	root string
	keep *keepers

	// One client a purpose, each with its own connections, so that neither
	// long polls nor a burst of commits can delay a renewal.
	calls, beats, polls *capi.Client
	idle                []func() // close the clients' idle connections
}

// NewConsul makes a store in Consul. It does not connect: a Consul that is away
// shows in the first call as ErrUnavailable. log may be nil.
func NewConsul(cfg ConsulConfig, log *zap.Logger) (Store, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("consul: %w", err)
	}
	if log == nil {
		log = zap.NewNop()
	}
	c := &consul{cfg: cfg, log: log, root: rootOfAll + cfg.Cluster + "/", keep: newKeepers()}
	for _, client := range []struct {
		to       **capi.Client
		maxConns int
	}{
		{&c.calls, 8},
		{&c.beats, 4},
		{&c.polls, 0}, // as many as there are watches; keep those few
	} {
		made, closeIdle, err := newConsulClient(cfg, client.maxConns)
		if err != nil {
			return nil, fmt.Errorf("consul: %w", err)
		}
		*client.to = made
		c.idle = append(c.idle, closeIdle)
	}
	return c, nil
}

// Cluster implements Store.
func (c *consul) Cluster() string { return c.cfg.Cluster }

// Close implements Store. Calls in flight end with an error.
func (c *consul) Close() error {
	c.keep.close()
	for _, closeIdle := range c.idle {
		closeIdle()
	}
	return nil
}

// bound limits a call by its own timeout and by the store's life.
func (c *consul) bound(ctx context.Context, timeout time.Duration) (context.Context, context.CancelFunc) {
	ctx, cancel := context.WithTimeout(ctx, timeout)
	unhook := context.AfterFunc(c.keep.ctx, cancel)
	return ctx, func() { unhook(); cancel() }
}

// consistent asks for a read that a deposed leader cannot answer.
func consistent(ctx context.Context) *capi.QueryOptions {
	return (&capi.QueryOptions{RequireConsistent: true}).WithContext(ctx)
}

// entry reads a pair and takes the root off its key.
func (c *consul) entry(p *capi.KVPair) Entry {
	return Entry{
		Key: strings.TrimPrefix(p.Key, c.root), Value: p.Value,
		Version: p.ModifyIndex, Created: p.CreateIndex, Session: p.Session,
	}
}
