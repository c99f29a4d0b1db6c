package idempotency

import (
	"fmt"
	"time"
)

// Config is how much is remembered of requests with an Idempotency-Key.
type Config struct {
	Window   time.Duration `yaml:"window" help:"How long after its first request an Idempotency-Key is remembered, 1m to 168h; a repeat that comes later is a new request."`
	MaxKeys  int           `yaml:"max_keys" help:"Most keys that are remembered, 1 to 10000000; beyond it the oldest is forgotten for each new one. A key takes about 400 bytes of memory, and of disk."`
	MaxBytes int64         `yaml:"max_bytes" help:"Most bytes of memory for what is remembered, at least 1048576; beyond it the oldest keys are forgotten. Answers to large batches take a few bytes for each message."`
}

// DefaultConfig remembers a day, if there are no more than 100,000 keys in it.
func DefaultConfig() Config {
	return Config{Window: 24 * time.Hour, MaxKeys: 100_000, MaxBytes: 64 << 20}
}

// Validate says which field is wrong and what would be right.
func (c Config) Validate() error {
	if c.Window < time.Minute || c.Window > 7*24*time.Hour {
		return fmt.Errorf("window: got %q: use a duration from 1m to 168h", c.Window)
	}
	if c.MaxKeys < 1 || c.MaxKeys > 10_000_000 {
		return fmt.Errorf("max_keys: got %d: use 1 to 10000000", c.MaxKeys)
	}
	if c.MaxBytes < 1<<20 {
		return fmt.Errorf("max_bytes: got %d: use at least %d", c.MaxBytes, 1<<20)
	}
	return nil
}
