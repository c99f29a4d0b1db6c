package commitlog

import (
	"math"
	"strings"
	"testing"
	"time"
)

func TestConfigFromTopic(t *testing.T) {
	c, f, err := ConfigFromTopic(nil)
	if err != nil || c != DefaultConfig() || !f.EveryAppend() || f.Interval != 0 {
		t.Errorf("defaults: %+v %+v %v", c, f, err)
	}
	c, f, err = ConfigFromTopic(map[string]string{
		"segment.bytes": "2048", "segment.ms": "60000", "retention.ms": "3600000", "retention.bytes": "10000",
		"max.message.bytes": "5000", "index.interval.bytes": "512", "flush.messages": "100", "flush.ms": "250",
		"cleanup.policy": "delete", "compression.type": "producer", "min.insync.replicas": "1",
	})
	want := DefaultConfig()
	want.SegmentBytes, want.SegmentAge, want.Retention, want.RetentionBytes = 2048, time.Minute, time.Hour, 10000
	want.MaxBatchBytes, want.IndexInterval = 5000, 512
	if err != nil || c != want || f != (FlushPolicy{100, 250 * time.Millisecond}) || f.EveryAppend() {
		t.Errorf("got %+v %+v %v", c, f, err)
	}
	c, f, err = ConfigFromTopic(map[string]string{
		"retention.ms": "-1", "segment.ms": "9223372036854775807",
		"flush.ms": "9223372036854775807", "flush.messages": "9223372036854775807",
	})
	if err != nil || c.Retention != -1 || c.SegmentAge != math.MaxInt64 || f.Interval != 0 || f.Messages != math.MaxInt64 {
		t.Errorf("never and for ever: %+v %+v %v", c, f, err)
	}
	c, _, err = ConfigFromTopic(map[string]string{
		"cleanup.policy": "delete, compact", "min.compaction.lag.ms": "60000", "max.compaction.lag.ms": "3600000",
		"delete.retention.ms": "0", "min.cleanable.dirty.ratio": "0.25",
	})
	want = DefaultConfig()
	want.Cleanup, want.MinCompactionLag, want.MaxCompactionLag = CleanupBoth, time.Minute, time.Hour
	want.DeleteRetention, want.MinCleanableRatio = 0, 0.25
	if err != nil || c != want || !c.Compacted() || !c.deletes() {
		t.Errorf("compaction: %+v %v", c, err)
	}
	c, _, err = ConfigFromTopic(map[string]string{"cleanup.policy": "compact", "max.compaction.lag.ms": never})
	if err != nil || !c.Compacted() || c.deletes() || c.MaxCompactionLag != 0 {
		t.Errorf("compact alone: %+v %v", c, err)
	}
}

func TestConfigFromTopicRefuses(t *testing.T) {
	for _, c := range []struct{ name, value, want string }{
		{"segment.bytes", "10", "use a whole number from 1024"},
		{"segment.bytes", "1GB", "use a whole number"},
		{"segment.bytes", "2147483648", "to 2147483647"},
		{"retention.ms", "7d", "use milliseconds"},
		{"retention.ms", "-2", "use milliseconds"},
		{"retention.bytes", "-2", "from -1"},
		{"flush.messages", "0", "from 1"},
		{"max.message.bytes", "10", "from 62"},
		{"cleanup.policy", "compacted", "use delete, compact or compact,delete"},
		{"cleanup.policy", "", "use delete, compact or compact,delete"},
		{"min.compaction.lag.ms", "-1", "use milliseconds, at least 0"},
		{"max.compaction.lag.ms", "0", "use milliseconds, at least 1"},
		{"delete.retention.ms", "1d", "use milliseconds"},
		{"min.cleanable.dirty.ratio", "1.5", "use a number from 0 to 1"},
		{"min.cleanable.dirty.ratio", "NaN", "use a number from 0 to 1"},
		{"compression.type", "zstd", `only "producer"`},
		{"message.timestamp.type", "LogAppendTime", `only "CreateTime"`},
		{"preallocate", "true", `only "false", Kafka's default, is supported: segments grow`},
		{"segment.jitter.ms", "1", `only "0", Kafka's default`},
		{"remote.storage.enable", "true", "there is no tiered storage"},
		{"message.timestamp.after.max.ms", "60000", "records are stored whatever they are dated"},
		{"leader.replication.throttled.replicas", "*", "nothing to copy"},
		{"retention.ms", strings.Repeat("0", 40_000) + "1", "a value of 40001 bytes: at most 1000"},
		{"cleanup.policy", strings.Repeat("delete,", 10_000) + "delete", "at most 1000"},
		{"preallocate", "false" + strings.Repeat(" ", 40_000), "at most 1000"},
		{"retention.mss", "1", `unknown topic config "retention.mss": known are cleanup.policy, `},
	} {
		_, _, err := ConfigFromTopic(map[string]string{c.name: c.value})
		if err == nil || !strings.Contains(err.Error(), c.name) || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s=%s: %v, want one with %q", c.name, c.value, err, c.want)
		}
	}
}

// Tools send every config that they know, most of them at Kafka's default, which was an error for those that have no
// effect here.
func TestKafkasDefaultsAreTaken(t *testing.T) {
	all := map[string]string{}
	for _, c := range FixedConfigs() {
		all[c.Name] = c.Values[0]
		for _, v := range c.Values {
			if _, _, err := ConfigFromTopic(map[string]string{c.Name: v}); err != nil {
				t.Error(err)
			}
		}
		if _, _, err := ConfigFromTopic(map[string]string{c.Name: c.Values[0] + "7"}); err == nil {
			t.Errorf("%s=%s7 is taken and has no effect", c.Name, c.Values[0])
		}
	}
	all["preallocate"] = " False"
	if c, f, err := ConfigFromTopic(all); err != nil || c != DefaultConfig() || !f.EveryAppend() {
		t.Errorf("%+v, %+v, %v", c, f, err)
	}
}

func TestValidateNamesTheKey(t *testing.T) {
	for key, spoil := range map[string]func(*Config){
		"segment_bytes":       func(c *Config) { c.SegmentBytes = 1 << 31 },
		"segment_age":         func(c *Config) { c.SegmentAge = 0 },
		"retention":           func(c *Config) { c.Retention = 0 },
		"retention_bytes":     func(c *Config) { c.RetentionBytes = -2 },
		"index_interval":      func(c *Config) { c.IndexInterval = 0 },
		"max_batch_bytes":     func(c *Config) { c.MaxBatchBytes = 61 },
		"checkpoint_bytes":    func(c *Config) { c.CheckpointBytes = 0 },
		"producer_expiration": func(c *Config) { c.ProducerExpiration = -1 },
		"cleanup":             func(c *Config) { c.Cleanup = "delete,compact" },
		"min_compaction_lag":  func(c *Config) { c.MinCompactionLag = -1 },
		"max_compaction_lag":  func(c *Config) { c.MinCompactionLag, c.MaxCompactionLag = 2, 1 },
		"delete_retention":    func(c *Config) { c.DeleteRetention = -1 },
		"min_cleanable_ratio": func(c *Config) { c.MinCleanableRatio = math.NaN() },
	} {
		c := DefaultConfig()
		spoil(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), key+": got ") {
			t.Errorf("%s: %v", key, err)
		}
	}
	if err := DefaultConfig().Validate(); err != nil {
		t.Error(err)
	}
}

func TestSetConfigHoldsFromTheNextAppend(t *testing.T) {
	l := open(t, newDisk(t), DefaultConfig())
	appendValues(t, l, 30)
	must(t, l.SetConfig(smallConfig()))
	appendValues(t, l, 30)
	if len(l.segments) < 3 {
		t.Errorf("%d segments, the limit was lowered", len(l.segments))
	}
	if err := l.SetConfig(Config{}); err == nil {
		t.Error("a bad config is taken")
	}
}
