package discovery

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
)

// snapshotReserve is how far the index may run past the one in the snapshot
// before another is written: a store that starts again begins above it, so that
// no version or fencing number is ever given twice.
const snapshotReserve = 1 << 16

// snapshot is the file's content, JSON.
type snapshot struct {
	Format int             `json:"format"` // 1
	Index  uint64          `json:"index"`  // no index above it was given out
	Keys   []snapshotEntry `json:"keys"`
}

type snapshotEntry struct {
	Key     string `json:"key"`
	Value   []byte `json:"value"`
	Version uint64 `json:"version"`
	Created uint64 `json:"created"`
}

// saverState is what the saver and the commits share, guarded by Memory.mu.
type saverState struct {
	kick     chan struct{}
	dirty    uint64        // number of the newest state to be saved
	saved    uint64        // number of the state that the file holds, or that failed
	err      error         // of the last save
	reserved uint64        // index in the file
	done     chan struct{} // closed and replaced when a save has ended
}

func newSaverState() saverState {
	return saverState{kick: make(chan struct{}, 1), done: make(chan struct{})}
}

// kickSaver wakes the saver. Call with mu held.
func (m *Memory) kickSaver() {
	select {
	case m.saver.kick <- struct{}{}:
	default:
	}
}

// awaitSaved waits until the state of that number is in the file.
func (m *Memory) awaitSaved(ctx context.Context, number uint64) error {
	for {
		m.mu.Lock()
		saved, err, done := m.saver.saved, m.saver.err, m.saver.done
		m.mu.Unlock()
		if saved >= number {
			if err != nil {
				return fmt.Errorf("%w: the snapshot was not written: %w", ErrUnknownOutcome, err)
			}
			return nil
		}
		select {
		case <-done:
		case <-ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, ctx.Err())
		case <-m.bg.ctx.Done():
			return fmt.Errorf("%w: %w", ErrUnknownOutcome, errClosed)
		}
	}
}

// runSaver writes snapshots, one for all commits that came during the last.
func (m *Memory) runSaver(ctx context.Context) {
	for {
		select {
		case <-m.saver.kick:
			m.save()
		case <-ctx.Done():
			return
		}
	}
}

func (m *Memory) save() {
	m.mu.Lock()
	number := m.saver.dirty
	snap := snapshot{Format: 1, Index: m.own.kv.index + snapshotReserve}
	for _, key := range m.own.kv.keys {
		if it := m.own.kv.items[key]; it.session == "" {
			snap.Keys = append(snap.Keys, snapshotEntry{Key: key, Value: it.value, Version: it.version, Created: it.created})
		}
	}
	m.mu.Unlock()

	b, err := json.Marshal(snap) // values are never changed in place
	if err == nil {
		err = m.file.write(b)
	}

	m.mu.Lock()
	defer m.mu.Unlock()
	m.saver.saved, m.saver.err = number, err
	if err == nil {
		m.saver.reserved = snap.Index
	}
	close(m.saver.done)
	m.saver.done = make(chan struct{})
}

// loadSnapshot reads the file; a missing one is an empty store. A damaged one
// is an error: to start empty would lose every topic in silence.
func loadSnapshot(path string) (*kv, error) {
	if err := os.MkdirAll(filepath.Dir(path), 0o750); err != nil {
		return nil, fmt.Errorf("snapshot of the memory store: %w", err)
	}
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return newKV(), nil
	}
	if err != nil {
		return nil, fmt.Errorf("snapshot of the memory store: %w", err)
	}
	var snap snapshot
	if err := json.Unmarshal(b, &snap); err != nil {
		return nil, fmt.Errorf("snapshot %s of the memory store is damaged (%w): restore it, or remove it to start empty", path, err)
	}
	if snap.Format != 1 {
		return nil, fmt.Errorf("snapshot %s of the memory store has format %d, this version reads 1", path, snap.Format)
	}
	s := newKV()
	for _, e := range snap.Keys {
		s.put(e.Key, item{value: e.Value, version: e.Version, created: e.Created})
		s.index = max(s.index, e.Version)
	}
	s.index = max(s.index, snap.Index)
	return s, nil
}
