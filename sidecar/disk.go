package sidecar

import (
	"errors"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sync/singleflight"
)

// diskCheck remembers for a while whether the data folder takes writes.
// Acknowledgements are kept there, so on a full disk every message comes again,
// and the file of positions tells of it only when it has to grow.
type diskCheck struct {
	one singleflight.Group // one caller writes for all

	// mu guards what follows.
	mu  sync.Mutex
	at  time.Time
	err error
}

const (
	diskCheckAge  = 5 * time.Second
	diskCheckSize = 64 << 10 // bytes; a file system that is full takes fewer at times
	diskCheckFile = "writable.tmp"
)

func (d *diskCheck) check(dir string) error {
	d.mu.Lock()
	at, err := d.at, d.err
	d.mu.Unlock()
	if time.Since(at) < diskCheckAge {
		return err
	}
	_, err, _ = d.one.Do("", func() (any, error) {
		err := tryWrite(filepath.Join(dir, diskCheckFile))
		d.mu.Lock()
		defer d.mu.Unlock()
		d.at, d.err = time.Now(), err
		return nil, err
	})
	return err
}

// tryWrite writes a file and removes it.
func tryWrite(path string) error {
	return errors.Join(os.WriteFile(path, make([]byte, diskCheckSize), 0o600), ignore(os.Remove(path), os.ErrNotExist))
}

func ignore(err, harmless error) error {
	if errors.Is(err, harmless) {
		return nil
	}
	return err
}
