package agent

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"

	"sidestream/discovery"
)

func copyIdentity(t *testing.T, from, to *storageHost, change func(string) string) {
	t.Helper()
	b, err := os.ReadFile(from.dir + "/identity.json")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to.dir+"/identity.json", []byte(change(string(b))), 0o600); err != nil {
		t.Fatal(err)
	}
}

func TestACopiedFolderIsRefused(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("t", 1)

	// The copy of a folder whose broker is alive.
	same := c.host("copy")
	copyIdentity(t, one, same, func(s string) string { return s })
	same.start(c)
	if err := same.wait(); !errors.Is(err, errCopy) || !strings.Contains(err.Error(), "one of the two folders is a copy") {
		t.Errorf("a copy with the same nonce ended with %v", err)
	}

	// Another folder that claims the same id.
	other := c.host("other")
	copyIdentity(t, one, other, func(s string) string { return strings.ReplaceAll(s, one.nonce(), "another-nonce") })
	other.start(c)
	if err := other.wait(); !errors.Is(err, discovery.ErrIDTaken) {
		t.Errorf("another folder with the id ended with %v", err)
	}
	if len(same.host.leading())+len(other.host.leading()) != 0 {
		t.Error("a refused broker led something")
	}
	if fmt.Sprint(one.leaders("t")) != "[1]" || one.liveSession() == nil {
		t.Error("the true broker was disturbed")
	}

	// The same folder, locked.
	twin := c.host("twin")
	twin.cfg.DataDir = one.dir
	twin.start(c)
	if err := twin.wait(); err == nil || !strings.Contains(err.Error(), "is in use by process") {
		t.Errorf("a second process on the folder ended with %v", err)
	}
}

// A copy that was started while the first could not be seen takes the id; the
// first, when it sees that, ends rather than serve the same partitions twice.
func TestTheFirstEndsWhenACopyTookItsID(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("t", 1)
	one.client.SetCut(true)
	lock := c.keys(discovery.KeyBroker(1))
	if err := c.store.DestroySession(context.Background(), lock[0].Session); err != nil {
		t.Fatal(err)
	}
	same := c.host("copy")
	copyIdentity(t, one, same, func(s string) string { return s })
	same.start(c)
	same.ready()
	one.client.SetCut(false)
	if err := one.wait(); !errors.Is(err, errCopy) {
		t.Errorf("the first ended with %v", err)
	}
}

func TestAnIDThatIsNotTheFolders(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.stop()
	one.cfg.ID = 7
	one.start(c)
	if err := one.wait(); err == nil || !strings.Contains(err.Error(), "is that of broker 1") {
		t.Errorf("got %v", err)
	}
	two := c.host("two")
	two.cfg.ID = 5
	two.start(c)
	two.ready()
	if two.ID() != 5 {
		t.Errorf("id %d; want the configured 5", two.ID())
	}
}

// An id given as a flag was not kept in the folder: a later start without it
// chose another id and left the partitions to a broker that there was no more,
// and then the right id was refused.
func TestAConfiguredIDIsKept(t *testing.T) {
	c := newTestCluster(t)
	one := c.host("one")
	one.cfg.ID = 7
	one.start(c)
	one.ready()
	one.create("t", 2)
	one.stop()
	one.cfg.ID = 0
	one.start(c)
	one.ready()
	if got := fmt.Sprint(one.leaders("t")); one.ID() != 7 || got != "[7 7]" || len(one.Alarms()) != 0 {
		t.Errorf("started without its id the folder is broker %d, leaders %s, alarms %q", one.ID(), got, one.Alarms())
	}

	// A copy of it while it runs is refused, though nobody gives it an id.
	same := c.host("copy")
	copyIdentity(t, one, same, func(s string) string { return s })
	same.start(c)
	if err := same.wait(); !errors.Is(err, errCopy) {
		t.Errorf("the copy of a running folder ended with %v", err)
	}

	// An id that is taken is not kept: the folder is free to be another's.
	other := c.host("other")
	other.cfg.ID = 7
	other.start(c)
	if err := other.wait(); !errors.Is(err, discovery.ErrIDTaken) {
		t.Errorf("another folder with the id ended with %v", err)
	}
	other.cfg.ID = 8
	other.start(c)
	other.ready()
}

// A folder with partitions that has lost its id is not given a new one, as it
// was: the error says which ids are meant.
func TestPartitionsWithoutAnID(t *testing.T) {
	c := newTestCluster(t)
	one := c.host("one")
	one.cfg.ID = 7
	one.start(c)
	one.ready()
	one.create("t", 2)
	one.stop()
	copyIdentity(t, one, one, func(s string) string { return strings.Replace(s, `"id": "7"`, `"id": ""`, 1) })
	one.cfg.ID = 0
	one.start(c)
	err := one.wait()
	if !errors.Is(err, errNoID) || !strings.Contains(err.Error(), "2 partitions") || !strings.Contains(err.Error(), "[7]") || !strings.Contains(err.Error(), "--id") {
		t.Fatalf("a folder without its id ended with %v", err)
	}
	one.cfg.ID = 7
	one.start(c)
	one.ready()
	if got := fmt.Sprint(one.leaders("t")); got != "[7 7]" {
		t.Errorf("with its id again, leaders are %s", got)
	}
}

// An id is never given again, though its broker is down and holds nothing.
func TestAnIDIsReserved(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.stop()
	two := c.host("two")
	two.start(c)
	two.ready()
	if two.ID() != 2 {
		t.Errorf("the second folder has id %d; want 2", two.ID())
	}
}
