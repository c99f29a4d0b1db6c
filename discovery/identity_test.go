package discovery_test

import (
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	d "sidestream/discovery"
)

func TestIdentity(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "made", "here")
	openIt := func() *d.Identity {
		t.Helper()
		id, err := d.OpenIdentity(dir)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	id := openIt()
	if id.ID != "" || id.ClusterID != "" || id.Nonce == "" {
		t.Fatalf("a new folder is %+v", id)
	}
	nonce := id.Nonce
	if err := id.SetID("7"); err != nil {
		t.Fatal(err)
	}
	if err := id.SetClusterID("c"); err != nil {
		t.Fatal(err)
	}

	_, err := d.OpenIdentity(dir)
	if err == nil {
		t.Fatal("a folder in use was opened")
	}
	for _, want := range []string{dir, fmt.Sprintf("process %d", os.Getpid())} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("the error %q does not name %q", err, want)
		}
	}

	for range 2 {
		if err := id.Close(); err != nil {
			t.Fatal(err)
		}
	}
	id = openIt()
	if id.ID != "7" || id.ClusterID != "c" || id.Nonce != nonce {
		t.Fatalf("opened again as %+v", id)
	}
	id.Close()
	if left, err := filepath.Glob(filepath.Join(dir, "*.tmp-*")); err != nil || len(left) > 0 {
		t.Fatalf("left behind: %v, %v", left, err)
	}

	for _, bad := range []string{"", "{", `{"id":"7"}`} {
		if err := os.WriteFile(filepath.Join(dir, "identity.json"), []byte(bad), 0o600); err != nil {
			t.Fatal(err)
		}
		if _, err := d.OpenIdentity(dir); err == nil || !strings.Contains(err.Error(), "identity.json") {
			t.Errorf("content %q: %v", bad, err)
		}
	}
	// A failure above leaves no lock behind.
	if err := os.Remove(filepath.Join(dir, "identity.json")); err != nil {
		t.Fatal(err)
	}
	id = openIt()
	defer id.Close()
	if id.Nonce == nonce {
		t.Fatal("a folder without identity has the nonce of the one before")
	}
}

func TestIdentityKeepsTheOldValueWhenTheFolderCannotBeWritten(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "d")
	id, err := d.OpenIdentity(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer id.Close()
	if err := os.RemoveAll(dir); err != nil {
		t.Fatal(err)
	}
	if err := id.SetID("1"); err == nil || id.ID != "" {
		t.Fatalf("set in a folder that is gone: %v, id %q", err, id.ID)
	}
}

func TestNonces(t *testing.T) {
	uuid := regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-4[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`)
	seen := map[string]bool{}
	for range 1000 {
		u, n := d.NewUUID(), d.NewNonce()
		if !uuid.MatchString(u) {
			t.Fatalf("UUID %q", u)
		}
		if len(n) != 26 || seen[u] || seen[n] {
			t.Fatalf("nonce %q, UUID %q", n, u)
		}
		seen[u], seen[n] = true, true
	}
}
