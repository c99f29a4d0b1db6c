package commitlog

import (
	"fmt"
	"math"
	"time"
)

// Config is how one partition's log is kept. It may be changed while the log is
// open, see [Log.SetConfig].
type Config struct {
	SegmentBytes       int64         `yaml:"segment_bytes" help:"Bytes at which a new segment file is begun, 1024 to 2147483647; a roll costs one fsync, a large segment makes retention coarse."`
	SegmentAge         time.Duration `yaml:"segment_age" help:"Age of its first append at which a new segment is begun by the next append, so that retention by time can take the old one; positive."`
	Retention          time.Duration `yaml:"retention" help:"How long a segment is kept after its last append, or its newest record where that is later and not still to come; -1 keeps for ever."`
	RetentionBytes     int64         `yaml:"retention_bytes" help:"Bytes of a partition above which its oldest segments are removed; -1 for no limit."`
	IndexInterval      int           `yaml:"index_interval" help:"Bytes of log between two index entries, at least 1; smaller finds offsets with less reading, at the price of larger indexes."`
	MaxBatchBytes      int           `yaml:"max_batch_bytes" help:"Largest record batch that is taken, in bytes, 62 to 2147483647."`
	CheckpointBytes    int64         `yaml:"checkpoint_bytes" help:"Flushed bytes after which the recovery point is moved, at least 1; bounds what a start after a crash must read for each partition."`
	ProducerExpiration time.Duration `yaml:"producer_expiration" help:"How long the sequence numbers of a silent idempotent producer are remembered; positive."`

	Cleanup           string        `yaml:"cleanup" help:"What becomes of old records: delete (by retention), compact (the last one of each key stays), or compact,delete (both)."`
	MinCompactionLag  time.Duration `yaml:"min_compaction_lag" help:"How long after its last append a segment is not compacted; 0 for no wait."`
	MaxCompactionLag  time.Duration `yaml:"max_compaction_lag" help:"How long a record may wait for compaction: past it the active segment is closed and the dirty ratio does not count; 0 for no limit."`
	DeleteRetention   time.Duration `yaml:"delete_retention" help:"How long a tombstone stays after the compaction that first met it, so that readers who began before see it; 0 or more."`
	MinCleanableRatio float64       `yaml:"min_cleanable_ratio" help:"Share of the closed segments' bytes that must be new before they are compacted, 0 to 1; smaller saves space, at the price of writing more."`
}

// The values of Config.Cleanup (Kafka's cleanup.policy).
const (
	CleanupDelete  = "delete"
	CleanupCompact = "compact"
	CleanupBoth    = "compact,delete"
)

// Compacted tells whether the log keeps the last record of each key. Then every
// record must have a key, see [record.CheckKeys]; the log itself does not look.
func (c Config) Compacted() bool { return c.Cleanup == CleanupCompact || c.Cleanup == CleanupBoth }

// deletes tells whether segments go by age and by size.
func (c Config) deletes() bool { return c.Cleanup != CleanupCompact }

// maxSegmentBytes is the largest position that an index entry of four bytes can
// hold.
const maxSegmentBytes = math.MaxInt32

// minBatchBytes is a header and one byte.
const minBatchBytes = 62

// DefaultConfig keeps seven days in segments of 1 GiB, as Kafka does.
func DefaultConfig() Config {
	return Config{
		SegmentBytes:       1 << 30,
		SegmentAge:         7 * 24 * time.Hour,
		Retention:          7 * 24 * time.Hour,
		RetentionBytes:     -1,
		IndexInterval:      4096,
		MaxBatchBytes:      1<<20 + 64<<10, // a message of 1 MiB with its batch's header; Kafka's default (1 MiB + 12) has no room for that
		CheckpointBytes:    64 << 20,       // some ten syncs each, so a few a second at full speed
		ProducerExpiration: 24 * time.Hour,
		Cleanup:            CleanupDelete,
		DeleteRetention:    24 * time.Hour,
		MinCleanableRatio:  0.5,
	}
}

// Validate names the first key with a bad value and the right form.
func (c Config) Validate() error {
	switch {
	case c.SegmentBytes < 1024 || c.SegmentBytes > maxSegmentBytes:
		return fmt.Errorf("segment_bytes: got %d: use 1024 to %d", c.SegmentBytes, maxSegmentBytes)
	case c.SegmentAge <= 0:
		return fmt.Errorf("segment_age: got %q: use a positive duration such as 168h", c.SegmentAge)
	case c.Retention <= 0 && c.Retention != -1:
		return fmt.Errorf("retention: got %q: use a positive duration such as 168h, or -1 to keep for ever", c.Retention)
	case c.RetentionBytes < -1:
		return fmt.Errorf("retention_bytes: got %d: use 0 or more, or -1 for no limit", c.RetentionBytes)
	case c.IndexInterval < 1:
		return fmt.Errorf("index_interval: got %d: use at least 1, such as 4096", c.IndexInterval)
	case c.MaxBatchBytes < minBatchBytes || c.MaxBatchBytes > maxSegmentBytes:
		return fmt.Errorf("max_batch_bytes: got %d: use %d to %d", c.MaxBatchBytes, minBatchBytes, maxSegmentBytes)
	case c.CheckpointBytes < 1:
		return fmt.Errorf("checkpoint_bytes: got %d: use at least 1, such as 67108864", c.CheckpointBytes)
	case c.ProducerExpiration <= 0:
		return fmt.Errorf("producer_expiration: got %q: use a positive duration such as 24h", c.ProducerExpiration)
	}
	return c.validateCleanup()
}

func (c Config) validateCleanup() error {
	switch {
	case c.Cleanup != CleanupDelete && !c.Compacted():
		return fmt.Errorf("cleanup: got %q: use %s, %s or %s", c.Cleanup, CleanupDelete, CleanupCompact, CleanupBoth)
	case c.MinCompactionLag < 0:
		return fmt.Errorf("min_compaction_lag: got %q: use a duration such as 1h, or 0 for no wait", c.MinCompactionLag)
	case c.MaxCompactionLag < 0:
		return fmt.Errorf("max_compaction_lag: got %q: use a duration such as 24h, or 0 for no limit", c.MaxCompactionLag)
	case c.MaxCompactionLag > 0 && c.MaxCompactionLag < c.MinCompactionLag:
		return fmt.Errorf("max_compaction_lag: got %q: use at least min_compaction_lag, %s", c.MaxCompactionLag, c.MinCompactionLag)
	case c.DeleteRetention < 0:
		return fmt.Errorf("delete_retention: got %q: use a duration such as 24h, or 0", c.DeleteRetention)
	case !(c.MinCleanableRatio >= 0 && c.MinCleanableRatio <= 1): // a NaN, too
		return fmt.Errorf("min_cleanable_ratio: got %v: use 0 to 1, such as 0.5", c.MinCleanableRatio)
	}
	return nil
}
