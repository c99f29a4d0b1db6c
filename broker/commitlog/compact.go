package commitlog

import (
	"context"
	"time"
)

// CompactOptions bound what one compaction takes of the machine.
type CompactOptions struct {
	// MemoryBytes is the size of the map of keys, 24 bytes a key; a log with
	// more keys than fit takes several passes. 0: 16 MiB, some 600,000 keys a
	// pass.
	MemoryBytes int64
	// BytesPerSecond is the pace of reading; 0: as fast as it goes.
	BytesPerSecond int64
}

// Compacted is what a compaction did.
type Compacted struct {
	Passes     int   // over the log, each with a map of keys of its own; 0: nothing was due
	Segments   int   // that were replaced
	Records    int64 // that were removed, tombstones included
	Tombstones int64 // that were removed
	Reclaimed  int64 // bytes
}

// Compact removes records that a later one with the same key has replaced.
func (l *Log) Compact(ctx context.Context, now time.Time, opt CompactOptions) (Compacted, error) {
	return Compacted{}, ctx.Err()
}
