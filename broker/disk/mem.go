package disk

import (
	"errors"
	"io"
	"io/fs"
	"os"
	"path"
	"sort"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Mem is a file system in memory that knows what of it is durable: [Mem.Crash]
// makes the file system that a power cut at this moment would leave.
type Mem struct {
	mu      sync.RWMutex // guards everything below, the tree included
	root    *memNode
	pending []dirChange // directory changes that no SyncDir has covered, in order
}

// memNode is a folder or a file. Names live in the folder, as on a real disk,
// so that a file that is removed while it is open goes on existing.
type memNode struct {
	modTime time.Time
	mode    fs.FileMode

	entries map[string]*memNode // a folder's names; nil for a file
	durable map[string]*memNode // the names that a power cut leaves for certain

	data    []byte      // a file's contents
	synced  []byte      // its contents at the last sync
	changes []memChange // what happened to it since, in order
}

// memChange is one unsynced change of a file's contents.
type memChange struct {
	off      int64
	data     []byte // nil for a truncation to off
	truncate bool
}

// dirChange is one unsynced change of names: a creation or removal has one
// edit, a rename two, which a power cut keeps or drops together.
type dirChange []dirEdit

type dirEdit struct {
	dir  *memNode
	name string
	node *memNode // nil: the name is gone
}

// NewMem is an empty file system. Every folder but the root must be made with
// MkdirAll first.
func NewMem() *Mem { return &Mem{root: newFolder()} }

func newFolder() *memNode {
	return &memNode{
		modTime: time.Now(), mode: fs.ModeDir | 0o755,
		entries: map[string]*memNode{}, durable: map[string]*memNode{},
	}
}

func (n *memNode) isDir() bool { return n.entries != nil }

func pathError(op, name string, err error) error {
	return &fs.PathError{Op: op, Path: name, Err: err}
}

func parts(name string) []string {
	clean := strings.Trim(path.Clean("/"+name), "/")
	if clean == "" {
		return nil
	}
	return strings.Split(clean, "/")
}

// find returns the node at the path. Call with mu held.
func (m *Mem) find(name string) (*memNode, error) {
	n := m.root
	for _, part := range parts(name) {
		if !n.isDir() {
			return nil, syscall.ENOTDIR
		}
		next, ok := n.entries[part]
		if !ok {
			return nil, fs.ErrNotExist
		}
		n = next
	}
	return n, nil
}

// parent returns the folder that holds the path's last name. Call with mu held.
func (m *Mem) parent(name string) (dir *memNode, base string, err error) {
	ps := parts(name)
	if len(ps) == 0 {
		return nil, "", fs.ErrInvalid
	}
	dir, err = m.find(strings.Join(ps[:len(ps)-1], "/"))
	if err == nil && !dir.isDir() {
		err = syscall.ENOTDIR
	}
	return dir, ps[len(ps)-1], err
}

// change applies edits to the names and remembers them as unsynced. Call with
// mu held.
func (m *Mem) change(edits ...dirEdit) {
	for _, e := range edits {
		e.apply(e.dir.entries)
		e.dir.modTime = time.Now()
	}
	m.pending = append(m.pending, edits)
}

func (e dirEdit) apply(names map[string]*memNode) {
	if e.node == nil {
		delete(names, e.name)
	} else {
		names[e.name] = e.node
	}
}

// OpenFile opens or creates a regular file.
func (m *Mem) OpenFile(name string, flag int, perm os.FileMode) (File, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return nil, pathError("open", name, err)
	}
	n, ok := dir.entries[base]
	switch {
	case !ok && flag&os.O_CREATE == 0:
		return nil, pathError("open", name, fs.ErrNotExist)
	case ok && flag&(os.O_CREATE|os.O_EXCL) == os.O_CREATE|os.O_EXCL:
		return nil, pathError("open", name, fs.ErrExist)
	case ok && n.isDir():
		return nil, pathError("open", name, syscall.EISDIR)
	case !ok:
		n = &memNode{modTime: time.Now(), mode: perm.Perm()}
		m.change(dirEdit{dir, base, n})
	}
	if flag&os.O_TRUNC != 0 && len(n.data) > 0 {
		n.truncate(0)
	}
	return &memFile{fs: m, node: n, name: name, flag: flag}, nil
}

// MkdirAll makes a folder and what is missing above it.
func (m *Mem) MkdirAll(name string, _ os.FileMode) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	n := m.root
	for _, part := range parts(name) {
		if !n.isDir() {
			return pathError("mkdir", name, syscall.ENOTDIR)
		}
		next, ok := n.entries[part]
		if !ok {
			next = newFolder()
			m.change(dirEdit{n, part, next})
		}
		n = next
	}
	if !n.isDir() {
		return pathError("mkdir", name, syscall.ENOTDIR)
	}
	return nil
}

// Rename moves a file or a folder.
func (m *Mem) Rename(oldPath, newPath string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	oldDir, oldName, err := m.parent(oldPath)
	if err != nil {
		return pathError("rename", oldPath, err)
	}
	newDir, newName, err := m.parent(newPath)
	if err != nil {
		return pathError("rename", newPath, err)
	}
	n, ok := oldDir.entries[oldName]
	if !ok {
		return pathError("rename", oldPath, fs.ErrNotExist)
	}
	if there, ok := newDir.entries[newName]; ok && (n.isDir() || there.isDir()) {
		return pathError("rename", newPath, fs.ErrExist)
	}
	m.change(dirEdit{oldDir, oldName, nil}, dirEdit{newDir, newName, n})
	return nil
}

// Remove removes a file or an empty folder.
func (m *Mem) Remove(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if err != nil {
		return pathError("remove", name, err)
	}
	n, ok := dir.entries[base]
	if !ok {
		return pathError("remove", name, fs.ErrNotExist)
	}
	if n.isDir() && len(n.entries) > 0 {
		return pathError("remove", name, syscall.ENOTEMPTY)
	}
	m.change(dirEdit{dir, base, nil})
	return nil
}

// RemoveAll removes a tree.
func (m *Mem) RemoveAll(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, base, err := m.parent(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return pathError("removeall", name, err)
	}
	if n, ok := dir.entries[base]; ok {
		m.removeTree(dir, base, n)
	}
	return nil
}

func (m *Mem) removeTree(dir *memNode, base string, n *memNode) {
	for _, name := range sortedNames(n.entries) {
		m.removeTree(n, name, n.entries[name])
	}
	m.change(dirEdit{dir, base, nil})
}

func sortedNames(entries map[string]*memNode) []string {
	names := make([]string, 0, len(entries))
	for name := range entries {
		names = append(names, name)
	}
	sort.Strings(names)
	return names
}

// ReadDir lists a folder.
func (m *Mem) ReadDir(name string) ([]fs.DirEntry, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.find(name)
	if err == nil && !n.isDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("readdir", name, err)
	}
	list := make([]fs.DirEntry, 0, len(n.entries))
	for _, base := range sortedNames(n.entries) {
		list = append(list, fs.FileInfoToDirEntry(n.entries[base].info(base)))
	}
	return list, nil
}

// Stat describes a file or folder.
func (m *Mem) Stat(name string) (fs.FileInfo, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.find(name)
	if err != nil {
		return nil, pathError("stat", name, err)
	}
	return n.info(path.Base(name)), nil
}

// SyncDir makes the names in the folder durable.
func (m *Mem) SyncDir(name string) error {
	m.mu.Lock()
	defer m.mu.Unlock()
	dir, err := m.find(name)
	if err == nil && !dir.isDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return pathError("syncdir", name, err)
	}
	kept := m.pending[:0]
	for _, change := range m.pending {
		if !change.touches(dir) {
			kept = append(kept, change)
			continue
		}
		for _, e := range change {
			e.apply(e.dir.durable)
		}
	}
	clear(m.pending[len(kept):])
	m.pending = kept
	return nil
}

func (c dirChange) touches(dir *memNode) bool {
	for _, e := range c {
		if e.dir == dir {
			return true
		}
	}
	return false
}

// Hold keeps hold of a folder.
func (m *Mem) Hold(name string) (Place, error) {
	m.mu.RLock()
	defer m.mu.RUnlock()
	n, err := m.find(name)
	if err == nil && !n.isDir() {
		err = syscall.ENOTDIR
	}
	if err != nil {
		return nil, pathError("open", name, err)
	}
	return memPlace{fs: m, node: n, name: name}, nil
}

type memPlace struct {
	fs   *Mem
	node *memNode
	name string
}

func (p memPlace) InPlace() error { return p.fs.inPlace(p.node, p.name) }
func (p memPlace) Close() error   { return nil }

func (m *Mem) inPlace(n *memNode, name string) error {
	m.mu.RLock()
	defer m.mu.RUnlock()
	if there, err := m.find(name); err != nil || there != n {
		return pathError("find", name, ErrGone)
	}
	return nil
}

// leadsTo tells whether a file is anywhere below a folder. Call with mu held.
func (n *memNode) leadsTo(file *memNode) bool {
	for _, e := range n.entries {
		if e == file || e.leadsTo(file) {
			return true
		}
	}
	return false
}

type memInfo struct {
	name string
	size int64
	mode fs.FileMode
	mod  time.Time
}

func (n *memNode) info(name string) memInfo {
	return memInfo{name: name, size: int64(len(n.data)), mode: n.mode, mod: n.modTime}
}

func (i memInfo) Name() string       { return i.name }
func (i memInfo) Size() int64        { return i.size }
func (i memInfo) Mode() fs.FileMode  { return i.mode }
func (i memInfo) ModTime() time.Time { return i.mod }
func (i memInfo) IsDir() bool        { return i.mode.IsDir() }
func (i memInfo) Sys() any           { return nil }

// memFile is an open file. Its node stays when the name is removed.
type memFile struct {
	fs     *Mem
	node   *memNode
	name   string
	flag   int
	closed bool // guarded by fs.mu
}

func (f *memFile) Name() string        { return f.name }
func (f *memFile) Fd() (uintptr, bool) { return 0, false }

func (f *memFile) InPlace(name string) error { return f.fs.inPlace(f.node, name) }

func (f *memFile) Linked() error {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if !f.fs.root.leadsTo(f.node) {
		return pathError("find", f.name, ErrGone)
	}
	return nil
}

func (f *memFile) ReadAt(p []byte, off int64) (int, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if f.closed {
		return 0, pathError("read", f.name, fs.ErrClosed)
	}
	if off < 0 {
		return 0, pathError("read", f.name, fs.ErrInvalid)
	}
	if off >= int64(len(f.node.data)) {
		return 0, io.EOF
	}
	n := copy(p, f.node.data[off:])
	if n < len(p) {
		return n, io.EOF
	}
	return n, nil
}

func (f *memFile) writable(op string) error {
	if f.closed {
		return pathError(op, f.name, fs.ErrClosed)
	}
	if f.flag&(os.O_WRONLY|os.O_RDWR) == 0 {
		return pathError(op, f.name, syscall.EBADF)
	}
	return nil
}

func (f *memFile) WriteAt(p []byte, off int64) (int, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.writable("write"); err != nil {
		return 0, err
	}
	if f.flag&os.O_APPEND != 0 {
		return 0, pathError("write", f.name, errors.New("WriteAt on a file opened with O_APPEND"))
	}
	f.node.write(p, off)
	return len(p), nil
}

func (f *memFile) Writev(bufs [][]byte) (int64, error) {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.writable("writev"); err != nil {
		return 0, err
	}
	if f.flag&os.O_APPEND == 0 {
		return 0, pathError("writev", f.name, errors.New("the file was opened without O_APPEND"))
	}
	var all []byte
	for _, b := range bufs {
		all = append(all, b...)
	}
	f.node.write(all, int64(len(f.node.data)))
	return int64(len(all)), nil
}

func (f *memFile) Truncate(size int64) error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if err := f.writable("truncate"); err != nil {
		return err
	}
	f.node.truncate(size)
	return nil
}

func (f *memFile) Datasync() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return pathError("datasync", f.name, fs.ErrClosed)
	}
	for _, c := range f.node.changes {
		f.node.synced = c.apply(f.node.synced)
	}
	f.node.changes = nil
	return nil
}

func (f *memFile) Sync() error { return f.Datasync() }

func (f *memFile) Size() (int64, error) {
	f.fs.mu.RLock()
	defer f.fs.mu.RUnlock()
	if f.closed {
		return 0, pathError("size", f.name, fs.ErrClosed)
	}
	return int64(len(f.node.data)), nil
}

func (f *memFile) Close() error {
	f.fs.mu.Lock()
	defer f.fs.mu.Unlock()
	if f.closed {
		return pathError("close", f.name, fs.ErrClosed)
	}
	f.closed = true
	return nil
}

func (n *memNode) write(p []byte, off int64) {
	n.record(memChange{off: off, data: append([]byte{}, p...)})
}

func (n *memNode) truncate(size int64) {
	n.record(memChange{off: size, truncate: true})
}

func (n *memNode) record(c memChange) {
	n.data = c.apply(n.data)
	n.changes = append(n.changes, c)
	n.modTime = time.Now()
}

// apply makes the change to the contents. It may change b in place.
func (c memChange) apply(b []byte) []byte {
	if end := c.off + int64(len(c.data)); end > int64(len(b)) {
		b = append(b, make([]byte, end-int64(len(b)))...)
	}
	if c.truncate {
		return b[:c.off]
	}
	copy(b[c.off:], c.data)
	return b
}
