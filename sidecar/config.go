package sidecar

import (
	"fmt"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"sidestream/discovery"
	"sidestream/sidecar/consume"
	"sidestream/sidecar/idempotency"
	"sidestream/sidecar/limit"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/spool"
	"sidestream/sidecar/upstream"
)

// Config is a sidecar's configuration.
type Config struct {
	ID      string `yaml:"id" help:"Name of this sidecar, unique in the cluster; empty means one that is made at the first start and kept in data_dir."`
	DataDir string `yaml:"data_dir" help:"Folder for the sidecar's identity and the positions of its groups; one process at a time may use it."`

	Listen       string            `yaml:"listen" help:"host:port of the HTTP API; port 0 takes a free one. A loopback address unless allow_remote is set."`
	ListenUnix   string            `yaml:"listen_unix" help:"Path of a UNIX socket that serves the same API; empty means none."`
	UnixMode     string            `yaml:"unix_mode" help:"Permissions of the UNIX socket in octal: who may write to it may use the API."`
	UnixGroup    string            `yaml:"unix_group" help:"Group of the UNIX socket, by name or number; empty means the process's own."`
	AllowRemote  bool              `yaml:"allow_remote" help:"Allow listen to be an address that other hosts can reach; the API asks nobody who they are."`
	AllowedHosts []string          `yaml:"allowed_hosts" live:"true" help:"Further names that requests may carry in their Host header, beside localhost and the address listened on."`
	Callers      map[string]string `yaml:"callers" live:"true" help:"Names of the applications that use the UNIX socket, by the user that they run as: www-data: shop, or 1001: shop. They need no header Sidestream-Caller, and may not take another name."`
	Advertise    string            `yaml:"advertise" help:"host:port under which operators find this sidecar in the registry; empty means what listen is bound to."`

	MaxRequestBytes    int           `yaml:"max_request_bytes" help:"Largest body of a request in bytes, packed and unpacked, 1024 to 1 GiB; a larger one is answered 413. A batch that is answered as it goes may be larger."`
	MaxRequestMemory   int64         `yaml:"max_request_memory" help:"Most bytes that the bodies of all requests under way, and the messages of their batches, take together beyond their first 64 KiB each, 4 times max_request_bytes (one that is packed is there twice) to 1 TiB; further ones wait for a second and are answered 429. Answers that their clients have not read yet take half as much beside it; then looks at messages, listings and pulls are answered so."`
	MaxConnections     int           `yaml:"max_connections" help:"Most connections to the API at a time, 1 to 1000000; for one more the one that has been without a request for longest, a second at least, is closed, and when there is none it is answered 429 and closed itself. Each costs some 40 KiB while it is used."`
	DrainTimeout       time.Duration `yaml:"drain_timeout" live:"true" help:"How long each step of a clean stop may take, 100ms to 10m: acknowledgements still to come, requests under way, messages still to be written."`
	CheckpointInterval time.Duration `yaml:"checkpoint_interval" live:"true" help:"How often the positions of the groups are written to the coordination store, 1s to 24h: what another sidecar may repeat when this one dies; 0s means one second, or one for each hundred live sidecars where that is more."`
	AutoCreateTopics   bool          `yaml:"auto_create_topics" help:"Create an unknown topic at its first message or pull instead of answering 404; never one whose name begins with __, which are Kafka's own."`

	Kafka   upstream.Config `yaml:"kafka"`
	Publish publish.Config  `yaml:"publish"`
	Spool   spool.Config    `yaml:"spool"`
	Limits  limit.Config    `yaml:"limits"`
	Consume consume.Config  `yaml:"consume"`

	Idempotency idempotency.Config `yaml:"idempotency"`
}

// DefaultConfig is a sidecar beside an application, with Sidestream's brokers.
func DefaultConfig() Config {
	return Config{
		DataDir:          "/var/lib/sidestream/sidecar",
		Listen:           "127.0.0.1:4100",
		UnixMode:         "0660",
		MaxRequestBytes:  16 << 20,
		MaxRequestMemory: 256 << 20,
		MaxConnections:   10_000,
		DrainTimeout:     15 * time.Second,
		Kafka:            upstream.DefaultConfig(),
		Publish:          publish.DefaultConfig(),
		Spool:            spool.DefaultConfig(),
		Limits:           limit.DefaultConfig(),
		Consume:          consume.DefaultConfig(),
		Idempotency:      idempotency.DefaultConfig(),
	}
}

// Validate says which field is wrong and what would be right.
func (c Config) Validate() error {
	if c.ID != "" {
		if err := discovery.CheckName("sidecar", c.ID); err != nil {
			return fmt.Errorf("id: %w", err)
		}
	}
	if c.DataDir == "" {
		return fmt.Errorf("data_dir: is empty: name a folder such as /var/lib/sidestream/sidecar")
	}
	if err := c.checkListen(); err != nil {
		return err
	}
	if err := c.checkUnix(); err != nil {
		return err
	}
	if c.Advertise != "" {
		if host, port, err := net.SplitHostPort(c.Advertise); err != nil || host == "" || port == "" {
			return fmt.Errorf("advertise: got %q: use host:port", c.Advertise)
		}
	}
	if err := c.checkCallers(); err != nil {
		return err
	}
	if c.MaxRequestBytes < 1024 || c.MaxRequestBytes > 1<<30 {
		return fmt.Errorf("max_request_bytes: got %d: use 1024 to %d", c.MaxRequestBytes, 1<<30)
	}
	if least := 4 * int64(c.MaxRequestBytes); c.MaxRequestMemory < least || c.MaxRequestMemory > 1<<40 {
		return fmt.Errorf("max_request_memory: got %d: use 4 times max_request_bytes (%d) to %d", c.MaxRequestMemory, least, int64(1<<40))
	}
	if c.MaxConnections < 1 || c.MaxConnections > 1_000_000 {
		return fmt.Errorf("max_connections: got %d: use 1 to 1000000", c.MaxConnections)
	}
	if c.CheckpointInterval != 0 && (c.CheckpointInterval < time.Second || c.CheckpointInterval > 24*time.Hour) {
		return fmt.Errorf("checkpoint_interval: got %q: use a duration from 1s to 24h, or 0s to have it chosen", c.CheckpointInterval)
	}
	if c.DrainTimeout < 100*time.Millisecond || c.DrainTimeout > 10*time.Minute {
		return fmt.Errorf("drain_timeout: got %q: use a duration from 100ms to 10m", c.DrainTimeout)
	}
	for _, part := range []struct {
		name string
		err  error
	}{
		{"kafka", c.Kafka.Validate()},
		{"publish", c.Publish.Validate()},
		{"spool", c.Spool.Validate()},
		{"limits", c.Limits.Validate()},
		{"consume", c.Consume.Validate()},
		{"idempotency", c.Idempotency.Validate()},
	} {
		if part.err != nil {
			return fmt.Errorf("%s.%w", part.name, part.err)
		}
	}
	return nil
}

func (c Config) checkListen() error {
	host, port, err := net.SplitHostPort(c.Listen)
	if err != nil {
		return fmt.Errorf("listen: got %q: use host:port such as 127.0.0.1:4100", c.Listen)
	}
	if n, err := strconv.Atoi(port); err != nil || n < 0 || n > 65535 {
		return fmt.Errorf("listen: got %q: the port must be a number from 0 to 65535", c.Listen)
	}
	if c.AllowRemote || isLoopback(host) {
		return nil
	}
	return fmt.Errorf("listen: got %q, which other hosts can reach: use a loopback address such as 127.0.0.1:4100, or set allow_remote: true", c.Listen)
}

func isLoopback(host string) bool {
	if strings.EqualFold(host, "localhost") {
		return true
	}
	ip, err := netip.ParseAddr(host)
	return err == nil && ip.IsLoopback()
}
