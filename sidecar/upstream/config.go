package upstream

import (
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"
	"time"

	"sidestream/broker/record/unpack"
	"sidestream/discovery"
)

// Config says which Kafka-compatible cluster the sidecar speaks to and how.
type Config struct {
	Service   string   `yaml:"service" help:"Name of the Consul service whose instances are the brokers; ignored when bootstrap is given."`
	Bootstrap []string `yaml:"bootstrap" help:"List of host:port of brokers to start from, instead of a Consul service; empty means the service."`
	ClientID  string   `yaml:"client_id" help:"Client id sent to the brokers, for their logs and quotas."`

	TLS  TLSConfig  `yaml:"tls"`
	SASL SASLConfig `yaml:"sasl"`

	DialTimeout    time.Duration `yaml:"dial_timeout" help:"Longest time to open a connection to a broker, 100ms to 1m; short, so that an absent broker is passed over soon."`
	RequestTimeout time.Duration `yaml:"request_timeout" help:"Longest time for one metadata or admin request with its retries, 500ms to 5m."`
	MetadataAge    time.Duration `yaml:"metadata_age" help:"How long a topic's partitions and leaders are served from memory, 50ms to 1m; new partitions and leaders are seen no later than this."`

	MaxUnpackedBytes int64 `yaml:"max_unpacked_bytes" help:"Bytes of memory that a batch of records may take when it is unpacked, with 256 for each record and 64 for each header of one, 1 MiB to 2 GiB; 64 MiB by default, as at Sidestream's brokers. A batch over it is not delivered: it is oversized, as a message over consume.max_message_bytes is."`
	UnpackMemory     int64 `yaml:"unpack_memory" help:"Bytes of memory that all batches may take which are being unpacked, at least 2 times max_unpacked_bytes; 128 MiB by default. It is counted before it is taken, and others wait."`
}

// TLSConfig turns on TLS to the brokers.
type TLSConfig struct {
	Enabled    bool   `yaml:"enabled" help:"Speak TLS to the brokers."`
	CAFile     string `yaml:"ca_file" help:"PEM file of the authorities that sign the brokers' certificates; empty means the system's."`
	CertFile   string `yaml:"cert_file" help:"PEM file of this client's certificate, for brokers that ask for one; goes with key_file."`
	KeyFile    string `yaml:"key_file" help:"PEM file of this client's private key; goes with cert_file."`
	ServerName string `yaml:"server_name" help:"Name to expect in the brokers' certificates; empty means the host dialled."`
	Insecure   bool   `yaml:"insecure_skip_verify" help:"Accept any certificate; for tests only, since it allows anyone in between to read and write."`
}

// SASLConfig is how to log in to the brokers.
type SASLConfig struct {
	Mechanism    string `yaml:"mechanism" help:"plain, scram-sha-256 or scram-sha-512; empty means no login."`
	User         string `yaml:"user" help:"User name for the login."`
	Password     string `yaml:"password" help:"Password for the login; prefer password_file or the environment."`
	PasswordFile string `yaml:"password_file" help:"File whose first line is the password."`
}

// DefaultConfig is the configuration of a sidecar beside our own brokers.
func DefaultConfig() Config {
	return Config{
		Service:        discovery.ServiceBroker,
		ClientID:       "sidestream-sidecar",
		DialTimeout:    2 * time.Second,
		RequestTimeout: 5 * time.Second,
		MetadataAge:    2 * time.Second,

		MaxUnpackedBytes: unpack.DefaultLimit,
		UnpackMemory:     2 * unpack.DefaultLimit,
	}
}

// Validate says which field is wrong and what would be right.
func (c Config) Validate() error {
	if c.Service == "" && len(c.Bootstrap) == 0 {
		return fmt.Errorf(`service: got "": name a Consul service such as %q, or give bootstrap a list of host:port`, discovery.ServiceBroker)
	}
	for _, b := range c.Bootstrap {
		if err := checkHostPort(b); err != nil {
			return fmt.Errorf("bootstrap: got %q: %w", b, err)
		}
	}
	for _, d := range []struct {
		name     string
		d        time.Duration
		min, max time.Duration
	}{
		{"dial_timeout", c.DialTimeout, 100 * time.Millisecond, time.Minute},
		{"request_timeout", c.RequestTimeout, 500 * time.Millisecond, 5 * time.Minute},
		{"metadata_age", c.MetadataAge, 50 * time.Millisecond, time.Minute},
	} {
		if d.d < d.min || d.d > d.max {
			return fmt.Errorf("%s: got %q: use a duration from %s to %s", d.name, d.d, d.min, d.max)
		}
	}
	if c.MaxUnpackedBytes < 1<<20 || c.MaxUnpackedBytes > 1<<31-1 {
		return fmt.Errorf("max_unpacked_bytes: got %d: use a number of bytes from %d to %d", c.MaxUnpackedBytes, 1<<20, 1<<31-1)
	}
	if c.UnpackMemory < 2*c.MaxUnpackedBytes {
		return fmt.Errorf("unpack_memory: got %d: use at least 2 times max_unpacked_bytes (%d)", c.UnpackMemory, 2*c.MaxUnpackedBytes)
	}
	if (c.TLS.CertFile == "") != (c.TLS.KeyFile == "") {
		return fmt.Errorf("tls.cert_file, tls.key_file: only one of them is given: give both or none")
	}
	if !c.TLS.Enabled && (c.TLS.CAFile != "" || c.TLS.CertFile != "" || c.TLS.ServerName != "" || c.TLS.Insecure) {
		return fmt.Errorf("tls.enabled: got false with other tls settings: set it to true or remove them")
	}
	switch c.SASL.Mechanism {
	case "":
		if c.SASL.User != "" || c.SASL.Password != "" || c.SASL.PasswordFile != "" {
			return fmt.Errorf(`sasl.mechanism: got "" with a user or password: use plain, scram-sha-256 or scram-sha-512`)
		}
	case "plain", "scram-sha-256", "scram-sha-512":
		if c.SASL.User == "" {
			return fmt.Errorf("sasl.user: is empty: give the user name for %s", c.SASL.Mechanism)
		}
		if (c.SASL.Password == "") == (c.SASL.PasswordFile == "") {
			return fmt.Errorf("sasl.password, sasl.password_file: give exactly one of them")
		}
	default:
		return fmt.Errorf("sasl.mechanism: got %q: use plain, scram-sha-256 or scram-sha-512", c.SASL.Mechanism)
	}
	return nil
}

// password is the configured password or the first line of its file.
func (c SASLConfig) password() (string, error) {
	if c.PasswordFile == "" {
		return c.Password, nil
	}
	b, err := os.ReadFile(c.PasswordFile)
	if err != nil {
		return "", fmt.Errorf("sasl.password_file: %w", err)
	}
	line, _, _ := strings.Cut(string(b), "\n")
	return strings.TrimSuffix(line, "\r"), nil
}

func checkHostPort(s string) error {
	host, port, err := net.SplitHostPort(s)
	if err != nil || host == "" {
		return fmt.Errorf("use host:port, such as 127.0.0.1:9092")
	}
	if n, err := strconv.Atoi(port); err != nil || n < 1 || n > 65535 {
		return fmt.Errorf("the port must be a number from 1 to 65535")
	}
	return nil
}
