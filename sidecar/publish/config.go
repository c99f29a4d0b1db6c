package publish

import (
	"fmt"
	"time"
)

// Config is how events are published.
type Config struct {
	Timeout         time.Duration     `yaml:"timeout" help:"How long a publish waits for the brokers before it answers 504, unless the request says ?timeout; 10ms to max_timeout."`
	MaxTimeout      time.Duration     `yaml:"max_timeout" help:"Longest ?timeout that a request may ask for, up to 10m."`
	MaxMessageBytes int               `yaml:"max_message_bytes" help:"Largest message in bytes, with its key and headers; 1 to 1 GiB. Brokers have a limit of their own (max.message.bytes)."`
	BatchRecords    int               `yaml:"batch_records" help:"Most messages in one request of the batch API, 1 to 10000000; more are answered 413. Each costs some hundred bytes of memory beside its own."`
	Linger          time.Duration     `yaml:"linger" help:"How long a message may wait for others that go along in its batch, 0s to 1s. With 0s batches form while earlier ones fly, which is enough for most; more makes them larger and each answer later."`
	BatchBytes      int               `yaml:"batch_bytes" help:"Largest record batch in bytes sent to a partition. A topic's max.message.bytes counts where it is less; where the brokers do not tell it, Kafka's default of 1048588 does."`
	BufferBytes     int64             `yaml:"buffer_bytes" help:"Most bytes of messages on their way to the brokers; further ones wait for room. At least max_message_bytes."`
	BufferRecords   int64             `yaml:"buffer_records" help:"Most messages on their way to the brokers; further ones wait for room."`
	Compression     string            `yaml:"compression" help:"none, gzip, snappy, lz4 or zstd: how batches are compressed on their way to the brokers and on their disks. gzip:1 to gzip:9, lz4:1 to lz4:9 and zstd:1 to zstd:22 choose a level."`
	Topics          map[string]string `yaml:"topics" live:"true" help:"What holds for single topics, by name, as words with a space between them: key_field=F takes the key of a message without one from its value's field F, or from what the JSON pointer F names; compression=C is a compression of the topic's own, as in orders: \"key_field=/user/id compression=zstd:9\"."`
}

// DefaultConfig is safe and unlimited.
func DefaultConfig() Config {
	return Config{
		Timeout:         10 * time.Second,
		MaxTimeout:      5 * time.Minute,
		MaxMessageBytes: 1 << 20,
		BatchRecords:    100_000,
		BatchBytes:      1<<20 + 64<<10, // the default max.message.bytes of our brokers: a message of 1 MiB and what goes around it
		BufferBytes:     64 << 20,
		BufferRecords:   100_000,
		Compression:     "none",
	}
}

// Validate says which field is wrong and what would be right.
func (c Config) Validate() error {
	if c.MaxTimeout < 10*time.Millisecond || c.MaxTimeout > 10*time.Minute {
		return fmt.Errorf("max_timeout: got %q: use a duration from 10ms to 10m", c.MaxTimeout)
	}
	if c.Timeout < 10*time.Millisecond || c.Timeout > c.MaxTimeout {
		return fmt.Errorf("timeout: got %q: use a duration from 10ms to max_timeout (%s)", c.Timeout, c.MaxTimeout)
	}
	if c.MaxMessageBytes < 1 || c.MaxMessageBytes > 1<<30 {
		return fmt.Errorf("max_message_bytes: got %d: use 1 to %d", c.MaxMessageBytes, 1<<30)
	}
	if c.Linger < 0 || c.Linger > time.Second {
		return fmt.Errorf("linger: got %q: use a duration from 0s to 1s", c.Linger)
	}
	if c.BatchRecords < 1 || c.BatchRecords > 10_000_000 {
		return fmt.Errorf("batch_records: got %d: use 1 to 10000000", c.BatchRecords)
	}
	if c.BatchBytes < 1024 || c.BatchBytes > 1<<30 {
		return fmt.Errorf("batch_bytes: got %d: use 1024 to %d", c.BatchBytes, 1<<30)
	}
	if c.BufferBytes < int64(c.MaxMessageBytes) {
		return fmt.Errorf("buffer_bytes: got %d: use at least max_message_bytes (%d)", c.BufferBytes, c.MaxMessageBytes)
	}
	if c.BufferRecords < 1 || c.BufferRecords > 100_000_000 {
		return fmt.Errorf("buffer_records: got %d: use 1 to 100000000", c.BufferRecords)
	}
	_, err := newSettings(c)
	return err
}
