package discovery_test

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	d "sidestream/discovery"
)

// The data folder of a running sidecar was removed, and a second one started in
// the same place: both were told that the folder is theirs.
func TestFolderGone(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+".aside") },
		"replaced": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".aside"), os.Mkdir(dir, 0o750))
		},
		"moved with what is above it": func(dir string) error { return os.Rename(filepath.Dir(dir), filepath.Dir(dir)+".aside") },
		"a file in its place": func(dir string) error {
			return errors.Join(os.RemoveAll(dir), os.WriteFile(dir, nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "above", "data")
			id, err := d.OpenIdentity(dir)
			if err != nil {
				t.Fatal(err)
			}
			defer id.Close()
			if mended, err := id.Check(); err != nil || len(mended) > 0 {
				t.Fatalf("before: %v, %v", mended, err)
			}
			if err := lose(dir); err != nil {
				t.Fatal(err)
			}
			if mended, err := id.Check(); !errors.Is(err, d.ErrFolderGone) || !strings.Contains(err.Error(), dir) {
				t.Fatalf("got %v, %v; want ErrFolderGone of %s", mended, err, dir)
			}
			if err := id.SetID("x"); !errors.Is(err, d.ErrFolderGone) {
				t.Fatalf("written to the folder in its place: %v", err)
			}
		})
	}
}

// The lock and the identity were removed and the folder stayed. A second process
// had no difficulty to start in it, and the next start was of another sidecar.
func TestFolderMended(t *testing.T) {
	dir := t.TempDir()
	id, err := d.OpenIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if err := id.SetID("s1"); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lock", "identity.json"} {
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
		if _, err := d.OpenIdentity(dir); !errors.Is(err, d.ErrFolderTaken) {
			t.Fatalf("without %s a second one opened it: %v", name, err)
		}
		if mended, err := id.Check(); err != nil || len(mended) != 1 || mended[0] != name {
			t.Fatalf("mended %v, %v; want %s", mended, err, name)
		}
		if mended, err := id.Check(); err != nil || len(mended) > 0 {
			t.Fatalf("and again: %v, %v", mended, err)
		}
	}
	var kept struct{ ID, Nonce string }
	if b, err := os.ReadFile(filepath.Join(dir, "identity.json")); err != nil || json.Unmarshal(b, &kept) != nil || kept.ID != "s1" || kept.Nonce != id.Nonce {
		t.Fatalf("the identity is %+v, %v", kept, err)
	}
	if err := id.Close(); err != nil {
		t.Fatal(err)
	}
	if id, err = d.OpenIdentity(dir); err != nil {
		t.Fatal(err)
	}
	id.Close()
}

// The lock file was removed, and a process that knows of no other lock took it.
func TestFolderTaken(t *testing.T) {
	dir := t.TempDir()
	id, err := d.OpenIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	lock := filepath.Join(dir, "lock")
	if err := os.Remove(lock); err != nil {
		t.Fatal(err)
	}
	f, err := os.Create(lock)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		t.Fatal(err)
	}
	if _, err := id.Check(); !errors.Is(err, d.ErrFolderTaken) {
		t.Fatalf("got %v, want ErrFolderTaken", err)
	}
	f.Close()
	if mended, err := id.Check(); err != nil || len(mended) != 1 {
		t.Fatalf("once it is free: %v, %v", mended, err)
	}
	if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte(`{"nonce":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := id.Check(); !errors.Is(err, d.ErrFolderTaken) {
		t.Fatalf("another identity: %v", err)
	}
}

// The folder of dev's snapshot was replaced by one in which another dev had begun:
// each overwrote the other's topics.
func TestSnapshotFolderGone(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "data")
	path := filepath.Join(dir, "discovery.json")
	m, err := d.NewMemory(d.MemoryOptions{SnapshotPath: path})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	commit(t, m, d.Set("a", nil))
	if err := errors.Join(os.Rename(dir, dir+".aside"), os.Mkdir(dir, 0o750)); err != nil {
		t.Fatal(err)
	}
	other, err := d.NewMemory(d.MemoryOptions{SnapshotPath: path})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	commit(t, other, d.Set("other", nil))
	if _, err := m.Commit(t.Context(), d.Set("b", nil)); !errors.Is(err, d.ErrUnknownOutcome) || !errors.Is(err, d.ErrFolderGone) {
		t.Fatalf("got %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), "other") {
		t.Fatalf("the other's snapshot is %s, %v", b, err)
	}
}
