package offsets

import (
	"bytes"
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

// seen is what the coordination store was last known to hold under a key.
type seen struct {
	known   bool // false: read before deciding
	exists  bool
	version uint64
	created uint64
	stored  Stored
}

// action is what a checkpoint of a marked position must do.
type action int

const (
	write     action = iota // compare and swap
	writeHeld               // the same, if our session holds the owner key
	unchanged               // the store has it already
	drop                    // the store knows better: forget the mark
)

// author is who marks: the claim that the mark belongs to.
type author struct {
	owner      string
	generation uint64
	created    uint64 // of the key when it was claimed; 0: not claimed by this process
	session    string // that claimed it; "": none, or known to hold it no more
}

// decide is what to do with a marked position given what the store holds, and
// the value to write (without its Writer). It is where the fence is:
//
// The generation's owner writes. A former owner, one whose generation is below
// the stored one, adds what it had acknowledged and leaves generation and owner
// alone. Where the store has less than was claimed (it was wiped, restored from
// an older snapshot, or the group was deleted and made again) the generation
// proves nothing, and only one whose session holds the owner key may write. A
// key that was made again and claimed as often as ours is of another life.
func decide(a author, mark Position, s seen) (action, Stored) {
	own := Stored{Generation: a.generation, Owner: a.owner, Position: mark}
	if !s.exists {
		if a.session == "" {
			return drop, Stored{}
		}
		return writeHeld, own
	}
	reborn := a.created != 0 && s.created != a.created
	current := a.generation == s.stored.Generation && a.owner == s.stored.Owner && !reborn
	behind := a.generation > s.stored.Generation
	if current || behind && a.session != "" {
		merged, verdict := mark.Merge(s.stored.Position)
		if verdict == NewerSeek {
			return drop, Stored{} // the mark is from before a seek
		}
		own.Position = merged
		if current {
			if own.Position.sameStored(s.stored.Position) {
				return unchanged, Stored{}
			}
			return write, own
		}
		return writeHeld, own
	}
	if reborn {
		return drop, Stored{}
	}
	merged, verdict := s.stored.Position.MergeAcks(mark)
	if verdict == OlderSeek || verdict == OtherTopic {
		return drop, Stored{}
	}
	if merged.sameStored(s.stored.Position) {
		return unchanged, Stored{}
	}
	late := s.stored
	late.Position = merged
	return write, late
}

// sameStored says whether two positions would be stored as the same bytes.
func (p Position) sameStored(q Position) bool {
	a, _ := p.Encode()
	b, _ := q.Encode()
	return bytes.Equal(a, b)
}
