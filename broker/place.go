package broker

import (
	"context"
	"errors"
	"fmt"
	"os"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"sidestream/broker/disk"
)

const (
	// placeEvery is how often the log directories are looked for at their paths.
	placeEvery = time.Second
	// placeRounds is in how many of these rounds every partition has been looked for: what nobody writes to is found
	// missing, too. What is written to is looked for at each sync.
	placeRounds = 5
)

const goneText = "the log directory takes no more writes: it was removed, moved or replaced while it was in use, and nothing that is written there is found again"

// keepPlaces looks whether the log directories and what is in them are where they were opened. A folder that was removed,
// moved or replaced takes writes and syncs without an error, and nothing of it is found by the next start.
func (b *Broker) keepPlaces(ctx context.Context) {
	tick := time.NewTicker(placeEvery)
	defer tick.Stop()
	for round := 0; ; round++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
		for _, d := range b.logDirs {
			b.keepPlace(d)
		}
		for _, h := range b.holdings() {
			if p := h.current(); p != nil && int(uint32(h.key.partition)+uint32(h.key.id[0]))%placeRounds == round%placeRounds && p.dir.offline() == nil {
				if err := p.log.Check(); err != nil {
					p.notice(err)
				}
			}
		}
	}
}

// keepPlace takes a log directory offline that is not in its place. A lock that was removed is taken again: the folder
// is still ours, and locked itself.
func (b *Broker) keepPlace(d *logDir) {
	if d.offline() != nil {
		return
	}
	err := d.inPlace()
	if err == nil && d.lock != nil {
		if err = d.lock.renew(); errors.Is(err, errDirTaken) {
			err = fmt.Errorf("another broker has locked it: %w", err)
		}
	}
	if err != nil && d.fail(err) {
		b.log.Error(goneText, zap.String("directory", d.path), zap.Error(err))
	}
}

// inPlace is why a directory cannot be written to by its path, nil when it can.
func (d *logDir) inPlace() error {
	if d.place == nil {
		return nil
	}
	return d.place.InPlace()
}

// dirLocked is a locked directory: the file .lock, as Kafka does, and the directory itself, whose lock nobody can remove.
type dirLocked struct {
	name   string
	file   *os.File
	folder *os.File // nil where directories cannot be locked
}

// lockDir locks a directory against other brokers.
func lockDir(dir string) (*dirLocked, error) {
	l := &dirLocked{name: dir + "/" + dirLock}
	folder, err := os.Open(dir)
	if err != nil {
		return nil, err
	}
	switch err := unix.Flock(int(folder.Fd()), unix.LOCK_EX|unix.LOCK_NB); {
	case err == nil:
		l.folder = folder
	case errors.Is(err, unix.EWOULDBLOCK):
		_ = folder.Close()
		return nil, fmt.Errorf("%s is locked by another broker: %w", dir, errDirTaken)
	default: // network file systems lock files only
		_ = folder.Close()
	}
	if l.file, err = lockFile(l.name); err != nil {
		l.close()
		return nil, err
	}
	return l, nil
}

// renew takes the lock file again when it is not there any more. errDirTaken: somebody else was quicker.
func (l *dirLocked) renew() error {
	there, err := os.Stat(l.name)
	held, heldErr := l.file.Stat()
	if heldErr != nil || err == nil && os.SameFile(there, held) || err != nil && !errors.Is(err, os.ErrNotExist) {
		return nil
	}
	file, err := lockFile(l.name)
	if errors.Is(err, errDirTaken) {
		return err
	}
	if err == nil { // else on a full disk: the next time
		_ = l.file.Close()
		l.file = file
	}
	return nil
}

// close unlocks.
func (l *dirLocked) close() {
	for _, f := range []*os.File{l.file, l.folder} {
		if f != nil {
			_ = f.Close()
		}
	}
}

// hold keeps hold of the directory, so that it is missed when it is gone.
func (d *logDir) hold(fsys disk.FS) (err error) {
	d.place, err = fsys.Hold(d.path)
	return err
}
