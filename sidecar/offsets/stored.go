package offsets

import (
	"fmt"

	"sidestream/discovery"
)

// Key names a partition within a group. Topic is the topic's name; its UUID is
// in the position.
type Key struct {
	Group     string
	Topic     string
	Partition int32
}

func (k Key) String() string { return fmt.Sprintf("%s/%s/%d", k.Group, k.Topic, k.Partition) }

// Stored is the value under discovery.KeyOffset.
type Stored struct {
	// Generation rises by one with each claim of the partition; it is what a
	// receipt is checked against.
	Generation uint64 `json:"generation"`
	// Owner is the sidecar that claimed that generation, Nonce its instance.
	Owner string `json:"owner"`
	Nonce string `json:"nonce"`
	// Writer makes each value unlike the one before.
	Writer   string   `json:"writer"`
	Position Position `json:"position"`
}

// DecodeStored reads the value of an entry under discovery.PrefixOffsets.
func DecodeStored(e discovery.Entry) (Stored, error) {
	s, err := discovery.Decode[Stored](e)
	if err != nil {
		return Stored{}, fmt.Errorf("the position under %s: %w", e.Key, err)
	}
	return s, nil
}
