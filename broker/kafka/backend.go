package kafka

import (
	"context"

	"sidestream/broker/cluster"
	"sidestream/broker/commitlog"
	"sidestream/broker/record"
)

// Backend is what the server asks of the broker behind it. Every method may be called from several goroutines, and
// those without a context never block.
type Backend interface {
	// View is the newest snapshot of the cluster, never nil. It contains at least this broker.
	View() *cluster.View
	// Self is this broker's id.
	Self() int32
	// Partition returns a partition that is led here, else ErrUnknownPartition or ErrNotLeader.
	Partition(topic string, index int32) (Partition, error)
	// ProducerID returns an unused producer id; false when none is at hand without asking the cluster.
	ProducerID() (int64, bool)
	// FetchProducerID returns an unused producer id and asks the cluster for more when needed.
	FetchProducerID(ctx context.Context) (int64, error)
	// CheckTopic returns why a topic cannot have that name or those configs (cluster.ErrInvalidName, ErrInvalidConfig).
	CheckTopic(name string, configs map[string]string) error
	// TopicConfigs returns every config of a topic with its value in force, and whether it was set for that topic.
	TopicConfigs(t *cluster.TopicView) []ConfigEntry
	// BrokerConfigs returns this broker's own settings under Kafka's names.
	BrokerConfigs() []ConfigEntry
	// LogDirs lists the directories that logs are kept in and what is in them.
	LogDirs() []LogDir

	CreateTopic(ctx context.Context, spec cluster.TopicSpec) (cluster.TopicView, error)
	DeleteTopic(ctx context.Context, name string) error
	CreatePartitions(ctx context.Context, name string, count int32, assignment ...[]int32) error
	AlterTopic(ctx context.Context, name string, change func(configs map[string]string) (map[string]string, error)) error

	CommitOffsets(ctx context.Context, group string, offsets map[cluster.PartitionID]cluster.CommittedOffset) error
	CommittedOffsets(ctx context.Context, group string) (map[cluster.PartitionID]cluster.CommittedOffset, error)
	CommittedGroups(ctx context.Context) ([]string, error)
	DropOffsets(ctx context.Context, group string, which []cluster.PartitionID) error
}

// ConfigEntry is one setting as DescribeConfigs shows it.
type ConfigEntry struct {
	Name, Value string
	Default     string // of a topic's config
	Set         bool   // set for this resource, not a default
	Kind        int8   // Kafka's ConfigType: 1 boolean, 2 string, 3 int, 5 long, 7 list
	Doc         string
}

// LogDir is a directory of logs.
type LogDir struct {
	Path                    string
	Err                     error // why it is offline
	TotalBytes, UsableBytes int64 // of its file system; -1 when unknown
	Partitions              []LogDirPartition
}

// LogDirPartition is a partition in a directory.
type LogDirPartition struct {
	Topic     string
	Partition int32
	Bytes     int64
}

// Offsets of a partition at one moment.
type Offsets struct {
	Start         int64 // log start offset
	HighWatermark int64 // consumers read below it
	End           int64 // the next append's offset
}

// Append is one batch to be written.
type Append struct {
	Batch  []byte // exactly one whole batch, already checked; it must not change until Done is called
	Header record.Header
	Acks   int16 // -1 answer when it is durable, 0 or 1 when it is written
	Done   func(Appended)
}

// Appended is what became of an Append.
type Appended struct {
	Base  int64 // offset of the batch's first record
	Start int64 // log start offset
	Err   error
}

// Partition is a partition that this broker leads.
type Partition interface {
	// Append queues the batch and returns; appends of one caller are written in the order of the calls. Done is called
	// exactly once, from another goroutine or before Append returns, and must not block.
	Append(a Append)
	// Err is ErrNotLeader once the partition is no longer led here, else nil.
	Err() error
	// Epoch is the leader epoch under which it is led.
	Epoch() int32
	Offsets() Offsets
	// MaxBatchBytes is the largest batch that may be appended (max.message.bytes).
	MaxBatchBytes() int
	// Read returns whole batches from the one that contains offset on, below the high watermark, at least one if there
	// is any. The caller releases the slice.
	Read(offset int64, maxBytes int) (commitlog.Slice, error)
	// OffsetByTime finds the first record with a timestamp of ts or later; offset -1 when there is none.
	OffsetByTime(ts int64) (offset, timestamp int64, epoch int32, err error)
	// MaxTimestamp finds the record with the highest timestamp; offset -1 when the partition is empty.
	MaxTimestamp() (offset, timestamp int64, epoch int32, err error)
	// EpochAt is the leader epoch of the batch that an offset lies in, -1 when unknown.
	EpochAt(offset int64) int32
	// EpochEnd is the newest leader epoch that is not above the asked one, and the offset after its last record; -1 both
	// when nothing is known of it.
	EpochEnd(epoch int32) (found int32, end int64)
	// DeleteBefore moves the log's start up to the offset, durably.
	DeleteBefore(offset int64) error
	// Watch has wake filled (without blocking) whenever the high watermark moves or the partition stops being led.
	Watch(wake chan<- struct{})
	Unwatch(wake chan<- struct{})
}
