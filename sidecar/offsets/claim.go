package offsets

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// claimAttempts bounds how often a claim starts over. Only former owners'
// checkpoints can get in between, about one a second of each.
const claimAttempts = 16

// Claim makes the caller the owner of a new generation of the partition, in one
// commit with the check that session holds the owner key (else ErrNotOwner). The
// new generation defeats every write that was decided before it. own is what
// the caller knows itself: the topic's present UUID, the seek epoch with its
// start, and what the local store holds. The returned position is own merged
// with the stored one. Other errors are the store's; after an error the claim
// may be tried again.
func (c *Checkpointer) Claim(ctx context.Context, key Key, session string, own Position) (Stored, error) {
	s, err := c.claim(ctx, key, session, own)
	result := "ok"
	if err != nil {
		result = "error"
		err = fmt.Errorf("claiming %s: %w", key, err)
	}
	c.metrics.claims.WithLabelValues(result).Inc()
	return s, err
}

func (c *Checkpointer) claim(ctx context.Context, key Key, session string, own Position) (Stored, error) {
	var (
		offsetKey = discovery.KeyOffset(key.Group, key.Topic, key.Partition)
		held      = discovery.Held(discovery.KeyOwner(key.Group, key.Topic, key.Partition), session)
		tried     uint64 // generation of an attempt whose outcome is unknown
	)
	for range claimAttempts {
		s, err := c.read(ctx, key)
		if err != nil {
			return Stored{}, err
		}
		next := Stored{Generation: s.stored.Generation + 1, Owner: c.opt.Owner, Nonce: c.opt.Nonce, Writer: c.nextWriter()}
		next.Position, _ = own.Merge(s.stored.Position)
		if !s.exists {
			next.Position = own.Clone()
		}
		if tried > 0 && s.stored.Generation == tried && s.stored.Owner == c.opt.Owner && s.stored.Nonce == c.opt.Nonce {
			// It was applied after all. Whether the key is still ours the next
			// holder's claim will say.
			next.Generation, next.Writer = tried, s.stored.Writer
			c.claimed(key, session, next, s)
			return next, nil
		}
		written, err := c.store.Commit(ctx, held, discovery.CAS(offsetKey, discovery.Encode(next), s.version))
		var conflict *discovery.ConflictError
		switch {
		case err == nil:
			c.claimed(key, session, next, seen{known: true, exists: true, version: written[0].Version, created: written[0].Created, stored: next})
			return next, nil
		case errors.Is(err, discovery.ErrSessionLost):
			return Stored{}, fmt.Errorf("%w: %w", ErrNotOwner, err)
		case errors.As(err, &conflict):
			if conflict.Op == 0 || conflict.Op < 0 && c.notHeld(ctx, held) {
				return Stored{}, fmt.Errorf("%w: %w", ErrNotOwner, err)
			}
		case errors.Is(err, discovery.ErrUnknownOutcome):
			tried = next.Generation
		default:
			return Stored{}, err
		}
	}
	return Stored{}, fmt.Errorf("%w: the position changed at each of %d attempts", discovery.ErrConflict, claimAttempts)
}

// notHeld says that the store denies the holder check.
func (c *Checkpointer) notHeld(ctx context.Context, held discovery.Op) bool {
	_, err := c.store.Commit(ctx, held)
	return errors.Is(err, discovery.ErrConflict) || errors.Is(err, discovery.ErrSessionLost)
}

// claimed remembers a claim; a mark that waits becomes one of it.
func (c *Checkpointer) claimed(key Key, session string, s Stored, found seen) {
	c.mu.Lock()
	defer c.mu.Unlock()
	e := c.entry(key)
	e.author = author{owner: c.opt.Owner, generation: s.Generation, created: found.created, session: session}
	e.seen = found
	// The caller gets s and goes on acknowledging in it.
	e.seen.stored.Position = e.seen.stored.Position.Clone()
	if e.dirty {
		e.mark, _ = s.Position.Merge(e.mark)
	}
}

// read reads what the store holds of a key. A value that is not a position is
// an absent one whose generation is kept if it can be read.
func (c *Checkpointer) read(ctx context.Context, key Key) (seen, error) {
	entry, err := c.store.Get(ctx, discovery.KeyOffset(key.Group, key.Topic, key.Partition))
	if errors.Is(err, discovery.ErrNotFound) {
		return seen{known: true}, nil
	}
	if err != nil {
		return seen{}, err
	}
	s := seen{known: true, exists: true, version: entry.Version, created: entry.Created}
	if s.stored, err = DecodeStored(entry); err != nil {
		var fence struct {
			Generation uint64 `json:"generation"`
		}
		_ = json.Unmarshal(entry.Value, &fence) // 0 when even that is not there
		s.stored = Stored{Generation: fence.Generation}
		c.log.Error("a stored position could not be read and will be replaced", zap.Stringer("key", key), zap.Error(err))
	}
	return s, nil
}
