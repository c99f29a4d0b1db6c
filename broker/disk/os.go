package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"

	"golang.org/x/sys/unix"
)

// OS is the machine's file system.
var OS FS = osFS{}

// maxVectors is Linux's IOV_MAX: a writev with more vectors is refused.
const maxVectors = 1024

type osFS struct{}

func (osFS) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	f, err := os.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &osFile{File: f, fd: f.Fd(), appends: flag&os.O_APPEND != 0}, nil
}

func (osFS) Hold(path string) (Place, error) {
	d, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	return &osPlace{File: d, fd: int(d.Fd())}, nil
}

// osPlace is an open folder: while it is open nobody else gets its inode number.
type osPlace struct {
	*os.File
	fd int
}

func (p *osPlace) InPlace() error { return inPlace(p.fd, p.Name()) }

// inPlace compares what a path leads to with what is open.
func inPlace(fd int, name string) error {
	var open, there unix.Stat_t
	err := retryInterrupted(func() error { return unix.Stat(name, &there) })
	switch {
	case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENOTDIR), errors.Is(err, unix.ESTALE):
		return &fs.PathError{Op: "find", Path: name, Err: ErrGone}
	case err != nil: // what is there cannot be seen, which says nothing about it
		return nil
	}
	err = retryInterrupted(func() error { return unix.Fstat(fd, &open) })
	if err == nil && (open.Ino != there.Ino || open.Dev != there.Dev) {
		return &fs.PathError{Op: "find", Path: name, Err: ErrGone}
	}
	return nil
}

func (osFS) MkdirAll(path string, perm os.FileMode) error { return os.MkdirAll(path, perm) }
func (osFS) Rename(oldPath, newPath string) error         { return os.Rename(oldPath, newPath) }
func (osFS) Remove(name string) error                     { return os.Remove(name) }
func (osFS) RemoveAll(path string) error                  { return os.RemoveAll(path) }
func (osFS) ReadDir(path string) ([]fs.DirEntry, error)   { return os.ReadDir(path) }
func (osFS) Stat(name string) (fs.FileInfo, error)        { return os.Stat(name) }

func (osFS) SyncDir(path string) error {
	d, err := os.Open(path)
	if err != nil {
		return err
	}
	err = d.Sync()
	return errors.Join(err, d.Close())
}

// osFile keeps the descriptor beside the os.File: the calls below are made
// without the runtime's poller, which knows nothing of regular files anyway.
type osFile struct {
	*os.File
	fd      uintptr
	appends bool
}

func (f *osFile) Fd() (uintptr, bool) { return f.fd, true }

func (f *osFile) Size() (int64, error) {
	var st unix.Stat_t
	err := retryInterrupted(func() error { return unix.Fstat(int(f.fd), &st) })
	if err != nil {
		return 0, f.wrap("fstat", err)
	}
	return st.Size, nil
}

func (f *osFile) InPlace(name string) error { return inPlace(int(f.fd), name) }

func (f *osFile) Linked() error {
	var st unix.Stat_t
	err := retryInterrupted(func() error { return unix.Fstat(int(f.fd), &st) })
	if err == nil && st.Nlink == 0 {
		return f.wrap("find", ErrGone)
	}
	return nil
}

func (f *osFile) Datasync() error {
	err := retryInterrupted(func() error { return unix.Fdatasync(int(f.fd)) })
	if err != nil {
		return f.wrap("fdatasync", err)
	}
	return nil
}

func (f *osFile) Writev(bufs [][]byte) (int64, error) {
	if !f.appends {
		return 0, f.wrap("writev", errors.New("the file was opened without O_APPEND"))
	}
	n, err := writeVectors(bufs, func(iovs [][]byte) (int, error) { return unix.Writev(int(f.fd), iovs) })
	if err != nil {
		return n, f.wrap("writev", err)
	}
	return n, nil
}

func (f *osFile) wrap(op string, err error) error {
	return &fs.PathError{Op: op, Path: f.Name(), Err: err}
}

// writeVectors writes all buffers through write, which may take a part of what
// it is given, may be interrupted, and takes at most maxVectors buffers.
func writeVectors(bufs [][]byte, write func([][]byte) (int, error)) (int64, error) {
	var done int64
	rest := bufs
	skip := 0 // bytes of rest[0] already written
	for len(rest) > 0 {
		if skip == len(rest[0]) {
			rest, skip = rest[1:], 0
			continue
		}
		iovs := rest[:min(len(rest), maxVectors)]
		if skip > 0 { // a copy of the headers, so that the caller's slice stays as it was
			iovs = append([][]byte{rest[0][skip:]}, iovs[1:]...)
		}
		n, err := write(iovs)
		if errors.Is(err, unix.EINTR) && n <= 0 {
			continue
		}
		if err != nil {
			return done, err
		}
		if n <= 0 {
			return done, fmt.Errorf("wrote %d bytes without an error", n)
		}
		done += int64(n)
		for n > 0 {
			left := len(rest[0]) - skip
			if n < left {
				skip += n
				break
			}
			n -= left
			rest, skip = rest[1:], 0
		}
	}
	return done, nil
}

func retryInterrupted(call func() error) error {
	for {
		if err := call(); !errors.Is(err, unix.EINTR) {
			return err
		}
	}
}
