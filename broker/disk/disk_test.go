package disk

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"strings"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"
)

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

func create(t testing.TB, fsys FS, name string, flag int) File {
	t.Helper()
	f, err := fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|flag, 0o644)
	must(t, err)
	t.Cleanup(func() { _ = f.Close() })
	return f
}

func writev(t testing.TB, f File, parts ...string) {
	t.Helper()
	var bufs [][]byte
	total := int64(0)
	for _, p := range parts {
		bufs = append(bufs, []byte(p))
		total += int64(len(p))
	}
	n, err := f.Writev(bufs)
	must(t, err)
	if n != total {
		t.Fatalf("wrote %d of %d", n, total)
	}
}

func contents(t testing.TB, fsys FS, name string) string {
	t.Helper()
	b, err := ReadFile(fsys, name)
	must(t, err)
	return string(b)
}

// Both file systems behave alike.
func TestConformance(t *testing.T) {
	for name, newFS := range map[string]func(t *testing.T) (FS, string){
		"os":     func(t *testing.T) (FS, string) { return OS, t.TempDir() },
		"mem":    func(*testing.T) (FS, string) { return NewMem(), "" },
		"faults": func(*testing.T) (FS, string) { return WithFaults(NewMem(), func(Op) error { return nil }), "" },
	} {
		t.Run(name, func(t *testing.T) { conform(t, newFS) })
	}
}

func conform(t *testing.T, makeFS func(t *testing.T) (FS, string)) {
	fsys, root := makeFS(t)
	dir := root + "/a/b"
	must(t, fsys.MkdirAll(dir, 0o755))
	must(t, fsys.MkdirAll(dir, 0o755))
	f := create(t, fsys, dir+"/f", os.O_APPEND)
	writev(t, f, "one", "", "two")
	writev(t, f)
	writev(t, f, "three")
	if got := contents(t, fsys, dir+"/f"); got != "onetwothree" {
		t.Fatalf("appended %q", got)
	}
	must(t, f.Truncate(4))
	writev(t, f, "X")
	if got := contents(t, fsys, dir+"/f"); got != "onetX" {
		t.Fatalf("after truncation and append %q", got)
	}
	if size, err := f.Size(); err != nil || size != 5 {
		t.Fatalf("size %d, %v", size, err)
	}
	must(t, f.Datasync())
	must(t, f.Sync())
	b := make([]byte, 10)
	if n, err := f.ReadAt(b, 3); n != 2 || err != io.EOF {
		t.Fatalf("read over the end: %d, %v", n, err)
	}
	if n, err := f.ReadAt(b, 50); n != 0 || err != io.EOF {
		t.Fatalf("read behind the end: %d, %v", n, err)
	}
	if _, err := f.WriteAt([]byte("x"), 0); err == nil {
		t.Error("WriteAt on an appending file")
	}
	g := create(t, fsys, dir+"/g", 0)
	if _, err := g.WriteAt([]byte("zz"), 3); err != nil {
		t.Fatal(err)
	}
	if got := contents(t, fsys, dir+"/g"); got != "\x00\x00\x00zz" {
		t.Fatalf("written behind the end: %q", got)
	}
	if _, err := g.Writev([][]byte{{1}}); err == nil {
		t.Error("Writev on a file without O_APPEND")
	}
	readOnly, err := fsys.OpenFile(dir+"/g", os.O_RDONLY, 0)
	must(t, err)
	if err := readOnly.Truncate(0); err == nil {
		t.Error("truncation of a file opened for reading")
	}
	must(t, readOnly.Close())
	if _, err := readOnly.ReadAt(b, 0); !errors.Is(err, fs.ErrClosed) {
		t.Errorf("read of a closed file: %v", err)
	}

	// Names.
	must(t, fsys.Rename(dir+"/g", dir+"/f")) // f is replaced, and stays readable where it is open
	if n, _ := f.ReadAt(b, 0); string(b[:n]) != "onetX" {
		t.Errorf("a replaced open file has %q", b[:n])
	}
	list, err := fsys.ReadDir(dir)
	must(t, err)
	if len(list) != 1 || list[0].Name() != "f" {
		t.Fatalf("listed %v", list)
	}
	info, err := fsys.Stat(dir + "/f")
	must(t, err)
	if info.Size() != 5 || info.IsDir() || info.ModTime().IsZero() {
		t.Errorf("stat %v", info)
	}
	if err := fsys.Remove(dir); err == nil {
		t.Error("removed a folder that is not empty")
	}
	must(t, fsys.Rename(root+"/a/b", root+"/a/c"))
	must(t, fsys.SyncDir(root+"/a"))
	must(t, fsys.Remove(root+"/a/c/f"))
	for _, err := range []error{
		fsys.Remove(root + "/a/c/f"), fsys.Rename(root+"/none", root+"/x"), fsys.SyncDir(root + "/none"),
		second(fsys.Stat(root + "/none")), second(fsys.ReadDir(root + "/none")),
		second(fsys.OpenFile(root+"/none/f", os.O_RDWR|os.O_CREATE, 0o644)), second(fsys.OpenFile(root+"/none", os.O_RDONLY, 0)),
	} {
		if !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("got %v, want ErrNotExist", err)
		}
	}
	if _, err := fsys.OpenFile(root+"/a", os.O_RDWR, 0); err == nil {
		t.Error("opened a folder")
	}
	must(t, WriteFileAtomic(fsys, root+"/a", root+"/a/h", []byte("first")))
	must(t, WriteFileAtomic(fsys, root+"/a", root+"/a/h", []byte("2nd")))
	if got := contents(t, fsys, root+"/a/h"); got != "2nd" {
		t.Errorf("replaced with %q", got)
	}
	if _, err := fsys.OpenFile(root+"/a/h", os.O_RDWR|os.O_CREATE|os.O_EXCL, 0o644); !errors.Is(err, fs.ErrExist) {
		t.Errorf("exclusive creation: %v", err)
	}
	must(t, fsys.RemoveAll(root+"/a"))
	must(t, fsys.RemoveAll(root+"/a"))
	if _, err := fsys.Stat(root + "/a"); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("after RemoveAll: %v", err)
	}
}

func second[T any](_ T, err error) error { return err }

func TestDescriptor(t *testing.T) {
	f := create(t, OS, t.TempDir()+"/f", os.O_APPEND)
	fd, ok := f.Fd()
	if !ok {
		t.Fatal("a real file has a descriptor")
	}
	if n, err := unix.Write(int(fd), []byte("direct")); n != 6 || err != nil {
		t.Fatal(n, err)
	}
	if size, _ := f.Size(); size != 6 {
		t.Errorf("%d bytes", size)
	}
	if _, ok := create(t, NewMem(), "/f", 0).Fd(); ok {
		t.Error("a file in memory has no descriptor")
	}
}

// writev(2) may write a part, be interrupted, and takes 1,024 buffers at most.
func TestWriteVectors(t *testing.T) {
	var bufs [][]byte
	var want []byte
	for i := range 3000 {
		b := bytes.Repeat([]byte{byte(i)}, i%5)
		bufs = append(bufs, b)
		want = append(want, b...)
	}
	for _, most := range []int{3, 100, 5000, 1 << 20} {
		var got []byte
		calls := 0
		n, err := writeVectors(bufs, func(iovs [][]byte) (int, error) {
			if calls++; calls%3 == 0 {
				return -1, unix.EINTR
			}
			if len(iovs) > maxVectors {
				return 0, unix.EINVAL
			}
			part := bytes.Join(iovs, nil)
			part = part[:min(len(part), most)]
			got = append(got, part...)
			return len(part), nil
		})
		if err != nil || n != int64(len(want)) || !bytes.Equal(got, want) {
			t.Errorf("at most %d a call: wrote %d of %d, %v", most, n, len(want), err)
		}
	}
	n, err := writeVectors([][]byte{[]byte("abc"), []byte("def")}, func(iovs [][]byte) (int, error) {
		if len(iovs[0]) == 3 && len(iovs) == 2 {
			return 4, nil
		}
		return 0, unix.ENOSPC
	})
	if n != 4 || !errors.Is(err, unix.ENOSPC) {
		t.Errorf("full in the middle: %d, %v", n, err)
	}
	if n, err := writeVectors([][]byte{[]byte("abc")}, func([][]byte) (int, error) { return 0, nil }); n != 0 || err == nil {
		t.Errorf("nothing written: %d, %v", n, err)
	}
}

func TestFaults(t *testing.T) {
	var fail OpKind
	rule := func(op Op) error {
		if op.Kind == fail {
			return ShortWrite(2, syscall.EIO)
		}
		return nil
	}
	m := NewMem()
	fsys := WithFaults(m, rule)
	f := create(t, fsys, "/f", os.O_APPEND)
	g := create(t, fsys, "/g", 0)
	for kind, do := range map[OpKind]func() error{
		OpOpen:     func() error { return second(fsys.OpenFile("/f", os.O_RDONLY, 0)) },
		OpMkdir:    func() error { return fsys.MkdirAll("/d", 0o755) },
		OpRename:   func() error { return fsys.Rename("/f", "/h") },
		OpRemove:   func() error { return errors.Join(fsys.Remove("/f"), fsys.RemoveAll("/f")) },
		OpReadDir:  func() error { return second(fsys.ReadDir("/")) },
		OpStat:     func() error { return second(fsys.Stat("/f")) },
		OpSyncDir:  func() error { return fsys.SyncDir("/") },
		OpRead:     func() error { return second(f.ReadAt(make([]byte, 1), 0)) },
		OpTruncate: func() error { return f.Truncate(0) },
		OpDatasync: func() error { return f.Datasync() },
		OpSync:     func() error { return f.Sync() },
		OpClose:    func() error { return create(t, fsys, "/x", 0).Close() },
	} {
		fail = kind
		if err := do(); !errors.Is(err, syscall.EIO) {
			t.Errorf("%s: %v, want EIO", kind, err)
		}
	}
	fail = OpWrite
	if n, err := f.Writev([][]byte{[]byte("a"), []byte("bcd")}); n != 2 || !errors.Is(err, syscall.EIO) {
		t.Errorf("short writev: %d, %v", n, err)
	}
	if n, err := g.WriteAt([]byte("xyz"), 0); n != 2 || !errors.Is(err, syscall.EIO) {
		t.Errorf("short write: %d, %v", n, err)
	}
	if a, b := contents(t, m, "/f"), contents(t, m, "/g"); a != "ab" || b != "xy" {
		t.Errorf("stored %q and %q", a, b)
	}
}

func TestBudget(t *testing.T) {
	b := NewBudget(10)
	fsys := WithFaults(NewMem(), b.Rule)
	f := create(t, fsys, "/f", os.O_APPEND)
	writev(t, f, "12345678")
	if n, err := f.Writev([][]byte{[]byte("abcd")}); n != 2 || !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("over the limit: %d, %v", n, err)
	}
	if _, err := fsys.OpenFile("/g", os.O_RDWR|os.O_CREATE, 0o644); !errors.Is(err, syscall.ENOSPC) {
		t.Errorf("creation on a full disk: %v", err)
	}
	b.Free(4)
	writev(t, f, "wxyz")
	if got := contents(t, fsys, "/f"); got != "12345678abwxyz" {
		t.Errorf("stored %q", got)
	}
}

// What is synced is there after a power cut, what is not may be there in part.
func TestCrash(t *testing.T) {
	m := NewMem()
	must(t, m.MkdirAll("/d", 0o755))
	must(t, m.SyncDir("/"))
	f := create(t, m, "/d/f", os.O_APPEND)
	must(t, m.SyncDir("/d"))
	writev(t, f, "synced")
	must(t, f.Datasync())
	unsynced := strings.Repeat("u", 2*sector)
	writev(t, f, unsynced)
	writev(t, f, "more")
	create(t, m, "/d/new", 0)
	must(t, m.Rename("/d/f", "/d/moved"))
	seen := map[string]bool{}
	for seed := range uint64(300) {
		c := m.Crash(seed)
		name := "/d/f"
		if _, err := c.Stat(name); err != nil {
			name = "/d/moved"
			seen["moved"] = true
			if _, err := c.Stat("/d/f"); err == nil {
				t.Fatal("both names are there")
			}
		} else {
			seen["not moved"] = true
		}
		if _, err := c.Stat("/d/new"); err == nil {
			seen["new"] = true
		} else {
			seen["not new"] = true
		}
		got := contents(t, c, name)
		if !strings.HasPrefix(got, "synced") {
			t.Fatalf("seed %d: lost what was synced: %q", seed, got[:min(10, len(got))])
		}
		whole := "synced" + unsynced + "more"
		switch {
		case got == whole:
			seen["all kept"] = true
		case got == "synced":
			seen["all lost"] = true
		case strings.HasPrefix(whole, got):
			seen["cut"] = true
		case strings.Contains(got, "\x00"):
			seen["holes"] = true
		default:
			t.Fatalf("seed %d: %q", seed, got)
		}
		if again := contents(t, m.Crash(seed), name); again != got {
			t.Fatalf("seed %d gives two outcomes", seed)
		}
		if later := contents(t, c.Crash(seed+7), name); later != got {
			t.Fatalf("seed %d: a second cut changed what was left", seed)
		}
	}
	for _, want := range []string{"moved", "not moved", "new", "not new", "all kept", "all lost", "cut", "holes"} {
		if !seen[want] {
			t.Errorf("no seed gave %q", want)
		}
	}
	if got := contents(t, m, "/d/moved"); len(got) != 6+len(unsynced)+4 {
		t.Error("the original was changed")
	}
}

// A replacement that was interrupted has left the old or the new contents.
func TestCrashDuringReplacement(t *testing.T) {
	m := NewMem()
	must(t, WriteFileAtomic(m, "/", "/f", []byte("old contents")))
	ops := 0
	var images []*Mem
	fsys := WithFaults(m, func(op Op) error {
		if op.Kind.Mutates() {
			ops++
			for seed := range uint64(30) {
				images = append(images, m.Crash(seed))
			}
		}
		return nil
	})
	must(t, WriteFileAtomic(fsys, "/", "/f", []byte("new")))
	seen := map[string]bool{}
	for _, image := range images {
		seen[contents(t, image, "/f")] = true
	}
	if len(seen) != 2 || !seen["old contents"] || !seen["new"] {
		t.Errorf("saw %v in %d operations", seen, ops)
	}
	for seed := range uint64(50) {
		if got := contents(t, m.Crash(seed), "/f"); got != "new" {
			t.Fatalf("after it returned: %q", got)
		}
	}
}

func TestTree(t *testing.T) {
	m := NewMem()
	must(t, m.MkdirAll("/a/b", 0o755))
	writev(t, create(t, m, "/a/b/f", os.O_APPEND), "xyz")
	if got := fmt.Sprint(m.Tree()); got != "[/a/b/f 3]" {
		t.Error(got)
	}
}
