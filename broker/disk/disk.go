// Package disk is the file system as the commit log needs it: append with one
// vectored write, data sync, directory sync, and a descriptor for sendfile.
//
// Three implementations meet the same interface: [OS], the real one (Linux);
// [Mem], in memory, which can say what a power cut would have left of it; and
// [WithFaults], which wraps another and fails what a rule tells it to fail.
package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
)

// FS is a file system. Paths are slash-separated and passed on as they are.
// Errors are those of the os package (fs.ErrNotExist, syscall.ENOSPC, …) and
// can be tested with errors.Is. All methods are safe for concurrent use.
type FS interface {
	// OpenFile opens a regular file. A file that shall be written with
	// Writev is opened with os.O_APPEND, one that shall be written with
	// WriteAt without it.
	OpenFile(name string, flag int, perm os.FileMode) (File, error)
	MkdirAll(path string, perm os.FileMode) error
	// Rename moves a file or a folder, replacing a file at the new path.
	Rename(oldPath, newPath string) error
	Remove(name string) error
	// RemoveAll removes a tree; it is not an error when nothing is there.
	RemoveAll(path string) error
	// ReadDir lists a folder, sorted by name.
	ReadDir(path string) ([]fs.DirEntry, error)
	Stat(name string) (fs.FileInfo, error)
	// SyncDir makes the creations, renames and removals inside the folder
	// durable. Without it a power cut may undo any of them.
	SyncDir(path string) error
	// Hold keeps hold of a folder, so that it can be told later whether the
	// path still leads to it.
	Hold(path string) (Place, error)
}

// ErrGone: what was opened is no longer at its path. It was removed, moved away,
// or something else was put in its place, so that what is written to it is not
// there for the next process that looks.
var ErrGone = errors.New("it is gone from its place: it was removed, moved or replaced while it was in use")

// Place is a folder that is held on to.
type Place interface {
	// InPlace is an error that wraps [ErrGone] when the path does not lead to
	// the folder any more. It is one system call.
	InPlace() error
	io.Closer
}

// File is an open regular file. ReadAt may run beside everything else; the
// caller serialises the writes, and closes only when nobody uses it any more.
type File interface {
	io.ReaderAt
	io.WriterAt
	io.Closer
	// Writev appends the buffers, in order and as one run of bytes, at the
	// end of the file. It returns how many bytes were written; fewer than all
	// of them always comes with an error. The slice itself and the buffers are
	// left as they were.
	Writev(bufs [][]byte) (int64, error)
	Truncate(size int64) error
	// Datasync makes the contents and the size durable (fdatasync). After a
	// failure the unsynced contents are in an unknown state and a second call
	// may report success without having written anything.
	Datasync() error
	// Sync makes contents and all attributes durable (fsync).
	Sync() error
	// Size is the length of the file in bytes.
	Size() (int64, error)
	// Fd is the descriptor for sendfile, valid until Close. ok is false when
	// the file has none and must be copied through ReadAt.
	Fd() (fd uintptr, ok bool)
	// Name is the path that the file was opened by.
	Name() string
	// InPlace is an error that wraps [ErrGone] when the path name does not lead
	// to this file any more: the file or a folder above it was removed, moved
	// or replaced. A path that cannot be looked at for another reason is no
	// error. It is one system call.
	InPlace(name string) error
	// Linked is an error that wraps [ErrGone] when no path leads to the file.
	Linked() error
}

// ReadFile reads a whole file, which is meant to be small.
func ReadFile(fsys FS, name string) ([]byte, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	b := make([]byte, size)
	n, err := f.ReadAt(b, 0)
	if err == io.EOF { // it shrank since
		err = nil
	}
	return b[:n], err
}

// WriteFileAtomic replaces a file so that a power cut leaves the old or the new
// contents, never a mixture, and the new ones once it has returned: it is
// [ReplaceFile] and a sync of the folder dir that holds the file.
func WriteFileAtomic(fsys FS, dir, name string, contents []byte) error {
	if err := ReplaceFile(fsys, name, contents); err != nil {
		return err
	}
	return fsys.SyncDir(dir)
}

// ReplaceFile writes and syncs a temporary file (name + ".tmp") and renames it to
// name. Until the folder is synced a power cut may bring back the old file.
func ReplaceFile(fsys FS, name string, contents []byte) error {
	tmp := name + ".tmp"
	err := writeSynced(fsys, tmp, contents)
	if err == nil {
		err = fsys.Rename(tmp, name)
	}
	if err != nil {
		_ = fsys.Remove(tmp) // the first error is the one to report
	}
	return err
}

func writeSynced(fsys FS, name string, contents []byte) error {
	f, err := fsys.OpenFile(name, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o644)
	if err != nil {
		return err
	}
	if _, err := f.WriteAt(contents, 0); err != nil {
		f.Close()
		return err
	}
	if err := f.Datasync(); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
