package commitlog

import (
	"fmt"
	"strings"
)

// FixedConfig is one of Kafka's topic configs that has no effect here. Tools
// that are made for Kafka send all that they know, at Kafka's defaults, and are
// served; another value is refused rather than ignored.
type FixedConfig struct {
	Name   string
	Kind   int8     // Kafka's ConfigType: 1 boolean, 2 string, 3 int, 5 long, 7 list
	Values []string // Kafka's default, and after it those of other releases
	Why    string   // it has no effect
}

const (
	fixedBoolean, fixedString, fixedInt, fixedLong, fixedList = 1, 2, 3, 5, 7

	noTiers      = "there is no tiered storage"
	asSent       = "batches are stored as the producer sent them"
	noDates      = "records are stored whatever they are dated"
	oneReplica   = "there is nothing to copy between brokers"
	noLevelsHere = "brokers do not compress"
)

// fixedConfigs are those of Kafka's that topicKeys does not read, with Kafka's
// defaults (Kafka 4.2, LogConfig.CONFIG with ServerLogConfigs and QuotaConfig;
// those marked are of Kafka 3.9, TopicConfig, and gone since 4.0).
var fixedConfigs = []FixedConfig{
	{"compression.gzip.level", fixedInt, []string{"-1"}, noLevelsHere},
	{"compression.lz4.level", fixedInt, []string{"9"}, noLevelsHere},
	{"compression.zstd.level", fixedInt, []string{"3"}, noLevelsHere},
	{"file.delete.delay.ms", fixedLong, []string{"60000"}, "files go when their last reader has gone"},
	{"follower.replication.throttled.replicas", fixedList, []string{""}, oneReplica},
	{"leader.replication.throttled.replicas", fixedList, []string{""}, oneReplica},
	{"local.retention.bytes", fixedLong, []string{"-2"}, noTiers},
	{"local.retention.ms", fixedLong, []string{"-2"}, noTiers},
	{"message.downconversion.enable", fixedBoolean, []string{"true"}, asSent}, // 3.9
	{"message.format.version", fixedString, []string{"3.0-IV1"}, asSent},      // 3.9
	// One hour since 4.0 (KIP-1030), for ever before.
	{"message.timestamp.after.max.ms", fixedLong, []string{never, "3600000"}, noDates},
	{"message.timestamp.before.max.ms", fixedLong, []string{never}, noDates},
	{"message.timestamp.difference.max.ms", fixedLong, []string{never}, noDates}, // 3.9
	{"preallocate", fixedBoolean, []string{"false"}, "segments grow as they are written"},
	{"remote.copy.lag.bytes", fixedLong, []string{"0"}, noTiers},
	{"remote.copy.lag.ms", fixedLong, []string{"0"}, noTiers},
	{"remote.log.copy.disable", fixedBoolean, []string{"false"}, noTiers},
	{"remote.log.delete.on.disable", fixedBoolean, []string{"false"}, noTiers},
	{"remote.storage.enable", fixedBoolean, []string{"false"}, noTiers},
	{"segment.index.bytes", fixedInt, []string{"10485760"}, "indexes grow with their segment"},
	{"segment.jitter.ms", fixedLong, []string{"0"}, "segments are begun when they are due"},
}

// FixedConfigs lists the configs that are taken at Kafka's defaults only.
func FixedConfigs() []FixedConfig { return fixedConfigs }

// Doc says it in a sentence.
func (c FixedConfig) Doc() string {
	return fmt.Sprintf("Without effect, and taken at Kafka's default only: %s.", c.Why)
}

// check is its topicKey.
func (c FixedConfig) check(v string, _ *Config, _ *FlushPolicy) error {
	for _, allowed := range c.Values { // as lenient as Kafka reads values
		if strings.EqualFold(strings.TrimSpace(v), allowed) {
			return nil
		}
	}
	return fmt.Errorf("only %q, Kafka's default, is supported: %s", c.Values[0], c.Why)
}

// withFixed adds them to the configs that have an effect.
func withFixed(keys map[string]topicKey) map[string]topicKey {
	for _, c := range fixedConfigs {
		keys[c.Name] = c.check
	}
	return keys
}
