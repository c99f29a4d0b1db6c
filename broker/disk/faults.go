package disk

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"sync"
	"syscall"
)

// OpKind names an operation to a fault rule.
type OpKind string

// The operations that a rule is asked about.
const (
	OpOpen     OpKind = "open"
	OpMkdir    OpKind = "mkdir"
	OpRename   OpKind = "rename"
	OpRemove   OpKind = "remove"
	OpReadDir  OpKind = "readdir"
	OpStat     OpKind = "stat"
	OpSyncDir  OpKind = "syncdir"
	OpRead     OpKind = "read"
	OpWrite    OpKind = "write" // Writev and WriteAt
	OpTruncate OpKind = "truncate"
	OpDatasync OpKind = "datasync"
	OpSync     OpKind = "sync"
	OpClose    OpKind = "close"
)

// Mutates tells whether the operation changes what a power cut would leave.
func (k OpKind) Mutates() bool {
	switch k {
	case OpMkdir, OpRename, OpRemove, OpSyncDir, OpWrite, OpTruncate, OpDatasync, OpSync:
		return true
	}
	return false
}

// Op is one operation that is about to happen.
type Op struct {
	Kind OpKind
	Name string // the path; the old one of a rename
	To   string // the new path of a rename
	Flag int    // of an open
	Size int64  // bytes to read or write, the new size of a truncation
}

// ShortWrite is what a rule returns to let a write store its first n bytes and
// then fail with err. For any other operation it is plainly err.
func ShortWrite(n int64, err error) error { return &shortWrite{n: n, err: err} }

type shortWrite struct {
	n   int64
	err error
}

func (s *shortWrite) Error() string { return fmt.Sprintf("short write after %d bytes: %v", s.n, s.err) }
func (s *shortWrite) Unwrap() error { return s.err }

// WithFaults wraps a file system: each operation first asks the rule, and an
// error from it is the operation's result, with nothing done ([ShortWrite]
// excepted). The rule may be called from several goroutines at once.
func WithFaults(inner FS, rule func(Op) error) FS { return &faultFS{inner: inner, rule: rule} }

// Budget is a rule for [WithFaults] which behaves like a disk with room for n
// more bytes: the write that passes the limit stores what fits and gets ENOSPC,
// and so does every creation and growth after it, until Free gives room back.
type Budget struct {
	mu   sync.Mutex // guards left
	left int64
}

// NewBudget is a disk with room for n bytes.
func NewBudget(n int64) *Budget { return &Budget{left: n} }

// Free gives n bytes back.
func (b *Budget) Free(n int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.left += n
}

// Rule is the rule to pass to [WithFaults].
func (b *Budget) Rule(op Op) error {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch op.Kind {
	case OpWrite:
		if op.Size <= b.left {
			b.left -= op.Size
			return nil
		}
		fits := b.left
		b.left = 0
		return ShortWrite(fits, syscall.ENOSPC)
	case OpOpen:
		if op.Flag&os.O_CREATE != 0 && b.left <= 0 {
			return syscall.ENOSPC
		}
	}
	return nil
}

type faultFS struct {
	inner FS
	rule  func(Op) error
}

func (f *faultFS) check(op Op) error {
	err := f.rule(op)
	if err == nil {
		return nil
	}
	var short *shortWrite
	if errors.As(err, &short) {
		err = short.err
	}
	return &fs.PathError{Op: string(op.Kind), Path: op.Name, Err: err}
}

func (f *faultFS) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	if err := f.check(Op{Kind: OpOpen, Name: name, Flag: flag}); err != nil {
		return nil, err
	}
	file, err := f.inner.OpenFile(name, flag, perm)
	if err != nil {
		return nil, err
	}
	return &faultFile{File: file, fs: f}, nil
}

func (f *faultFS) MkdirAll(path string, perm os.FileMode) error {
	if err := f.check(Op{Kind: OpMkdir, Name: path}); err != nil {
		return err
	}
	return f.inner.MkdirAll(path, perm)
}

func (f *faultFS) Rename(oldPath, newPath string) error {
	if err := f.check(Op{Kind: OpRename, Name: oldPath, To: newPath}); err != nil {
		return err
	}
	return f.inner.Rename(oldPath, newPath)
}

func (f *faultFS) Remove(name string) error {
	if err := f.check(Op{Kind: OpRemove, Name: name}); err != nil {
		return err
	}
	return f.inner.Remove(name)
}

func (f *faultFS) RemoveAll(path string) error {
	if err := f.check(Op{Kind: OpRemove, Name: path}); err != nil {
		return err
	}
	return f.inner.RemoveAll(path)
}

func (f *faultFS) ReadDir(path string) ([]fs.DirEntry, error) {
	if err := f.check(Op{Kind: OpReadDir, Name: path}); err != nil {
		return nil, err
	}
	return f.inner.ReadDir(path)
}

func (f *faultFS) Stat(name string) (fs.FileInfo, error) {
	if err := f.check(Op{Kind: OpStat, Name: name}); err != nil {
		return nil, err
	}
	return f.inner.Stat(name)
}

func (f *faultFS) SyncDir(path string) error {
	if err := f.check(Op{Kind: OpSyncDir, Name: path}); err != nil {
		return err
	}
	return f.inner.SyncDir(path)
}

func (f *faultFS) Hold(path string) (Place, error) { return f.inner.Hold(path) }

type faultFile struct {
	File
	fs *faultFS
}

func (f *faultFile) check(kind OpKind, size int64) error {
	return f.fs.check(Op{Kind: kind, Name: f.Name(), Size: size})
}

func (f *faultFile) ReadAt(p []byte, off int64) (int, error) {
	if err := f.check(OpRead, int64(len(p))); err != nil {
		return 0, err
	}
	return f.File.ReadAt(p, off)
}

func (f *faultFile) WriteAt(p []byte, off int64) (int, error) {
	fits, err := f.checkWrite(int64(len(p)))
	if err == nil {
		return f.File.WriteAt(p, off)
	}
	n := 0
	if fits > 0 {
		var werr error
		if n, werr = f.File.WriteAt(p[:fits], off); werr != nil {
			return n, werr
		}
	}
	return n, err
}

func (f *faultFile) Writev(bufs [][]byte) (int64, error) {
	var size int64
	for _, b := range bufs {
		size += int64(len(b))
	}
	fits, err := f.checkWrite(size)
	if err == nil {
		return f.File.Writev(bufs)
	}
	var part [][]byte
	for _, b := range bufs {
		b = b[:min(int64(len(b)), fits)]
		fits -= int64(len(b))
		part = append(part, b)
	}
	n, werr := f.File.Writev(part)
	if werr != nil {
		return n, werr
	}
	return n, err
}

// checkWrite asks the rule about a write of size bytes. With an error comes how
// many of the bytes are to be stored all the same.
func (f *faultFile) checkWrite(size int64) (fits int64, err error) {
	err = f.fs.rule(Op{Kind: OpWrite, Name: f.Name(), Size: size})
	if err == nil {
		return size, nil
	}
	var short *shortWrite
	if errors.As(err, &short) {
		fits, err = min(short.n, size), short.err
	}
	return fits, &fs.PathError{Op: string(OpWrite), Path: f.Name(), Err: err}
}

func (f *faultFile) Truncate(size int64) error {
	if err := f.check(OpTruncate, size); err != nil {
		return err
	}
	return f.File.Truncate(size)
}

func (f *faultFile) Datasync() error {
	if err := f.check(OpDatasync, 0); err != nil {
		return err
	}
	return f.File.Datasync()
}

func (f *faultFile) Sync() error {
	if err := f.check(OpSync, 0); err != nil {
		return err
	}
	return f.File.Sync()
}

func (f *faultFile) Close() error {
	if err := f.check(OpClose, 0); err != nil {
		_ = f.File.Close() // an injected failure must not leak the descriptor
		return err
	}
	return f.File.Close()
}
