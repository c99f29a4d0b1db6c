package consume

import (
	"fmt"
	"time"
)

// Config bounds what consuming may take of time and memory.
type Config struct {
	Lease       time.Duration `yaml:"lease" help:"Lease of a pulled message where neither the group nor the pull names one, 100ms to 12h; 30s suits handlers of a few seconds."`
	PullMax     int           `yaml:"pull_max" help:"Messages of one pull where the pull names no max, 1 to 10000."`
	MaxPullWait time.Duration `yaml:"max_pull_wait" help:"Longest time that a pull may wait for messages, 0s to 1h; a longer wait is cut to it."`
	PullBytes   int           `yaml:"pull_bytes" help:"Bytes of keys, values and headers after which a pull takes no further message, 1024 to 1073741824; the first message is given whatever its size."`

	LeaveAfter  time.Duration `yaml:"leave_after" help:"Time without a pull and without a lease after which this sidecar leaves a group, 100ms to 24h; 30s outlasts the pause between two runs of a cron-like consumer's loop."`
	ReleaseWait time.Duration `yaml:"release_wait" help:"Longest time that a partition on its way to another sidecar waits for the acks of its leases, 0s to 5m."`
	SeekWait    time.Duration `yaml:"seek_wait" help:"Longest time that a seek waits until the owners of a live group read from the target, 0s to 1m."`
	UnprovenMax time.Duration `yaml:"unproven_max" help:"Time without the coordination store after which an owner stops handing out, 1s to 168h; 1h outlasts most outages without two owners for ever."`
	StrictAfter time.Duration `yaml:"strict_after" help:"Time since the last accepted beat after which a group with exclusive=strict stops handing out, 1s to 1m."`
	Recheck     time.Duration `yaml:"recheck" help:"Interval at which members, topics and the group's settings are looked at again besides being watched, 50ms to 5m."`

	FetchWait           time.Duration `yaml:"fetch_wait" help:"Longest time that the brokers hold a fetch which has nothing to return, 1ms to 5s."`
	FetchBytes          int           `yaml:"fetch_bytes" help:"Bytes that one fetch from a broker asks for, 65536 to 67108864."`
	PartitionFetchBytes int           `yaml:"partition_fetch_bytes" help:"Bytes that one fetch asks for of each partition, 4096 to 67108864."`
	PrefetchCount       int           `yaml:"prefetch_count" help:"Messages of one partition that are held in memory until they are acknowledged, 1 to 100000."`
	PrefetchBytes       int           `yaml:"prefetch_bytes" help:"Bytes of one partition that are held in memory until they are acknowledged, 4096 to 1073741824; a batch larger than that is still read whole."`
	FullWait            time.Duration `yaml:"full_wait" help:"Time for which, with order=key, a message that was put off may keep the other keys of its partition waiting because the messages behind it fill the prefetch, 1s to 24h; then it becomes a dead letter."`
	ProcessBytes        int64         `yaml:"process_bytes" help:"Bytes of all partitions that are held in memory, at least prefetch_bytes; the last quarter is for partitions that hold little, so that slow groups leave room for others. Each broker's answer under way, and one batch of each partition, may come on top."`

	MaxMessageBytes int `yaml:"max_message_bytes" help:"Bytes of a message (its key, value and headers) above which it is not delivered but treated as one that nobody can read, 1024 to 1073741824; applications get a message in one piece, so it has to fit into their memory and ours."`

	DamageWait         time.Duration `yaml:"damage_wait" help:"Time for which damage that the brokers report, without saying where it ends, is tried again before its end is looked for and it is passed over as the group says, 100ms to 24h; 30s lets another broker take over, or a disk come back."`
	CreateDeadTopics   bool          `yaml:"create_dead_topics" help:"Make a topic of dead letters that is not there, when its first letter is written; without it, and where the brokers do not allow it, messages wait for the topic."`
	DeadRetention      time.Duration `yaml:"dead_retention" help:"Retention of a topic of dead letters that this sidecar makes, 0s to 87600h; 336h leaves two weeks to look into it, 0s is the brokers' default."`
	IdleAfter          time.Duration `yaml:"idle_after" help:"Time without a member after which a group is removed with its settings and positions, 1m to 87600h; 168h (7 days) outlasts a weekly job."`
	EphemeralAfter     time.Duration `yaml:"ephemeral_after" help:"The same of a group that was made ephemeral, 1s to 168h."`
	GroupSweep         time.Duration `yaml:"group_sweep" help:"Interval at which one sidecar of the cluster looks for groups to remove, and counts their partitions, 100ms to 1h; each look reads all groups."`
	MaxGroupPartitions int           `yaml:"max_group_partitions" help:"Partitions that all groups of the cluster may consume together, each counted once for every group that does, 1 to 1000000; about 6000 busy ones are what the checkpoints in one coordination store are made for. Set it alike on all sidecars."`

	Parallel int `yaml:"parallel" help:"Partitions that are taken at the same time, and as many that are released, 1 to 256."`
	History  int `yaml:"history" help:"Moves of partitions that a group's history keeps in the coordination store, 1 to 10000; of one plan that moves more only the number is kept, and of all together at most 32 KiB."`
}

// DefaultConfig is a sidecar's default.
func DefaultConfig() Config {
	return Config{
		Lease:       30 * time.Second,
		PullMax:     100,
		MaxPullWait: 5 * time.Minute,
		PullBytes:   8 << 20,

		LeaveAfter:  30 * time.Second,
		ReleaseWait: 5 * time.Second,
		SeekWait:    10 * time.Second,
		UnprovenMax: time.Hour,
		StrictAfter: 3 * time.Second,
		Recheck:     5 * time.Second,

		FetchWait:           500 * time.Millisecond,
		FetchBytes:          8 << 20,
		PartitionFetchBytes: 1 << 20,
		PrefetchCount:       2000,
		PrefetchBytes:       4 << 20,
		FullWait:            time.Minute,
		ProcessBytes:        256 << 20,

		MaxMessageBytes: 64 << 20,

		DamageWait:         30 * time.Second,
		CreateDeadTopics:   true,
		DeadRetention:      14 * 24 * time.Hour,
		IdleAfter:          7 * 24 * time.Hour,
		EphemeralAfter:     10 * time.Minute,
		GroupSweep:         time.Minute,
		MaxGroupPartitions: 10_000,

		Parallel: 16,
		History:  256,
	}
}

// Validate says which field is wrong and what would be right.
func (c Config) Validate() error {
	durations := []struct {
		path     string
		v        time.Duration
		min, max time.Duration
	}{
		{"lease", c.Lease, MinLease, MaxLease},
		{"max_pull_wait", c.MaxPullWait, 0, time.Hour},
		{"leave_after", c.LeaveAfter, 100 * time.Millisecond, 24 * time.Hour},
		{"release_wait", c.ReleaseWait, 0, 5 * time.Minute},
		{"full_wait", c.FullWait, time.Second, 24 * time.Hour},
		{"seek_wait", c.SeekWait, 0, time.Minute},
		{"unproven_max", c.UnprovenMax, time.Second, 168 * time.Hour},
		{"strict_after", c.StrictAfter, time.Second, time.Minute},
		{"recheck", c.Recheck, 50 * time.Millisecond, 5 * time.Minute},
		{"damage_wait", c.DamageWait, 100 * time.Millisecond, 24 * time.Hour},
		{"dead_retention", c.DeadRetention, 0, 10 * 365 * 24 * time.Hour},
		{"idle_after", c.IdleAfter, time.Minute, 87600 * time.Hour},
		{"ephemeral_after", c.EphemeralAfter, time.Second, 168 * time.Hour},
		{"group_sweep", c.GroupSweep, 100 * time.Millisecond, time.Hour},
		{"fetch_wait", c.FetchWait, time.Millisecond, 5 * time.Second},
	}
	for _, d := range durations {
		if d.v < d.min || d.v > d.max {
			return fmt.Errorf("%s: got %q: use a duration from %s to %s", d.path, d.v, d.min, d.max)
		}
	}
	counts := []struct {
		path     string
		v        int
		min, max int
	}{
		{"pull_max", c.PullMax, 1, MaxPull},
		{"pull_bytes", c.PullBytes, 1 << 10, 1 << 30},
		{"fetch_bytes", c.FetchBytes, 64 << 10, 64 << 20},
		{"partition_fetch_bytes", c.PartitionFetchBytes, 4 << 10, 64 << 20},
		{"prefetch_count", c.PrefetchCount, 1, 100_000},
		{"prefetch_bytes", c.PrefetchBytes, 4 << 10, 1 << 30},
		{"max_message_bytes", c.MaxMessageBytes, 1 << 10, 1 << 30},
		{"max_group_partitions", c.MaxGroupPartitions, 1, 1_000_000},
		{"parallel", c.Parallel, 1, 256},
		{"history", c.History, 1, 10_000},
	}
	for _, n := range counts {
		if n.v < n.min || n.v > n.max {
			return fmt.Errorf("%s: got %d: use a number from %d to %d", n.path, n.v, n.min, n.max)
		}
	}
	if c.ProcessBytes < int64(c.PrefetchBytes) {
		return fmt.Errorf("process_bytes: got %d: use at least prefetch_bytes (%d)", c.ProcessBytes, c.PrefetchBytes)
	}
	return nil
}

// Bounds of what a request may ask for.
const (
	MinLease = 100 * time.Millisecond
	MaxLease = 12 * time.Hour
	MaxPull  = 10_000
)
