package broker

import (
	"errors"
	"fmt"
	"io/fs"
	"path"
	"strings"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sync/errgroup"
)

// load finds and opens what partitions the log directories hold, several at once. What a folder is, its description
// says, not its name.
func (b *Broker) load() error {
	begun := time.Now()
	root := b.cfg.DataDir
	if err := b.fs.MkdirAll(root, 0o755); err != nil {
		return fmt.Errorf("data_dir: cannot make %s: %w", root, err)
	}
	if err := b.fs.SyncDir(path.Dir(root)); err != nil { // it may be new, and all that is in it hangs on this
		return fmt.Errorf("data_dir: cannot sync the folder of %s: %w", root, err)
	}
	if err := b.logDirs[0].hold(b.fs); err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	if err := b.openLogDirs(); err != nil {
		return err
	}
	clean := map[*logDir]bool{}
	for i, d := range b.logDirs {
		if d.isUnread() {
			continue
		}
		was, err := b.scan(d)
		switch {
		case err != nil && i == 0:
			return fmt.Errorf("data_dir: %w", err)
		case err != nil:
			b.log.Error("a log directory cannot be used", zap.String("directory", d.path), zap.Error(err))
			d.unreadable(err)
		}
		clean[d] = was
	}
	var g errgroup.Group
	g.SetLimit(b.cfg.OpenParallelism)
	for _, h := range b.held {
		g.Go(func() error {
			h.lock()
			defer h.unlock()
			_, dir := h.describe()
			if err := b.openLog(h, clean[b.dirOf(dir)]); err != nil {
				b.log.Error("a partition could not be opened", zap.Error(err))
			}
			return nil // the others are served
		})
	}
	_ = g.Wait()
	b.log.Info("data folder opened", zap.String("folder", root), zap.Int("log_directories", len(b.logDirs)), zap.Int("partitions", len(b.held)),
		zap.Bool("clean_stop", clean[b.logDirs[0]]), zap.Duration("took", time.Since(begun)))
	return nil
}

// scan adopts what a log directory holds, and tells whether its last stop was clean.
func (b *Broker) scan(d *logDir) (clean bool, err error) {
	entries, err := b.fs.ReadDir(d.path)
	if err != nil {
		return false, fmt.Errorf("cannot read %s: %w", d.path, err)
	}
	if clean, err = b.takeMarker(d.path); err != nil {
		return false, err
	}
	for _, e := range entries {
		if !e.IsDir() {
			continue
		}
		dir := d.path + "/" + e.Name()
		if isDeleting(e.Name()) {
			b.log.Info("finishing a removal that was interrupted", zap.String("folder", dir))
			if err := b.fs.RemoveAll(dir); err != nil {
				b.foreign = append(b.foreign, fmt.Sprintf("%s was being removed and cannot be: %v", dir, err))
			}
			continue
		}
		b.adopt(dir)
	}
	return clean, nil
}

// adopt takes a folder over by its description. A folder without one is left alone; if it has a log in it, that is an
// alarm.
func (b *Broker) adopt(dir string) {
	d, err := readDescription(b.fs, dir)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		entries, _ := b.fs.ReadDir(dir)
		for _, e := range entries {
			if strings.HasSuffix(e.Name(), ".log") {
				b.foreign = append(b.foreign, fmt.Sprintf("%s holds a log but no %s: it is left alone", dir, metadataFile))
				return
			}
		}
		return
	case err != nil:
		b.foreign = append(b.foreign, fmt.Sprintf("%s is left alone: %v", dir, err))
		return
	}
	key := holdingKey{d.ID, d.Partition}
	if other := b.held[key]; other != nil {
		b.foreign = append(b.foreign, fmt.Sprintf("%s and %s both hold topic id %s partition %d: %s is left alone", other.dir, dir, d.ID, d.Partition, dir))
		return
	}
	h := newHolding(key)
	h.desc, h.dir, h.begun = d, dir, true
	b.held[key] = h
	b.dirs[dir] = h
}

// takeMarker tells whether the last stop was clean, and makes sure that the next start will not think so of this run.
func (b *Broker) takeMarker(dir string) (bool, error) {
	err := b.fs.Remove(dir + "/" + cleanFile)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("removing %s: %w", cleanFile, err)
	}
	if err := b.fs.SyncDir(dir); err != nil {
		return false, err
	}
	return true, nil
}
