package clock

import (
	"context"
	"testing"
	"time"

	"sidestream/discovery"
)

// A machine without NTP takes the word of another broker's, which has it; not of
// one that it shares the machine with, not an old one, and not of one that has it
// from others.
func TestPeersAreWitnesses(t *testing.T) {
	store, err := discovery.NewMemory(discovery.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	tell := func(broker int32, told discovery.ToldTime) {
		t.Helper()
		told.Writer = discovery.NewNonce()
		if _, err := store.Commit(t.Context(), discovery.Set(discovery.KeyClock(broker), discovery.Encode(told))); err != nil {
			t.Fatal(err)
		}
	}
	m := newMachine()
	now := m.now.wall
	tell(1, discovery.ToldTime{At: now - 30*day, Boot: "b"})
	c := Open(Options{Dir: t.TempDir(), machine: m, Kernel: unsynchronised, Fresh: func() bool { return false },
		Remotes: []Remote{Store(store), peers(store, m)}})
	look := func(what string, believed bool) {
		t.Helper()
		c.ask(t.Context())
		if c.look(); (c.Doubt() == "") != believed {
			t.Errorf("%s: doubted because %q", what, c.Doubt())
		}
		if _, ok := c.Told(); ok {
			t.Errorf("%s: it tells others what it has from others", what)
		}
	}
	look("what is there was told at some time", false)
	look("nothing new", false)
	tell(2, discovery.ToldTime{At: now, Boot: "a"})
	look("the same machine", false)
	tell(1, discovery.ToldTime{At: now - hour/4, Boot: "b"})
	look("another machine", true)

	c = Open(Options{Dir: t.TempDir(), machine: m, Kernel: func() (time.Time, bool) { return time.UnixMilli(now), true }})
	if told, ok := c.Told(); !ok || told.Boot != "a" || told.At < now || told.At > now+hour/60 {
		t.Errorf("with the kernel as its witness it tells %+v, %v", told, ok)
	}
}

// The embedded store has no clock of its own.
func TestTheMemoryStoreIsNoWitness(t *testing.T) {
	store, err := discovery.NewMemory(discovery.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer store.Close()
	if at, ok := Store(store).Ask(context.Background()); ok {
		t.Errorf("it says %v", at)
	}
}
