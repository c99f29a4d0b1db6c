package discovery

import (
	"encoding/json"
	"time"
)

// The values under the keys. They are JSON; a reader ignores fields that it
// does not know. Writer is a nonce that makes each written value unlike the one
// before (see Store.Commit); NewNonce makes one.

// ClusterID is under KeyClusterID.
type ClusterID struct {
	ID string `json:"id"` // random UUID, made once
}

// Broker is under KeyBroker.
type Broker struct {
	ID      int32  `json:"id"`
	Host    string `json:"host"` // as advertised to Kafka clients
	Port    int32  `json:"port"`
	Rack    string `json:"rack,omitempty"`
	Version string `json:"version"`
	Nonce   string `json:"nonce"`   // of the data folder
	Session string `json:"session"` // so that suspicion can destroy it
	Service string `json:"service"` // ID of its registration, to find its health
}

// Phase of a topic.
type Phase string

const (
	PhaseCreating Phase = "creating" // not placed yet
	PhaseLive     Phase = "live"
	PhaseDeleting Phase = "deleting" // the only phase in which files are removed
)

// Topic is under KeyTopic.
type Topic struct {
	Name        string            `json:"name"`
	UUID        string            `json:"uuid"`
	Phase       Phase             `json:"phase"`
	Partitions  int32             `json:"partitions"`
	Replication int16             `json:"replication"`
	Configs     map[string]string `json:"configs,omitempty"` // by Kafka's names
	Created     time.Time         `json:"created"`
	Writer      string            `json:"writer"`
}

// PartitionState is where one partition lives. Leader -1 means none.
type PartitionState struct {
	Replicas []int32 `json:"replicas"`
	Leader   int32   `json:"leader"`
	Epoch    int32   `json:"epoch"` // leader epoch: raised with every change of leader or restart of it
	ISR      []int32 `json:"isr"`
}

// Shard is under KeyShard: the partitions shard*64 … shard*64+len-1.
type Shard struct {
	Partitions []PartitionState `json:"partitions"`
	Writer     string           `json:"writer"`
}

// Versions is under KeyVersions. Changed lists "topics/<name>" and
// "state/<uuid>/<shard>" keys, newest last, at most 64; entry i belongs to the
// counter Counter-len(Changed)+1+i. A reader that missed more re-lists all.
type Versions struct {
	Counter uint64   `json:"counter"`
	Changed []string `json:"changed"`
}

// ProducerIDs is under KeyProducerIDs: the first producer id not given out.
type ProducerIDs struct {
	Next   int64  `json:"next"`
	Writer string `json:"writer"`
}

// Sidecar is under KeySidecar.
type Sidecar struct {
	ID      string `json:"id"`
	Address string `json:"address"` // of its HTTP API
	Version string `json:"version"`
	Nonce   string `json:"nonce"`             // of the data folder
	Process string `json:"process,omitempty"` // made at each start
	Session string `json:"session"`
	Service string `json:"service"`
}

// GroupConfig is under KeyGroupConfig. Zero fields mean the default.
type GroupConfig struct {
	Order       string `json:"order"`                // partition, key or none
	LeaseMillis int64  `json:"lease_ms"`             // default lease
	MaxAttempts int    `json:"max_attempts"`         // 0: the default; -1: no limit
	Exclusive   string `json:"exclusive"`            // available or strict
	From        string `json:"from"`                 // earliest, latest or RFC 3339
	Dead        string `json:"dead,omitempty"`       // topic of dead letters, skip or off; "": dead.<group>
	Unreadable  string `json:"unreadable,omitempty"` // dead (""), skip or stop: what becomes of records that nobody can read
	Ephemeral   bool   `json:"ephemeral,omitempty"`  // removed soon after its last member left
	Paused      string `json:"paused,omitempty"`     // topics of which nothing is handed out, with commas; *: all
	Created     string `json:"created,omitempty"`    // RFC 3339
	Writer      string `json:"writer"`
}

// Begin is under KeyBegin: what `from` was resolved to, once, by partition.
// A partition that is not listed starts at its log's start.
type Begin struct {
	UUID    string          `json:"uuid"` // of the topic
	From    string          `json:"from"`
	Offsets map[int32]int64 `json:"offsets"`
	Writer  string          `json:"writer"`
}

// Pattern is under KeyPattern: the topics that a pattern matched when the group
// began to pull it, with their UUIDs. The group's `from` is for these; topics
// that are not listed came later and start at their log's start.
type Pattern struct {
	Topics map[string]string `json:"topics"`
	Writer string            `json:"writer"`
}

// Member is under KeyMember.
type Member struct {
	Sidecar string    `json:"sidecar"`
	Topics  []string  `json:"topics"` // names, and patterns such as orders.*
	Joined  time.Time `json:"joined"`
	Nonce   string    `json:"nonce"`
	Session string    `json:"session"`
	Service string    `json:"service"`
}

// Planner is under KeyPlanner.
type Planner struct {
	Sidecar string `json:"sidecar"`
	Session string `json:"session"`
	Service string `json:"service"`
	Writer  string `json:"writer"`
}

// Assignment is under KeyAssign.
type Assignment struct {
	Plan       uint64             `json:"plan"`       // rises with every plan of the group
	Partitions map[string][]int32 `json:"partitions"` // by topic, sorted; a pattern that was expanded is named with none
	Seeks      map[string]uint64  `json:"seeks,omitempty"`
	Settings   string             `json:"settings,omitempty"` // changes when the group's settings have: read them again
	Cause      string             `json:"cause"`              // why it changed, for people
	Writer     string             `json:"writer"`
}

// Owner is under KeyOwner.
type Owner struct {
	Sidecar string `json:"sidecar"`
	Nonce   string `json:"nonce"`
	Plan    uint64 `json:"plan"`
}

// Seek is under KeySeek. Epoch rises by one with each.
type Seek struct {
	Epoch   uint64          `json:"epoch"`
	UUID    string          `json:"uuid"` // of the topic
	To      string          `json:"to,omitempty"`
	Offsets map[int32]int64 `json:"offsets"` // resolved when it was asked for
	Writer  string          `json:"writer"`
}

// Committed is under KeyCommitted, by partition.
type Committed struct {
	Offsets map[int32]CommittedOffset `json:"offsets"`
	Writer  string                    `json:"writer"`
}

// CommittedOffset is what a Kafka consumer committed of a partition. Metadata is
// in one of the two fields: in Metadata64 when that is shorter or when JSON
// could not hold it to the letter.
type CommittedOffset struct {
	Offset      int64  `json:"offset"`
	LeaderEpoch int32  `json:"epoch"` // -1: not given
	Metadata    string `json:"meta,omitempty"`
	Metadata64  []byte `json:"meta64,omitempty"`
	Time        int64  `json:"at"` // Unix seconds
}

// Decode reads the JSON value of an entry.
func Decode[T any](e Entry) (T, error) {
	var v T
	err := json.Unmarshal(e.Value, &v)
	return v, err
}

// Encode writes a value as JSON. The types of this package always can be.
func Encode(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err)
	}
	return b
}
