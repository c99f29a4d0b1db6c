package kafka

import (
	"context"
	"errors"
	"fmt"

	"sidestream/broker/cluster"
)

// Groups here have no members: they are names under which consumers that choose their partitions themselves keep
// offsets with the cluster.

const (
	// maxGroupID bounds a group's name, as for topics.
	maxGroupID = 249
	// maxOffsetMetadata is Kafka's default of offset.metadata.max.bytes.
	maxOffsetMetadata = 4096

	stateEmpty = "Empty" // offsets, but no members
	stateDead  = "Dead"  // nothing of it is known
)

var (
	errGroupID      = errors.New("invalid group id")
	errGeneration   = errors.New("illegal generation")
	errMetadataSize = errors.New("offset metadata too large")
)

func checkGroupID(group string) error {
	if group == "" || len(group) > maxGroupID {
		return fmt.Errorf("group id of %d bytes: use 1 to %d: %w", len(group), maxGroupID, errGroupID)
	}
	return nil
}

// groupCode is codeOf for requests about groups, whose clients try again when the coordinator is said to be away.
func groupCode(err error) int16 {
	if errors.Is(err, cluster.ErrUnavailable) || errors.Is(err, context.DeadlineExceeded) || errors.Is(err, context.Canceled) {
		return codeCoordinatorNotAvailable
	}
	return codeOf(err)
}

// committedByName is what a group has stored, by the topics' present names; what belongs to a deleted topic is left out.
func (s *Server) committedByName(ctx context.Context, group string) (map[string]map[int32]cluster.CommittedOffset, error) {
	if err := checkGroupID(group); err != nil {
		return nil, err
	}
	offsets, err := s.backend.CommittedOffsets(ctx, group)
	if err != nil {
		return nil, err
	}
	names := map[cluster.UUID]string{}
	for name, t := range s.backend.View().Topics {
		names[t.ID] = name
	}
	out := map[string]map[int32]cluster.CommittedOffset{}
	for id, o := range offsets {
		name, ok := names[id.Topic]
		if !ok {
			continue
		}
		if out[name] == nil {
			out[name] = map[int32]cluster.CommittedOffset{}
		}
		out[name][id.Partition] = o
	}
	return out, nil
}

// coordinates tells whether this broker is the one that answers for a group.
func (s *Server) coordinates(group string) bool {
	n, ok := s.backend.View().Coordinator(group)
	return ok && n.ID == s.backend.Self()
}
