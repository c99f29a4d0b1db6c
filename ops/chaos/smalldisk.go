package chaos

import (
	"fmt"
	"os"
	"path/filepath"
	"syscall"
	"testing"
)

// Disk is a small file system of its own that a test can fill.
type Disk struct{ dir string }

const smallDisk = "size=192m"

// mountSmall mounts a Disk as a folder. It needs root.
func mountSmall(t testing.TB, dir string) (Disk, error) {
	if os.Geteuid() != 0 {
		return Disk{}, fmt.Errorf("mounting a small file system needs root")
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return Disk{}, err
	}
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, smallDisk); err != nil {
		return Disk{}, fmt.Errorf("this machine does not let root mount a tmpfs: %w", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return Disk{dir}, nil
}

func (d Disk) other() string { return filepath.Join(d.dir, "other data") }

// Fill takes all the room that is left; what the processes have may still
// become larger by what is left of its last page.
func (d Disk) Fill() error {
	f, err := os.OpenFile(d.other(), os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer f.Close()
	for size := 1 << 20; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			size /= 2
		}
	}
	return nil
}

// Free gives it back.
func (d Disk) Free() error { return os.Remove(d.other()) }
