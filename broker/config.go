package broker

import (
	"fmt"
	"math"
	"net"
	"path/filepath"
	"strconv"
	"time"

	"sidestream/broker/kafka"
	"sidestream/broker/record/unpack"
)

// Config says how a broker serves. The zero value is not usable: start from DefaultConfig.
type Config struct {
	// ID is this broker's number in the cluster, 0 or more. The agent sets it.
	ID int32 `yaml:"-"`
	// DataDir holds the partitions' folders. The agent sets it.
	DataDir string `yaml:"-"`

	LogDirs   []string `yaml:"log_dirs" help:"Directories (absolute paths) that new partitions are put in, each into the one with the fewest bytes, one a disk; empty means data_dir, whose partitions are served in any case. A failed sync takes only its own directory offline for writes."`
	Listen    string   `yaml:"listen" help:"Address (host:port) that the Kafka protocol is served on; port 0 takes a free one; loopback by default because there is no TLS or SASL."`
	Advertise string   `yaml:"advertise" help:"Address (host:port) that clients are told to connect to; empty means the address that listen is bound to."`
	Loops     int      `yaml:"loops" help:"Event loops for small requests, 1 to 64; 2 by default, since disk and network waits happen outside them."`

	MaxRequestBytes        int64         `yaml:"max_request_bytes" help:"Largest request frame in bytes, 1 KiB to 2 GiB; 100 MiB by default as in Kafka (socket.request.max.bytes); a larger one closes the connection."`
	MaxRequestMemory       int64         `yaml:"max_request_memory" help:"Bytes that all requests in memory may hold together, at least max_request_bytes; 100 MiB by default; it is charged as their bytes arrive, an eighth is left for requests that are there at once, further ones wait unread, and what requests leave of it is kept a while for the next ones."`
	MaxUnpackedBytes       int64         `yaml:"max_unpacked_bytes" help:"Bytes that a compressed batch may unpack to, 64 KiB to 2 GiB; 64 MiB by default, as consumers' memory has to stand it; a produced batch that unpacks to more is refused with MESSAGE_TOO_LARGE, and one that is stored is passed on but not looked into by compaction and searches by time, which take twice as much memory at most."`
	MaxConnections         int           `yaml:"max_connections" help:"Connections in all, at least 1; 10000 by default; for a further one that which has been idle longest (a second at least) is closed, and if none is, the further one."`
	MaxConnectionsPerIP    int           `yaml:"max_connections_per_ip" help:"Connections from one IP address; 0, the default, is half of max_connections, so that no host takes them all, while many clients may share an address (containers, NAT); for a further one an idle one of the same address is closed, and if none is, the further one."`
	MaxInFlightRequests    int           `yaml:"max_in_flight_requests" help:"Requests of one connection that may be unanswered at once, 1 to 10000; 100 by default; further ones wait unread."`
	MaxInFlightBytes       int64         `yaml:"max_in_flight_bytes" help:"Bytes of one connection's unanswered requests, at least 1 KiB; 32 MiB by default; one request may always be in flight."`
	MaxFetchBytes          int64         `yaml:"max_fetch_bytes" help:"Bytes of records in one Fetch answer at most, at least 1 KiB; 55 MiB by default as in Kafka; the first batch is sent whole even if larger."`
	MaxFetchWait           time.Duration `yaml:"max_fetch_wait" help:"Longest time a Fetch may wait for data whatever the client asks, a positive duration; 1m by default."`
	IdleTimeout            time.Duration `yaml:"idle_timeout" help:"A connection without a request for this long is closed, at least 1s; 10m by default as in Kafka (connections.max.idle.ms)."`
	ReceiveTimeout         time.Duration `yaml:"receive_timeout" help:"A request that has begun must arrive within this time plus its size at 64 KiB a second and never stand still for so long, a quarter of it while request memory is short; an answer must go on being taken within it; at least 1s; 30s by default."`
	RequestTimeout         time.Duration `yaml:"request_timeout" help:"Longest time for a request that asks the cluster (creating or deleting topics), a positive duration; 30s by default."`
	AutoCreateTopics       bool          `yaml:"auto_create_topics" help:"Create an unknown topic when a client asks for its metadata and allows it; false by default, because a typing error would make a topic; never one whose name begins with __, which are Kafka's own."`
	AutoCreatePartitions   int32         `yaml:"auto_create_partitions" help:"Partitions of a topic created that way, 1 to 10000; 4 by default."`
	RetentionCheckInterval time.Duration `yaml:"retention_check_interval" help:"How often logs are checked against retention.ms, retention.bytes and segment age, have their recovery points moved, and are looked at for compaction, at least 1s; 1m by default."`
	ProducerIDExpiration   time.Duration `yaml:"producer_id_expiration" help:"How long the sequence numbers of an idempotent producer that sends nothing are remembered, 1s to 596h; 24h by default as in Kafka (producer.id.expiration.ms); a retry that comes later is not known for one."`
	CompactMemory          int64         `yaml:"compact_memory" help:"Bytes for the map of keys of the compaction that runs, one log at a time, some 40 bytes a key, at least 64 KiB; 32 MiB by default; a log with more keys takes several passes."`
	CompactBytesPerSecond  int64         `yaml:"compact_bytes_per_second" help:"Bytes that compaction reads a second at most, 0 for no limit; 32 MiB by default, so that it leaves the disk to clients."`
	ScrubInterval          time.Duration `yaml:"scrub_interval" help:"Pause between two rounds in which all logs are read and their checksums are checked, so that a disk's silent damage is found; 168h by default, 0 for never, else at least 1s."`
	ScrubBytesPerSecond    int64         `yaml:"scrub_bytes_per_second" help:"Bytes that the round reads a second at most, at least 1024; 8 MiB by default."`
	Quota                  QuotaConfig   `yaml:"quota" help:"Bytes that clients may send and fetch."`
	OpenParallelism        int           `yaml:"open_parallelism" help:"Partitions opened at once when the broker starts, 1 to 256; 8 by default."`
}

// QuotaConfig bounds what a client id takes of this broker.
type QuotaConfig struct {
	ProduceBytesPerSecond int64             `yaml:"produce_bytes_per_second" live:"true" help:"Bytes of records that each client id may produce a second to this broker, 0, the default, for no limit; a client over it is told to wait and not read meanwhile."`
	FetchBytesPerSecond   int64             `yaml:"fetch_bytes_per_second" live:"true" help:"Bytes of records that each client id may fetch a second from this broker, 0, the default, for no limit."`
	ProduceClients        map[string]string `yaml:"produce_clients" live:"true" help:"Client ids with a limit of their own, bytes a second each, 0 for none, such as loader: 1048576."`
	FetchClients          map[string]string `yaml:"fetch_clients" live:"true" help:"The same for fetching."`
}

// quota reads one pair of settings.
func quota(key string, def int64, clients map[string]string) (kafka.Quota, error) {
	q := kafka.Quota{Default: def, Clients: map[string]int64{}}
	if def < 0 {
		return q, fmt.Errorf("quota.%s_bytes_per_second: got %d: use 0 for no limit, or a number of bytes", key, def)
	}
	for id, text := range clients {
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil || n < 0 {
			return q, fmt.Errorf("quota.%s_clients: got %q for client %q: use a number of bytes a second such as 1048576, or 0 for no limit", key, text, id)
		}
		q.Clients[id] = n
	}
	return q, nil
}

// quotas reads both.
func (c QuotaConfig) quotas() (produce, fetch kafka.Quota, err error) {
	if produce, err = quota("produce", c.ProduceBytesPerSecond, c.ProduceClients); err != nil {
		return produce, fetch, err
	}
	fetch, err = quota("fetch", c.FetchBytesPerSecond, c.FetchClients)
	return produce, fetch, err
}

// DefaultConfig returns a configuration that serves on 127.0.0.1:9092. DataDir and ID are still to be set.
func DefaultConfig() Config {
	return Config{
		Listen:                 "127.0.0.1:9092",
		Loops:                  2,
		MaxRequestBytes:        100 << 20,
		MaxRequestMemory:       100 << 20,
		MaxUnpackedBytes:       unpack.DefaultLimit,
		MaxConnections:         10000,
		MaxInFlightRequests:    100,
		MaxInFlightBytes:       32 << 20,
		MaxFetchBytes:          55 << 20,
		MaxFetchWait:           time.Minute,
		IdleTimeout:            10 * time.Minute,
		ReceiveTimeout:         30 * time.Second,
		RequestTimeout:         30 * time.Second,
		AutoCreatePartitions:   4,
		RetentionCheckInterval: time.Minute,
		ProducerIDExpiration:   24 * time.Hour,
		CompactMemory:          32 << 20,
		CompactBytesPerSecond:  32 << 20,
		ScrubInterval:          7 * 24 * time.Hour,
		ScrubBytesPerSecond:    8 << 20,
		OpenParallelism:        8,
	}
}

// perIP is how many connections one address may have.
func (c Config) perIP() int {
	if c.MaxConnectionsPerIP == 0 {
		return max(1, c.MaxConnections/2)
	}
	return c.MaxConnectionsPerIP
}

// Validate returns an error that names the yaml key and the right form of the first bad value.
func (c Config) Validate() error {
	if c.ID < 0 {
		return fmt.Errorf("id: got %d: use a broker id of 0 or more", c.ID)
	}
	if err := checkAddress("listen", c.Listen, true); err != nil {
		return err
	}
	if c.Advertise != "" {
		if err := checkAddress("advertise", c.Advertise, false); err != nil {
			return err
		}
	}
	for _, d := range c.LogDirs {
		if !filepath.IsAbs(d) {
			return fmt.Errorf("log_dirs: got %q: use absolute paths such as /disk1/sidestream", d)
		}
	}
	for _, r := range []struct {
		key           string
		got, min, max int64
	}{
		{"loops", int64(c.Loops), 1, 64},
		{"max_request_bytes", c.MaxRequestBytes, 1 << 10, 1<<31 - 1},
		{"max_request_memory", c.MaxRequestMemory, c.MaxRequestBytes, 1 << 62},
		{"max_unpacked_bytes", c.MaxUnpackedBytes, 64 << 10, 1<<31 - 1},
		{"max_connections", int64(c.MaxConnections), 1, 1 << 31},
		{"max_connections_per_ip", int64(c.MaxConnectionsPerIP), 0, 1 << 31},
		{"max_in_flight_requests", int64(c.MaxInFlightRequests), 1, 10000},
		{"max_in_flight_bytes", c.MaxInFlightBytes, 1 << 10, 1 << 62},
		{"max_fetch_bytes", c.MaxFetchBytes, 1 << 10, 1<<31 - 1},
		{"auto_create_partitions", int64(c.AutoCreatePartitions), 1, 10000},
		{"compact_memory", c.CompactMemory, 64 << 10, 1 << 62},
		{"compact_bytes_per_second", c.CompactBytesPerSecond, 0, 1 << 62},
		{"scrub_bytes_per_second", c.ScrubBytesPerSecond, 1 << 10, 1 << 62},
		{"open_parallelism", int64(c.OpenParallelism), 1, 256},
	} {
		if r.got < r.min || r.got > r.max {
			return fmt.Errorf("%s: got %d: use a number from %d to %d", r.key, r.got, r.min, r.max)
		}
	}
	if _, _, err := c.Quota.quotas(); err != nil {
		return err
	}
	if c.ScrubInterval != 0 && c.ScrubInterval < time.Second {
		return fmt.Errorf("scrub_interval: got %q: use a duration of at least 1s such as 168h, or 0 for never", c.ScrubInterval)
	}
	if d := c.ProducerIDExpiration; d < time.Second || d.Milliseconds() > math.MaxInt32 { // Kafka's is an INT of ms
		return fmt.Errorf("producer_id_expiration: got %q: use a duration from 1s to 596h such as 24h", d)
	}
	for _, r := range []struct {
		key      string
		got, min time.Duration
	}{
		{"max_fetch_wait", c.MaxFetchWait, time.Nanosecond},
		{"idle_timeout", c.IdleTimeout, time.Second},
		{"receive_timeout", c.ReceiveTimeout, time.Second},
		{"request_timeout", c.RequestTimeout, time.Nanosecond},
		{"retention_check_interval", c.RetentionCheckInterval, time.Second},
	} {
		if r.got < r.min {
			return fmt.Errorf("%s: got %q: use a duration of at least %s, such as 30s", r.key, r.got, r.min)
		}
	}
	return nil
}

func checkAddress(key, addr string, zeroPort bool) error {
	host, port, err := net.SplitHostPort(addr)
	if err != nil {
		return fmt.Errorf("%s: got %q: use host:port such as 127.0.0.1:9092", key, addr)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || (n == 0 && !zeroPort) {
		return fmt.Errorf("%s: got port %q: use a port number such as 9092", key, port)
	}
	if host == "" && !zeroPort {
		return fmt.Errorf("%s: got %q: name the host that clients connect to, such as broker1.example:9092", key, addr)
	}
	return nil
}
