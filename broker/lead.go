package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"strings"
	"syscall"

	"go.uber.org/zap"

	"sidestream/broker/commitlog"
)

// ErrOldEpoch: Lead came with a lower epoch than one before it.
var ErrOldEpoch = errors.New("leader epoch is older than the one the partition was led under")

// Lead creates or opens the partition and serves it at that epoch. It is idempotent: the same Lead again changes
// nothing, a higher epoch or other configs are taken over, a lower epoch is ErrOldEpoch. The epoch is in the folder before
// the first batch is stamped with it, unless the disk is full: then that batch is what says it.
func (b *Broker) Lead(l Lead) error {
	want, cfg, policy, err := b.checkLead(l)
	if err != nil {
		return fmt.Errorf("leading %s-%d: %w", l.Topic, l.Partition, err)
	}
	h, err := b.obtain(holdingKey{l.ID, l.Partition})
	if err != nil {
		return err
	}
	defer h.unlock()
	if err := b.prepare(h, want); err != nil {
		return fmt.Errorf("leading %s-%d: %w", l.Topic, l.Partition, err)
	}
	p := h.current()
	if err := p.log.SetConfig(cfg); err != nil {
		return fmt.Errorf("leading %s-%d: %w", l.Topic, l.Partition, err)
	}
	p.lead(l.Epoch, cfg, policy)
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.closed {
		return ErrClosed // Close waits for our turn and then closes the log
	}
	if b.led[l.Topic] == nil {
		b.led[l.Topic] = map[int32]*partition{}
	}
	b.led[l.Topic][l.Partition] = p
	return nil
}

// checkLead turns the request into what is kept of it.
func (b *Broker) checkLead(l Lead) (description, commitlog.Config, commitlog.FlushPolicy, error) {
	d := description{ID: l.ID, Topic: l.Topic, Partition: l.Partition, Count: l.Count, Epoch: l.Epoch, Configs: maps.Clone(l.Configs)}
	if err := checkTopicName(l.Topic); err != nil {
		return d, commitlog.Config{}, commitlog.FlushPolicy{}, err
	}
	switch {
	case l.ID.IsZero():
		return d, commitlog.Config{}, commitlog.FlushPolicy{}, errors.New("the topic has no UUID")
	case l.Partition < 0 || l.Epoch < 0:
		return d, commitlog.Config{}, commitlog.FlushPolicy{}, fmt.Errorf("partition %d, epoch %d: both must be 0 or more", l.Partition, l.Epoch)
	}
	cfg, policy, err := b.logConfig(l.Configs)
	return d, cfg, policy, err
}

// obtain returns the holding with its turn taken; the caller gives the turn back.
func (b *Broker) obtain(key holdingKey) (*holding, error) {
	for {
		b.mu.Lock()
		if b.closed {
			b.mu.Unlock()
			return nil, ErrClosed
		}
		h := b.held[key]
		if h == nil {
			h = newHolding(key)
			b.held[key] = h
		}
		b.mu.Unlock()
		h.lock()
		h.mu.Lock()
		removed := h.removed
		h.mu.Unlock()
		if !removed {
			return h, nil
		}
		h.unlock() // removed while we waited: begin anew
	}
}

// prepare makes the folder exist, describe want, and have its log open. The turn is held.
func (b *Broker) prepare(h *holding, want description) error {
	have, dir := h.describe()
	if have.Topic != "" && want.Epoch < have.Epoch {
		return fmt.Errorf("epoch %d, it was led under %d: %w", want.Epoch, have.Epoch, ErrOldEpoch)
	}
	if dir == "" {
		if err := b.mayBegin(want); err != nil {
			return err
		}
		d, err := b.choose()
		if err != nil {
			return err
		}
		if dir, err = b.claim(h, fmt.Sprintf("%s/%s-%d", d.path, want.Topic, want.Partition)); err != nil {
			return err
		}
		h.begun = want.ledBefore()
	}
	if !have.equal(want) || h.isBehind() {
		if have.Topic == "" {
			if err := b.makeFolder(dir); err != nil {
				return err
			}
		}
		if err := b.describeFolder(h, dir, have, want); err != nil {
			return fmt.Errorf("writing %s: %w", metadataFile, err)
		}
	}
	if h.current() != nil {
		return nil
	}
	return b.openLog(h, false)
}

// describeFolder writes the description. Where a full disk has no room for a newer one, the partition is led all the
// same, or its records could be neither read nor deleted: what is wanted is agreed in the cluster, which does not give
// an epoch twice, and records that are written under it say so themselves. The file follows when there is room. The
// turn is held.
func (b *Broker) describeFolder(h *holding, dir string, have, want description) error {
	err := writeDescription(b.fs, dir, want)
	behind := err != nil && have.Topic != "" && (errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT))
	if err != nil && !behind {
		return err
	}
	h.set(func() { h.desc, h.behind = want, behind })
	d := b.dirOf(dir)
	switch {
	case behind && d.took(commitlog.ErrNoSpace):
		b.log.Warn("no room to describe what is led: serving goes on", zap.String("directory", d.path), zap.Error(err))
	case !behind && d.took(nil):
		b.log.Info("the log directory has room again", zap.String("directory", d.path))
	}
	return nil
}

// catchUp describes a folder whose description is behind.
func (b *Broker) catchUp(h *holding) {
	if !h.isBehind() {
		return
	}
	h.lock()
	defer h.unlock()
	h.mu.Lock()
	due := h.behind && !h.removed
	h.mu.Unlock()
	if !due {
		return
	}
	d, dir := h.describe()
	if err := b.describeFolder(h, dir, d, d); err != nil {
		b.log.Warn("describing a partition's folder failed", zap.String("folder", dir), zap.Error(err))
	}
}

// mayBegin refuses to begin a partition anew that was led before while a log directory cannot be read: its records may
// lie there.
func (b *Broker) mayBegin(want description) error {
	if !want.ledBefore() {
		return nil
	}
	for _, d := range b.logDirs {
		if d.isUnread() {
			return fmt.Errorf("it was led before and is not found, and log directory %s, where it may be, cannot be read: %w", d.path, d.offline())
		}
	}
	return nil
}

// makeFolder makes the folder of a new partition. One that is there already may be what a crash left before the
// description was written, but never a log that nobody described.
func (b *Broker) makeFolder(dir string) error {
	entries, err := b.fs.ReadDir(dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		if err := b.fs.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		return b.fs.SyncDir(path.Dir(dir))
	case err != nil:
		return err
	}
	for _, e := range entries {
		if strings.HasSuffix(e.Name(), ".log") {
			return fmt.Errorf("%s holds a log but no %s: move the folder away, or restore that file", dir, metadataFile)
		}
	}
	return nil
}

// claim gives the holding its folder. When an older topic of the same name still has it (its deletion has not reached
// this broker), that one moves aside: files go only when their own topic is removed.
func (b *Broker) claim(h *holding, dir string) (string, error) {
	for {
		b.mu.Lock()
		owner := b.dirs[dir]
		if owner == nil {
			b.dirs[dir] = h
		}
		b.mu.Unlock()
		if owner == nil {
			h.set(func() { h.dir = dir })
			return dir, nil
		}
		if err := b.moveAside(owner, dir); err != nil {
			return "", fmt.Errorf("%s belongs to topic id %s and cannot be moved aside: %w", dir, owner.key.id, err)
		}
	}
}

// moveAside renames the folder of a holding to one that names its UUID. It waits for that holding's turn, which cannot
// wait for ours: only who has no folder waits here.
func (b *Broker) moveAside(h *holding, dir string) error {
	h.lock()
	defer h.unlock()
	if _, at := h.describe(); at != dir {
		return nil // removed or moved meanwhile
	}
	aside := fmt.Sprintf("%s.%s-stray", dir, h.key.id)
	b.log.Warn("an older topic of the same name is still here: moving its folder aside", zap.String("from", dir), zap.String("to", aside))
	b.unserve(h)
	p := h.current()
	if p != nil {
		h.set(func() { h.part = nil })
		if err := p.log.Close(); err != nil {
			b.log.Warn("closing the older topic's log", zap.String("folder", dir), zap.Error(err))
		}
	}
	if err := b.fs.Rename(dir, aside); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	if err := b.fs.SyncDir(path.Dir(dir)); err != nil {
		return err
	}
	h.set(func() { h.dir = aside })
	b.mu.Lock()
	delete(b.dirs, dir)
	b.dirs[aside] = h
	b.mu.Unlock()
	if p != nil {
		_ = b.openLog(h, false) // a failure becomes an alarm
	}
	return nil
}
