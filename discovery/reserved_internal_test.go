package discovery

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// mountSmall mounts a real file system of one megabyte.
func mountSmall(t *testing.T) string {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("mounting a small file system needs root")
	}
	dir := t.TempDir()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=1m"); err != nil {
		t.Skipf("this machine does not let root mount a tmpfs: %v", err)
	}
	t.Cleanup(func() {
		if err := syscall.Unmount(dir, syscall.MNT_DETACH); err != nil {
			t.Error(err)
		}
	})
	return dir
}

// fillUp takes all the room that is left; the returned function gives it back.
func fillUp(t *testing.T, dir string) (free func()) {
	t.Helper()
	path := filepath.Join(dir, "other data")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	for size := 64 << 10; size > 0; {
		if _, err := f.Write(make([]byte, size)); err != nil {
			if !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
			size /= 2
		}
	}
	return func() {
		if err := os.Remove(path); err != nil {
			t.Fatal(err)
		}
	}
}

func wantText(t *testing.T, path, want string) {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.TrimRight(string(b), " "); got != want {
		t.Fatalf("the file has %d bytes that are not %d bytes of %.20q…: %.60q…", len(got), len(want), want, got)
	}
}

func text(letter string, n int) string { return strings.Repeat(letter, n) }

// On a full file system texts up to the reservation replace each other, again
// and after further starts; a longer one is refused and leaves the last.
func TestReservedFileOnAFullFileSystem(t *testing.T) {
	dir := mountSmall(t)
	path := filepath.Join(dir, "s.json")
	r, err := openReserved(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := r.write([]byte(text("a", 50_000))); err != nil {
		t.Fatal(err)
	}
	if err := r.write([]byte(text("b", 100))); err != nil {
		t.Fatal(err)
	}
	free := fillUp(t, dir)
	for i, n := range []int{3000, 60_000, 10, 200_000, 64 << 10, 1, 0, 150_000, 200} {
		if i%3 == 2 { // a crash
			if r, err = openReserved(path); err != nil && !errors.Is(err, syscall.ENOSPC) {
				t.Fatal(err)
			}
		}
		want := text(string(rune('c'+i)), n)
		if n > 128<<10 {
			last, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if err := r.write([]byte(want)); !errors.Is(err, syscall.ENOSPC) {
				t.Fatalf("%d bytes: %v, want that there is no room", n, err)
			}
			want = strings.TrimRight(string(last), " ")
		} else if err := r.write([]byte(want)); err != nil {
			t.Fatalf("%d bytes: %v", n, err)
		}
		wantText(t, path, want)
	}
	free()
	if err := r.write([]byte(text("x", 200_000))); err != nil {
		t.Fatal(err)
	}
	wantText(t, path, text("x", 200_000))
	fillUp(t, dir)
	for range 3 {
		if err := r.write([]byte(text("y", 380_000))); err != nil {
			t.Fatalf("less than twice the text of before: %v", err)
		}
		wantText(t, path, text("y", 380_000))
		if err := r.write([]byte(text("z", 200_000))); err != nil {
			t.Fatal(err)
		}
		wantText(t, path, text("z", 200_000))
	}
}

// Starts do not make the files grow.
func TestReservedFileKeepsItsSize(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.json")
	for i := range 6 {
		r, err := openReserved(path)
		if err != nil {
			t.Fatal(err)
		}
		if err := r.write([]byte(text("a", 100+i))); err != nil {
			t.Fatal(err)
		}
		wantText(t, path, text("a", 100+i))
		if info, err := os.Stat(path + spareSuffix); err != nil || info.Size() != reserveStep {
			t.Fatalf("start %d: the spare is %v, %v", i, info.Size(), err)
		}
	}
}

// Where names cannot be exchanged the file is replaced as usual.
func TestReservedFileWithoutExchange(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.json")
	for _, refusal := range []error{errors.ErrUnsupported, syscall.ENOSYS, syscall.EINVAL} {
		r, err := openReserved(path)
		if err != nil {
			t.Fatal(err)
		}
		r.exchange = func(string, string) error { return refusal }
		for _, want := range []string{text("a", 100_000), "b", text("c", 70_000)} {
			if err := r.write([]byte(want)); err != nil {
				t.Fatal(err)
			}
			wantText(t, path, want)
		}
	}
	r, err := openReserved(path)
	if err != nil {
		t.Fatal(err)
	}
	r.exchange = func(string, string) error { return syscall.EIO }
	if err := r.write([]byte("d")); !errors.Is(err, syscall.EIO) {
		t.Fatalf("the disk failed, and write said %v", err)
	}
	wantText(t, path, text("c", 70_000))
}

// A store on a full disk takes commits and has them after a crash, also when
// its snapshot is of a version that reserved nothing.
func TestMemoryOnAFullFileSystem(t *testing.T) {
	dir := mountSmall(t)
	path := filepath.Join(dir, "discovery.json")
	old, err := json.Marshal(snapshot{Format: 1, Index: 5, Keys: []snapshotEntry{{Key: "epoch", Value: []byte{0}, Version: 3, Created: 3}}})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, old, 0o600); err != nil {
		t.Fatal(err)
	}
	ctx := context.Background()
	fill := func() {}
	for life := byte(1); life < 6; life++ {
		m, err := NewMemory(MemoryOptions{SnapshotPath: path})
		if err != nil {
			t.Fatal(err)
		}
		e, err := m.Get(ctx, "epoch")
		if err != nil || !bytes.Equal(e.Value, []byte{life - 1}) {
			t.Fatalf("life %d: the epoch is %v, %v", life, e.Value, err)
		}
		if life == 1 {
			fill = fillUp(t, dir)
		}
		if _, err := m.Commit(ctx, CAS("epoch", []byte{life}, e.Version)); err != nil {
			t.Fatalf("life %d: %v", life, err)
		}
		// More than is reserved is refused, and the store goes on with the rest.
		if _, err := m.Commit(ctx, Set("large", make([]byte, 60<<10)), Set("larger", make([]byte, 60<<10))); !errors.Is(err, ErrUnknownOutcome) || !errors.Is(err, syscall.ENOSPC) {
			t.Fatalf("life %d: a large commit on a full disk: %v", life, err)
		}
		m.Close()
	}
	fill()
}
