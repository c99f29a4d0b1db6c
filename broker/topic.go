package broker

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"sidestream/broker/cluster"
	"sidestream/broker/commitlog"
	"sidestream/broker/kafka"
)

// maxTopicName is Kafka's limit (Topic.MAX_NAME_LENGTH): a folder name must hold it with a suffix.
const maxTopicName = 249

// checkTopicName holds a name against Kafka's rule. Names become folders, so this is also what keeps paths inside the
// data folder.
func checkTopicName(name string) error {
	bad := func(why string) error {
		return fmt.Errorf("topic name %q %s: use 1 to %d of a-z, A-Z, 0-9, '.', '_' and '-': %w", name, why, maxTopicName, ErrInvalidName)
	}
	switch {
	case name == "":
		return bad("is empty")
	case name == "." || name == "..":
		return bad("is not allowed")
	case len(name) > maxTopicName:
		return bad(fmt.Sprintf("has %d characters", len(name)))
	}
	for _, r := range name {
		if r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r) {
			continue
		}
		return bad(fmt.Sprintf("contains %q", r))
	}
	return nil
}

// topicConfig is a topic config as DescribeConfigs shows it.
type topicConfig struct {
	name  string
	kind  int8 // Kafka's ConfigType
	value string
	doc   string
}

const (
	kindBoolean = 1
	kindString  = 2
	kindInt     = 3
	kindLong    = 5
	kindDouble  = 6
	kindList    = 7
)

// topicDefaults are the values in force where a topic sets none.
func topicDefaults() []topicConfig {
	c := commitlog.DefaultConfig()
	millis := func(d time.Duration) string {
		if d < 0 {
			return "-1"
		}
		return strconv.FormatInt(d.Milliseconds(), 10)
	}
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	list := []topicConfig{
		{"cleanup.policy", kindList, c.Cleanup, "What becomes of old records: delete, compact (the last one of each key stays), or compact,delete."},
		{"compression.type", kindString, "producer", "Batches are stored as the producer sent them."},
		{"delete.retention.ms", kindLong, millis(c.DeleteRetention), "Milliseconds for which a compacted topic keeps a tombstone after it was first met."},
		{"flush.messages", kindLong, "1", "Records after which the log is synced to disk; 1 syncs before every acks=all answer."},
		{"flush.ms", kindLong, "9223372036854775807", "Milliseconds after which the log is synced to disk at the latest."},
		{"index.interval.bytes", kindInt, number(int64(c.IndexInterval)), "Bytes of log between two index entries."},
		{"max.compaction.lag.ms", kindLong, "9223372036854775807", "Milliseconds that a record may wait for compaction."},
		{"max.message.bytes", kindInt, number(int64(c.MaxBatchBytes)), "Largest record batch in bytes."},
		{"message.timestamp.type", kindString, "CreateTime", "Whose clock dates the records."},
		{"min.cleanable.dirty.ratio", kindDouble, strconv.FormatFloat(c.MinCleanableRatio, 'g', -1, 64), "Share of new bytes above which a log is compacted."},
		{"min.compaction.lag.ms", kindLong, millis(c.MinCompactionLag), "Milliseconds that a record stays uncompacted at least."},
		{"min.insync.replicas", kindInt, "1", "Replicas that must have a batch before acks=all is answered."},
		{"retention.bytes", kindLong, number(c.RetentionBytes), "Bytes of a partition above which its oldest segments go; -1 for no limit."},
		{"retention.ms", kindLong, millis(c.Retention), "Milliseconds for which a segment is kept after its newest record; -1 for ever."},
		{"segment.bytes", kindInt, number(c.SegmentBytes), "Bytes at which a new segment is begun."},
		{"segment.ms", kindLong, millis(c.SegmentAge), "Milliseconds after which a new segment is begun."},
		{"unclean.leader.election.enable", kindBoolean, "false", "Whether a replica that lacks records may lead."},
	}
	for _, c := range commitlog.FixedConfigs() {
		list = append(list, topicConfig{c.Name, c.Kind, c.Values[0], c.Doc()})
	}
	slices.SortFunc(list, func(a, b topicConfig) int { return strings.Compare(a.name, b.name) })
	return list
}

// CheckTopic returns why a topic cannot have that name or those configs.
func (b *Broker) CheckTopic(name string, configs map[string]string) error {
	if err := checkTopicName(name); err != nil {
		return err
	}
	if _, _, err := commitlog.ConfigFromTopic(configs); err != nil {
		return fmt.Errorf("%w: %w", ErrInvalidConfig, err)
	}
	return nil
}

// TopicConfigs lists a topic's configs as they are in force.
func (b *Broker) TopicConfigs(t *cluster.TopicView) []kafka.ConfigEntry {
	var out []kafka.ConfigEntry
	for _, d := range topicDefaults() {
		e := kafka.ConfigEntry{Name: d.name, Value: d.value, Default: d.value, Kind: d.kind, Doc: d.doc}
		if v, ok := t.Configs[d.name]; ok {
			e.Value, e.Set = v, true
		}
		out = append(out, e)
	}
	return out
}

// logConfig is how a log of a topic with those configs is kept here.
func (b *Broker) logConfig(configs map[string]string) (commitlog.Config, commitlog.FlushPolicy, error) {
	cfg, policy, err := commitlog.ConfigFromTopic(configs)
	cfg.ProducerExpiration = b.cfg.ProducerIDExpiration
	return cfg, policy, err
}

// BrokerConfigs lists this broker's settings under the names that Kafka's tools look for.
func (b *Broker) BrokerConfigs() []kafka.ConfigEntry {
	host, port := b.Advertised()
	number := func(n int64) string { return strconv.FormatInt(n, 10) }
	c, d := b.cfg, commitlog.DefaultConfig()
	set := func(name string, kind int8, value, doc string) kafka.ConfigEntry {
		return kafka.ConfigEntry{Name: name, Kind: kind, Value: value, Set: true, Doc: doc}
	}
	def := func(name string, kind int8, value, doc string) kafka.ConfigEntry {
		return kafka.ConfigEntry{Name: name, Kind: kind, Value: value, Doc: doc}
	}
	return []kafka.ConfigEntry{
		set("advertised.listeners", kindString, "PLAINTEXT://"+joinHostPort(host, port), "Where clients are told to connect (broker.advertise)."),
		set("auto.create.topics.enable", kindBoolean, strconv.FormatBool(c.AutoCreateTopics), "Whether asking for the metadata of an unknown topic creates it (broker.auto_create_topics); never of one whose name begins with __."),
		set("broker.id", kindInt, number(int64(c.ID)), "This broker's number in the cluster."),
		set("connections.max.idle.ms", kindLong, number(c.IdleTimeout.Milliseconds()), "Milliseconds after which a connection without a request is closed (broker.idle_timeout)."),
		set("fetch.max.bytes", kindInt, number(c.MaxFetchBytes), "Bytes of records in one Fetch answer at most (broker.max_fetch_bytes)."),
		set("listeners", kindList, "PLAINTEXT://"+b.Addr(), "The address that is served (broker.listen)."),
		set("log.dirs", kindString, strings.Join(b.logDirPaths(), ","), "The directories that partitions are in (data_dir, broker.log_dirs)."),
		def("log.retention.ms", kindLong, number(d.Retention.Milliseconds()), "retention.ms of topics that set none, in milliseconds."),
		def("log.segment.bytes", kindInt, number(d.SegmentBytes), "segment.bytes of topics that set none."),
		set("max.connections", kindInt, number(int64(c.MaxConnections)), "Connections in all (broker.max_connections); at this bound the longest idle gives way."),
		set("max.connections.per.ip", kindInt, number(int64(c.perIP())), "Connections from one address (broker.max_connections_per_ip); at this bound its longest idle gives way."),
		def("message.max.bytes", kindInt, number(int64(d.MaxBatchBytes)), "max.message.bytes of topics that set none."),
		set("num.partitions", kindInt, number(int64(c.AutoCreatePartitions)), "Partitions of a topic that is created because it was asked for (broker.auto_create_partitions)."),
		set("producer.id.expiration.ms", kindInt, number(c.ProducerIDExpiration.Milliseconds()), "Milliseconds for which the sequence numbers of a producer that sends nothing are remembered (broker.producer_id_expiration)."),
		set("socket.request.max.bytes", kindInt, number(c.MaxRequestBytes), "Bytes of the largest request (broker.max_request_bytes)."),
	}
}
