// Package agent is the storage host's daemon. It runs the broker, registers it
// in the coordination store, takes the lead of the partitions that the store
// gives it, and stands for controller. It answers the broker's questions about
// the cluster (broker.Cluster).
//
// Two rules hold everywhere. Nothing is deleted by absence: files go only when
// their topic's UUID is marked deleting; missing keys, or a store that belongs
// to another cluster, raise an alarm and touch nothing. And what runs goes on
// running without the store.
package agent

import (
	"fmt"
	"net"
	"strings"
	"time"

	"sidestream/broker"
)

// Config of an agent. Start from DefaultConfig.
type Config struct {
	DataDir string `yaml:"data_dir" help:"Folder of the partitions and of the broker's identity; one folder is one broker for ever."`
	ID      int32  `yaml:"id" help:"Broker id, 1 or more; 0, the default, chooses a free one at the first start and keeps it in the data folder."`
	Rack    string `yaml:"rack" help:"Failure domain of this host, such as an availability zone; partitions are spread over racks."`
	Listen  string `yaml:"listen" help:"Address (host:port) of the HTTP endpoints for health, status, metrics and rebuild; loopback by default because they ask for no password."`

	AllowedHosts []string `yaml:"allowed_hosts" help:"Further names that requests to the HTTP endpoints may carry in their Host header, beside localhost, addresses, this host's own name and those of listen and broker.advertise."`

	DefaultPartitions  int32 `yaml:"default_partitions" help:"Partitions of a new topic whose creator leaves the number to the cluster, 1 to 10000; 4 by default."`
	DefaultReplication int16 `yaml:"default_replication" help:"Replicas of a new topic whose creator leaves the number to the cluster; only 1 is available."`

	StoreTimeout    time.Duration `yaml:"store_timeout" help:"Longest time for one call of the coordination store, a positive duration; 5s by default."`
	StartWait       time.Duration `yaml:"start_wait" help:"How long a start waits for the coordination store before it serves what its folder holds, a positive duration; 5s by default."`
	ShutdownTimeout time.Duration `yaml:"shutdown_timeout" help:"Longest time for a clean stop before connections are cut, a positive duration; 30s by default."`

	Broker broker.Config `yaml:"broker" help:"The broker inside."`
}

// MaxPartitions is the most partitions that a topic can have.
const MaxPartitions = 10000

// DefaultConfig serves the broker on 127.0.0.1:9092 and HTTP on 127.0.0.1:4101.
func DefaultConfig() Config {
	return Config{
		DataDir:            "/var/lib/sidestream/agent",
		Listen:             "127.0.0.1:4101",
		DefaultPartitions:  4,
		DefaultReplication: 1,
		StoreTimeout:       5 * time.Second,
		StartWait:          5 * time.Second,
		ShutdownTimeout:    30 * time.Second,
		Broker:             broker.DefaultConfig(),
	}
}

// Validate returns an error that names the yaml key of the first bad value and
// the right form.
func (c Config) Validate() error {
	switch {
	case c.DataDir == "":
		return fmt.Errorf("data_dir: is empty: name a folder such as /var/lib/sidestream/agent")
	case c.ID < 0:
		return fmt.Errorf("id: got %d: use 1 or more, or 0 to have one chosen", c.ID)
	case c.DefaultPartitions < 1 || c.DefaultPartitions > MaxPartitions:
		return fmt.Errorf("default_partitions: got %d: use 1 to %d", c.DefaultPartitions, MaxPartitions)
	case c.DefaultReplication != 1:
		return fmt.Errorf("default_replication: got %d: use 1: more replicas are not available yet", c.DefaultReplication)
	}
	if _, _, err := net.SplitHostPort(c.Listen); err != nil {
		return fmt.Errorf("listen: got %q: use host:port such as 127.0.0.1:4101", c.Listen)
	}
	for _, h := range c.AllowedHosts {
		if h == "" || strings.ContainsAny(h, "/ ") {
			return fmt.Errorf("allowed_hosts: got %q: use the name of a host such as agent1.example", h)
		}
	}
	for _, d := range []struct {
		key   string
		value time.Duration
	}{{"store_timeout", c.StoreTimeout}, {"start_wait", c.StartWait}, {"shutdown_timeout", c.ShutdownTimeout}} {
		if d.value <= 0 {
			return fmt.Errorf("%s: got %q: use a positive duration such as 5s", d.key, d.value)
		}
	}
	if err := c.Broker.Validate(); err != nil {
		return fmt.Errorf("broker.%w", err)
	}
	if host, _, err := net.SplitHostPort(c.Broker.Listen); err == nil && c.Broker.Advertise == "" {
		if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
			return fmt.Errorf("broker.advertise: is empty, but broker.listen %q is every address of the host: name the host:port that clients reach it by, such as broker1.example:9092", c.Broker.Listen)
		}
	}
	return nil
}
