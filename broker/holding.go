package broker

import (
	"errors"
	"fmt"
	"path"
	"sync"

	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
)

// holdingKey is what a partition is known by for ever; a name may come again with another UUID.
type holdingKey struct {
	id        UUID
	partition int32
}

// holding is one partition's folder.
type holding struct {
	key  holdingKey
	turn chan struct{} // holds one token: who has it may change the folder, which takes I/O

	begun bool // there was a log: without any file of one it was lost; written by who has the turn

	mu      sync.Mutex // guards everything below
	dir     string     // "" until the folder has a place
	desc    description
	behind  bool       // the file in the folder says less than desc, for lack of room
	part    *partition // nil while the log is not open
	err     error      // why it is not
	removed bool
}

func newHolding(key holdingKey) *holding {
	h := &holding{key: key, turn: make(chan struct{}, 1)}
	h.turn <- struct{}{}
	return h
}

func (h *holding) lock()   { <-h.turn }
func (h *holding) unlock() { h.turn <- struct{}{} }

// current is the open partition, nil when there is none.
func (h *holding) current() *partition {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.part
}

func (h *holding) describe() (d description, dir string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.desc, h.dir
}

func (h *holding) isBehind() bool {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.behind
}

func (h *holding) set(change func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	change()
}

// open opens the log of a folder that has its description. The turn is held.
func (b *Broker) openLog(h *holding, clean bool) error {
	d, dir := h.describe()
	cfg, _, err := b.logConfig(d.Configs)
	if err != nil {
		return err
	}
	log, err := commitlog.Open(b.fs, dir, cfg, commitlog.Options{
		Logger: b.log, Metrics: b.logMetrics, Clean: clean, Begun: h.begun, Decompress: b.unpacking.decompress, Compress: compress})
	if err == nil {
		part := newPartition(d.Topic, d.ID, d.Partition, log, b.dirOf(dir), b.unpacking, b.log, b.now, b.metrics)
		h.set(func() { h.part, h.err = part, nil })
		return nil
	}
	err = fmt.Errorf("opening %s: %w", dir, err)
	h.set(func() { h.err = err })
	return err
}

// close closes the log cleanly.
func (h *holding) close() error {
	h.lock()
	defer h.unlock()
	p := h.current()
	if p == nil {
		return nil
	}
	p.resign()
	h.set(func() { h.part = nil })
	if err := p.log.Close(); err != nil {
		return fmt.Errorf("%s-%d: %w", p.topic, p.index, err)
	}
	return nil
}

func (h *holding) alarms() (out []string) {
	h.mu.Lock()
	p, err, dir := h.part, h.err, h.dir
	h.mu.Unlock()
	if err != nil {
		out = append(out, fmt.Sprintf("%s is not served: %v", dir, err))
	}
	if p == nil {
		return out
	}
	if err := p.log.Offline(); err != nil {
		out = append(out, fmt.Sprintf("%s takes no writes: %v", dir, err))
	}
	for _, d := range p.log.Damage() {
		out = append(out, fmt.Sprintf("%s is damaged: %v", dir, d))
	}
	return out
}

// Held lists what the data folder holds, from each partition's metadata file.
func (b *Broker) Held() []Held {
	var out []Held
	for _, h := range b.holdings() {
		h.mu.Lock()
		d, p, removed := h.desc, h.part, h.removed
		h.mu.Unlock()
		if d.Topic == "" || removed {
			continue // never got as far as a folder
		}
		held := Held{Topic: d.Topic, ID: d.ID, Partition: d.Partition, Count: d.Count, Configs: d.Configs, LeaderEpoch: d.Epoch}
		if p != nil {
			held.Start, held.End, held.Bytes = p.log.StartOffset(), p.log.EndOffset(), p.log.Size()
			held.LeaderEpoch = max(d.Epoch, p.log.LastEpoch()) // the file may be behind, see describeFolder
		}
		out = append(out, held)
	}
	return out
}

// Resign stops serving the partition; its files stay. What was queued is answered before it returns.
func (b *Broker) Resign(id UUID, partition int32) {
	h := b.find(holdingKey{id, partition})
	if h == nil {
		return
	}
	h.lock()
	defer h.unlock()
	b.unserve(h)
}

// unserve takes the partition out of service. The turn is held.
func (b *Broker) unserve(h *holding) {
	p := h.current()
	if p == nil {
		return
	}
	b.mu.Lock()
	if topic := b.led[p.topic]; topic[p.index] == p {
		delete(topic, p.index)
		if len(topic) == 0 {
			delete(b.led, p.topic)
		}
	}
	b.mu.Unlock()
	p.resign()
}

func (b *Broker) find(key holdingKey) *holding {
	b.mu.RLock()
	defer b.mu.RUnlock()
	return b.held[key]
}

// Remove deletes the partition's files. It is for topics whose phase is deleting, and for nothing else. The folder is
// renamed first, so that a crash in the middle leaves something that is never taken for a partition. Nothing there is
// no error.
func (b *Broker) Remove(id UUID, partition int32) error {
	h := b.find(holdingKey{id, partition})
	if h == nil {
		return nil
	}
	h.lock()
	defer h.unlock()
	b.unserve(h)
	_, dir := h.describe()
	if p := h.current(); p != nil {
		if err := p.log.Remove(); err != nil && !errors.Is(err, commitlog.ErrClosed) {
			return fmt.Errorf("removing %s: %w", dir, err)
		}
	} else if dir != "" {
		if err := removeFolder(b.fs, path.Dir(dir), dir, id); err != nil {
			return fmt.Errorf("removing %s: %w", dir, err)
		}
	}
	b.mu.Lock()
	delete(b.held, h.key)
	if b.dirs[dir] == h {
		delete(b.dirs, dir)
	}
	b.mu.Unlock()
	h.set(func() { h.part, h.err, h.removed = nil, nil, true })
	return nil
}

// removeFolder deletes a folder whose log is not open, in the same three steps.
func removeFolder(fs disk.FS, parent, dir string, id UUID) error {
	doomed := fmt.Sprintf("%s.%s-delete", dir, id)
	if err := fs.Rename(dir, doomed); err != nil {
		return err
	}
	if err := fs.SyncDir(parent); err != nil {
		return err
	}
	return fs.RemoveAll(doomed)
}
