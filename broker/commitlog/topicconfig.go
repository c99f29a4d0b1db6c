package commitlog

import (
	"errors"
	"fmt"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
	"time"
)

// FlushPolicy says when appended batches are synced to the disk. The log itself
// syncs when [Log.Flush] is called; whoever appends follows the policy.
type FlushPolicy struct {
	// Messages is how many records may be unsynced: 1, the default, syncs
	// every append before it is acknowledged; math.MaxInt64 leaves syncing to
	// the operating system, as Kafka's default does.
	Messages int64
	// Interval is how long a record may be unsynced; 0 is no limit.
	Interval time.Duration
}

// EveryAppend tells whether an append must be synced before it is acknowledged.
func (p FlushPolicy) EveryAppend() bool { return p.Messages <= 1 }

// never is how Kafka writes a time that does not come.
const never = "9223372036854775807"

// topicKey parses the value of one of Kafka's topic configs.
type topicKey func(value string, c *Config, f *FlushPolicy) error

// topicKeys are Kafka's topic configs that are understood (Kafka documentation,
// "Topic configs"). Keys with one allowed value are here so that tools which
// always send them are served, and any other value is refused rather than
// ignored; so are those of fixedConfigs.
var topicKeys = withFixed(map[string]topicKey{
	"segment.bytes": func(v string, c *Config, _ *FlushPolicy) (err error) {
		c.SegmentBytes, err = integer(v, 1024, maxSegmentBytes)
		return err
	},
	"segment.ms": func(v string, c *Config, _ *FlushPolicy) (err error) {
		c.SegmentAge, err = millis(v, 1)
		return err
	},
	"retention.ms": func(v string, c *Config, _ *FlushPolicy) (err error) {
		if v == "-1" {
			c.Retention = -1
			return nil
		}
		c.Retention, err = millis(v, 1)
		return err
	},
	"retention.bytes": func(v string, c *Config, _ *FlushPolicy) (err error) {
		c.RetentionBytes, err = integer(v, -1, math.MaxInt64)
		return err
	},
	"max.message.bytes": func(v string, c *Config, _ *FlushPolicy) error {
		n, err := integer(v, minBatchBytes, maxSegmentBytes)
		c.MaxBatchBytes = int(n)
		return err
	},
	"index.interval.bytes": func(v string, c *Config, _ *FlushPolicy) error {
		n, err := integer(v, 1, math.MaxInt32)
		c.IndexInterval = int(n)
		return err
	},
	"flush.messages": func(v string, _ *Config, f *FlushPolicy) (err error) {
		f.Messages, err = integer(v, 1, math.MaxInt64)
		return err
	},
	"flush.ms": func(v string, _ *Config, f *FlushPolicy) (err error) {
		if v == never {
			f.Interval = 0
			return nil
		}
		f.Interval, err = millis(v, 1)
		return err
	},
	"min.insync.replicas": func(v string, _ *Config, _ *FlushPolicy) error {
		_, err := integer(v, 1, math.MaxInt32) // the broker's concern; its form is checked here
		return err
	},
	"cleanup.policy": func(v string, c *Config, _ *FlushPolicy) (err error) {
		c.Cleanup, err = cleanup(v)
		return err
	},
	"min.compaction.lag.ms": func(v string, c *Config, _ *FlushPolicy) (err error) {
		c.MinCompactionLag, err = millis(v, 0)
		return err
	},
	"max.compaction.lag.ms": func(v string, c *Config, _ *FlushPolicy) (err error) {
		if v == never {
			c.MaxCompactionLag = 0
			return nil
		}
		c.MaxCompactionLag, err = millis(v, 1)
		return err
	},
	"delete.retention.ms": func(v string, c *Config, _ *FlushPolicy) (err error) {
		c.DeleteRetention, err = millis(v, 0)
		return err
	},
	"min.cleanable.dirty.ratio": func(v string, c *Config, _ *FlushPolicy) (err error) {
		c.MinCleanableRatio, err = strconv.ParseFloat(v, 64)
		if err != nil || !(c.MinCleanableRatio >= 0 && c.MinCleanableRatio <= 1) {
			return errors.New("use a number from 0 to 1, such as 0.5")
		}
		return nil
	},
	"compression.type":               only("producer", "batches are stored as the producer sent them"),
	"message.timestamp.type":         only("CreateTime", "batches are stored as the producer sent them"),
	"unclean.leader.election.enable": only("false", "an unclean election loses acknowledged records"),
})

// maxConfigValue bounds the bytes of a config's value. Zeros, blanks and
// repetitions make any value as long as one likes, it is shown to everybody who
// asks, and older versions of the protocol have two bytes for its length.
const maxConfigValue = 1000

// TopicKeys lists the names of the topic configs that [ConfigFromTopic] takes.
func TopicKeys() []string { return slices.Sorted(maps.Keys(topicKeys)) }

// ConfigFromTopic reads Kafka's topic configs over the defaults. An unknown name
// or a bad value is an error that names it and the right form.
func ConfigFromTopic(configs map[string]string) (Config, FlushPolicy, error) {
	c, f := DefaultConfig(), FlushPolicy{Messages: 1}
	for _, name := range slices.Sorted(maps.Keys(configs)) {
		set, ok := topicKeys[name]
		if !ok {
			return Config{}, FlushPolicy{}, fmt.Errorf("unknown topic config %q: known are %s",
				name, strings.Join(TopicKeys(), ", "))
		}
		if n := len(configs[name]); n > maxConfigValue {
			return Config{}, FlushPolicy{}, fmt.Errorf("%s: a value of %d bytes: at most %d are taken", name, n, maxConfigValue)
		}
		if err := set(configs[name], &c, &f); err != nil {
			return Config{}, FlushPolicy{}, fmt.Errorf("%s: got %q: %w", name, configs[name], err)
		}
	}
	return c, f, c.Validate()
}

// cleanup reads the list of cleanup.policy, in any order.
func cleanup(value string) (string, error) {
	var compact, del bool
	for _, word := range strings.Split(value, ",") {
		switch strings.TrimSpace(word) {
		case CleanupCompact:
			compact = true
		case CleanupDelete:
			del = true
		default:
			return "", fmt.Errorf("use %s, %s or %s", CleanupDelete, CleanupCompact, CleanupBoth)
		}
	}
	switch {
	case compact && del:
		return CleanupBoth, nil
	case compact:
		return CleanupCompact, nil
	}
	return CleanupDelete, nil
}

func integer(value string, low, high int64) (int64, error) {
	n, err := strconv.ParseInt(value, 10, 64)
	if err != nil || n < low || n > high {
		return 0, fmt.Errorf("use a whole number from %d to %d", low, high)
	}
	return n, nil
}

// millis reads milliseconds. What no time.Duration can hold (292 years) is taken
// as the longest there is, since tools write very large numbers for "never".
func millis(value string, low int64) (time.Duration, error) {
	n, err := integer(value, low, math.MaxInt64)
	if err != nil {
		return 0, fmt.Errorf("use milliseconds, at least %d", low)
	}
	if n > math.MaxInt64/int64(time.Millisecond) {
		return math.MaxInt64, nil
	}
	return time.Duration(n) * time.Millisecond, nil
}

func only(value, why string) topicKey {
	return func(v string, _ *Config, _ *FlushPolicy) error {
		if v != value {
			return fmt.Errorf("only %q is supported: %s", value, why)
		}
		return nil
	}
}
