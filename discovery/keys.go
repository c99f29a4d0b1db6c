package discovery

import (
	"fmt"
	"strconv"
	"strings"
)

// Names of the services that Sidestream registers.
const (
	ServiceBroker  = "sidestream-broker"
	ServiceSidecar = "sidestream-sidecar"
)

// ShardPartitions is how many partitions one state key holds.
const ShardPartitions = 64

// Every key of the store. They are relative to the root, which is
// "sidestream/<cluster>/" in Consul. Topic and group names contain no slash.
const (
	KeyClusterID   = "cluster-id"
	KeyController  = "controller"
	KeyProducerIDs = "producer-ids"
	KeyKeeper      = "group-keeper"     // lock: a [Keeper], who removes idle groups
	KeyCensus      = "group-partitions" // a [Census]

	PrefixBrokers  = "brokers/"
	PrefixTopics   = "topics/"
	PrefixState    = "state/"
	PrefixVersions = "versions/"
	PrefixSidecars = "sidecars/"
	PrefixGroups   = "groups/"
	PrefixAssign   = "assign/"

	// PrefixCommitted is above the offsets that Kafka consumers which are no
	// members of a group keep with the cluster.
	PrefixCommitted = "committed/"
)

// KeyBroker is the ephemeral key of a live broker: a [Broker].
func KeyBroker(id int32) string { return PrefixBrokers + strconv.Itoa(int(id)) }

// KeyTopic holds a [Topic].
func KeyTopic(name string) string { return PrefixTopics + name }

// KeyShard holds a [Shard]: the state of 64 partitions of a topic.
func KeyShard(uuid string, shard int) string { return fmt.Sprintf("state/%s/%d", uuid, shard) }

// PrefixTopicState is above all shards of a topic.
func PrefixTopicState(uuid string) string { return PrefixState + uuid + "/" }

// KeyVersions holds [Versions]: what one agent changed last.
func KeyVersions(writer string) string { return PrefixVersions + writer }

// KeySidecar is the ephemeral key of a live sidecar: a [Sidecar].
func KeySidecar(id string) string { return PrefixSidecars + id }

// KeyGroupConfig holds a [GroupConfig].
func KeyGroupConfig(group string) string { return PrefixGroups + group + "/config" }

// KeyBegin holds a [Begin].
func KeyBegin(group, topic string) string { return PrefixGroups + group + "/begin/" + topic }

// KeyPattern holds a [Pattern].
func KeyPattern(group, pattern string) string { return PrefixPatterns(group) + pattern }

// PrefixPatterns is above all patterns of topics that a group pulls.
func PrefixPatterns(group string) string { return PrefixGroups + group + "/patterns/" }

// KeyMember is the ephemeral key of a sidecar's membership: a [Member].
func KeyMember(group, sidecar string) string { return PrefixGroups + group + "/members/" + sidecar }

// PrefixMembers is above all members of a group.
func PrefixMembers(group string) string { return PrefixGroups + group + "/members/" }

// KeyPlanner is the lock of the sidecar that plans the group.
func KeyPlanner(group string) string { return PrefixGroups + group + "/planner" }

// KeyAssign holds an [Assignment].
func KeyAssign(sidecar, group string) string { return PrefixAssign + sidecar + "/" + group }

// PrefixAssigned is above all assignments of a sidecar.
func PrefixAssigned(sidecar string) string { return PrefixAssign + sidecar + "/" }

// KeyOwner is the lock of a partition's owner in a group: an [Owner].
func KeyOwner(group, topic string, partition int32) string {
	return fmt.Sprintf("groups/%s/owners/%s/%d", group, topic, partition)
}

// PrefixOwners is above all owner locks of a group.
func PrefixOwners(group string) string { return PrefixGroups + group + "/owners/" }

// KeyOffset holds the position of a group in a partition, with its generation.
func KeyOffset(group, topic string, partition int32) string {
	return fmt.Sprintf("groups/%s/offsets/%s/%d", group, topic, partition)
}

// PrefixOffsets is above all positions of a group.
func PrefixOffsets(group string) string { return PrefixGroups + group + "/offsets/" }

// KeySeek holds a [Seek].
func KeySeek(group, topic string) string { return PrefixGroups + group + "/seek/" + topic }

// PrefixSeeks is above all seeks of a group.
func PrefixSeeks(group string) string { return PrefixGroups + group + "/seek/" }

// KeySettings holds a [Settings]. It lies among the seeks because the planner
// watches those: each further watch would cost a connection a group. Its name
// is no topic's.
func KeySettings(group string) string { return PrefixSeeks(group) + NameSettings }

// NameSettings is the last part of KeySettings.
const NameSettings = "~settings"

// KeyHistory holds a [History].
func KeyHistory(group string) string { return PrefixGroups + group + "/history" }

// KeyIdle holds an [Idle]; it is there while the group has no members.
func KeyIdle(group string) string { return PrefixGroups + group + "/idle" }

// PrefixRedriven is above the marks of the dead letters that a group brought back
// to a topic, by the partition of the topic of dead letters: a position each.
func PrefixRedriven(group, topic, dead string) string {
	return PrefixGroups + group + "/redriven/" + topic + "/" + dead + "/"
}

// KeyRedriving is the lock of whoever brings dead letters of a group back.
func KeyRedriving(group string) string { return PrefixGroups + group + "/redriving" }

// KeyCommitted holds [Committed]: the offsets of 64 partitions of a topic for a
// Kafka group, whose name may be any string and is escaped.
func KeyCommitted(group, uuid string, shard int) string {
	return fmt.Sprintf("%s%s/%d", PrefixCommittedBy(group), uuid, shard)
}

// PrefixCommittedBy is above all offsets of a Kafka group.
func PrefixCommittedBy(group string) string { return PrefixCommitted + escape(group) + "/" }

// SplitCommitted reads a key that KeyCommitted made.
func SplitCommitted(key string) (group, uuid string, shard int, ok bool) {
	parts := strings.Split(strings.TrimPrefix(key, PrefixCommitted), "/")
	if len(parts) != 3 || !strings.HasPrefix(key, PrefixCommitted) {
		return "", "", 0, false
	}
	group, ok = unescape(parts[0])
	n, err := strconv.Atoi(parts[2])
	if !ok || err != nil || n < 0 {
		return "", "", 0, false
	}
	return group, parts[1], n, true
}

// escape makes any string a part of a key: what is not a-z A-Z 0-9 _ - or a dot
// after the first character becomes ~ and two hexadecimal digits.
func escape(s string) string {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		c := s[i]
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '_' || c == '-' || c == '.' && i > 0 {
			b.WriteByte(c)
		} else {
			fmt.Fprintf(&b, "~%02x", c)
		}
	}
	return b.String()
}

func unescape(s string) (string, bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		if s[i] != '~' {
			b.WriteByte(s[i])
			continue
		}
		if i+3 > len(s) {
			return "", false
		}
		n, err := strconv.ParseUint(s[i+1:i+3], 16, 8)
		if err != nil {
			return "", false
		}
		b.WriteByte(byte(n))
		i += 2
	}
	return b.String(), true
}

// SplitTopicPartition reads the "<topic>/<p>" that follows PrefixOwners or
// PrefixOffsets in a key.
func SplitTopicPartition(rest string) (topic string, partition int32, ok bool) {
	topic, p, found := strings.Cut(rest, "/")
	if !found || topic == "" {
		return "", 0, false
	}
	n, err := strconv.ParseInt(p, 10, 32)
	if err != nil || n < 0 {
		return "", 0, false
	}
	return topic, int32(n), true
}

// MaxNameLen is the longest name of a topic (Kafka's limit) and of a group.
const MaxNameLen = 249

// CheckName says what is wrong with a topic's or group's name, or nil. The
// rule is Kafka's for topics: 1 to 249 of a-z A-Z 0-9 . _ - and not "." or "..".
func CheckName(kind, name string) error {
	switch {
	case name == "":
		return fmt.Errorf("the %s name is empty: use 1 to %d of a-z A-Z 0-9 . _ -", kind, MaxNameLen)
	case name == "." || name == "..":
		return fmt.Errorf("%s name %q is not allowed: use 1 to %d of a-z A-Z 0-9 . _ -", kind, name, MaxNameLen)
	case len(name) > MaxNameLen:
		return fmt.Errorf("%s name has %d characters: at most %d are allowed", kind, len(name), MaxNameLen)
	}
	for i := 0; i < len(name); i++ {
		c := name[i]
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-') {
			return fmt.Errorf("%s name %q has a character that is not allowed: use 1 to %d of a-z A-Z 0-9 . _ -", kind, name, MaxNameLen)
		}
	}
	return nil
}
