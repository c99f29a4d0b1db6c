package discovery

import (
	"fmt"
	"strings"
)

// checkKey refuses keys that the store cannot hold. Consul's URLs could not
// name a key with an empty or a dot segment, though its transactions could
// write it.
func checkKey(key string) error {
	if key == "" {
		return fmt.Errorf("discovery: the key is empty")
	}
	for segment := range strings.SplitSeq(key, "/") {
		switch segment {
		case "", ".", "..":
			return fmt.Errorf("discovery: key %q has the segment %q: keys are names between single slashes, with none at the ends", key, segment)
		}
	}
	return nil
}

// checkOps refuses commits that are malformed or larger than every store takes.
func checkOps(ops []Op) error {
	if len(ops) > MaxCommitOps {
		return fmt.Errorf("%w: %d operations, at most %d are allowed", ErrTooLarge, len(ops), MaxCommitOps)
	}
	size := 0
	for i, op := range ops {
		if op.Verb != VerbDeletePrefix {
			if err := checkKey(op.Key); err != nil {
				return fmt.Errorf("operation %d: %w", i, err)
			}
		}
		switch op.Verb {
		case VerbAcquire, VerbRelease, VerbHeld:
			if op.Session == "" {
				return fmt.Errorf("discovery: operation %d on key %q names no session", i, op.Key)
			}
		case VerbSet, VerbCAS, VerbDelete, VerbDeleteCAS, VerbDeletePrefix, VerbUnchanged, VerbAbsent:
		default:
			return fmt.Errorf("discovery: operation %d on key %q has the unknown verb %d", i, op.Key, op.Verb)
		}
		if len(op.Value) > MaxValueBytes {
			return fmt.Errorf("%w: the value of key %q has %d bytes, at most %d are allowed", ErrTooLarge, op.Key, len(op.Value), MaxValueBytes)
		}
		size += len(op.Key) + len(op.Value)
	}
	if size > MaxCommitBytes {
		return fmt.Errorf("%w: keys and values have %d bytes, at most %d are allowed", ErrTooLarge, size, MaxCommitBytes)
	}
	return nil
}
