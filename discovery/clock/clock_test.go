package clock

import (
	"bytes"
	"context"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// fakeMachine is a machine whose clocks the test moves.
type fakeMachine struct {
	mu     sync.Mutex // guards what follows
	now    reading
	synced bool
	kernel int64
}

func (m *fakeMachine) read() reading {
	m.mu.Lock()
	defer m.mu.Unlock()
	return m.now
}

// wall is the fake clock's, gone on by what passed since the test began, which
// is nothing to speak of.
func (m *fakeMachine) wall(time.Time) int64 { return m.read().wall }

func (m *fakeMachine) synchronised() (time.Time, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	return time.UnixMilli(m.kernel), m.synced
}

func (m *fakeMachine) set(change func(*fakeMachine)) {
	m.mu.Lock()
	defer m.mu.Unlock()
	change(m)
}

func unsynchronised() (time.Time, bool) { return time.Time{}, false }

func newMachine() *fakeMachine {
	return &fakeMachine{now: reading{wall: time.Now().UnixMilli(), up: 1000, boot: "a"}}
}

func TestClockOverRestarts(t *testing.T) {
	dir, m := t.TempDir(), newMachine()
	c := Open(Options{Dir: dir, machine: m, Kernel: m.synchronised})
	if c.Now().IsZero() || c.Alarm() != "" {
		t.Fatalf("a new folder's time is not believed: %q", c.Alarm())
	}
	begun := c.count.Time

	// The same start of the machine, an hour later, with the clock a year ahead.
	m.set(func(m *fakeMachine) { m.now.up += hour; m.now.wall += 365 * day })
	c = Open(Options{Dir: dir, machine: m, Kernel: m.synchronised, Fresh: func() bool { t.Error("asked although there is a count"); return true }})
	if !c.Now().IsZero() || !strings.Contains(c.Alarm(), "moved by 8759h") || c.count.Time != begun+hour {
		t.Errorf("believed: %v, %q, %d passed", c.Now(), c.Alarm(), c.count.Time-begun)
	}
	m.set(func(m *fakeMachine) { m.synced, m.kernel = true, m.now.wall })
	if c.look(); c.Now().IsZero() || c.count.Time != begun+hour {
		t.Errorf("the kernel was no witness: %q", c.Alarm())
	}
}

func TestClockOfAFolderThatHasNone(t *testing.T) {
	for name, prepare := range map[string]func(dir string){
		"data without a count": func(string) {},
		"a count that is torn": func(dir string) { _ = os.WriteFile(filepath.Join(dir, File), []byte(`{"time":17`), 0o600) },
		"a count of no time":   func(dir string) { _ = os.WriteFile(filepath.Join(dir, File), []byte(`{}`), 0o600) },
	} {
		t.Run(name, func(t *testing.T) {
			dir := t.TempDir()
			prepare(dir)
			c := Open(Options{Dir: dir, machine: newMachine(), Kernel: unsynchronised, Fresh: func() bool { return false }})
			if !c.Now().IsZero() || !strings.Contains(c.Alarm(), "not known") {
				t.Errorf("believed, %q", c.Alarm())
			}
			// Nor does a restart make it so.
			if c = Open(Options{Dir: dir, machine: newMachine(), Kernel: unsynchronised}); !c.Now().IsZero() {
				t.Error("believed after a restart")
			}
		})
	}
}

// One digit of the count flipped on the disk. With a witness there, everything was
// years older at once, and was deleted without a word.
func TestAFlippedDigitIsSeen(t *testing.T) {
	dir, m := t.TempDir(), newMachine()
	c := Open(Options{Dir: dir, machine: m, Kernel: m.synchronised})
	if err := c.save(); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, File)
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	name := []byte(`"time": `)
	at := bytes.Index(b, name) + len(name)
	b[at+1]++ // the second digit: centuries, or years
	if err := os.WriteFile(path, b, 0o600); err != nil {
		t.Fatal(err)
	}
	c = Open(Options{Dir: dir, machine: m, Kernel: m.synchronised, Fresh: func() bool { return false }})
	if !c.Now().IsZero() || !strings.Contains(c.Alarm(), "not known") {
		t.Errorf("believed: %v, %q", c.Now(), c.Alarm())
	}
	m.set(func(m *fakeMachine) { m.synced, m.kernel = true, m.now.wall })
	if c.look(); c.Now().UnixMilli() != m.now.wall {
		t.Errorf("a witness says %d, the folder's time is %v", m.now.wall, c.Now())
	}
}

// Another machine's clock is a witness, for and against.
func TestRemoteWitness(t *testing.T) {
	m := newMachine()
	var tells time.Time
	c := Open(Options{Dir: t.TempDir(), machine: m, Kernel: m.synchronised, Fresh: func() bool { return false }, Remotes: []Remote{
		{Name: "nobody's", Ask: func(context.Context) (time.Time, bool) { return time.Time{}, false }},
		{Name: "the store's", Ask: func(context.Context) (time.Time, bool) { return tells, true }},
	}})
	tells = time.UnixMilli(m.now.wall - 2*hour)
	c.ask(t.Context())
	if c.look(); !c.Now().IsZero() || !strings.Contains(c.Alarm(), "the store's says") {
		t.Errorf("believed against the store: %q", c.Alarm())
	}
	tells = time.UnixMilli(m.now.wall + hour/2)
	c.ask(t.Context())
	if c.look(); c.Now().IsZero() {
		t.Errorf("not believed with the store: %q", c.Alarm())
	}
}

// Between two looks the clock itself sees a jump.
func TestNowSeesAJump(t *testing.T) {
	c := Open(Options{Dir: t.TempDir(), machine: newMachine(), Kernel: unsynchronised})
	s := *c.now.Load()
	s.wall -= 2 * hour
	c.now.Store(&s)
	if !c.Now().IsZero() {
		t.Error("a clock that went ahead by two hours is believed")
	}
}

func TestRunKeepsTheCount(t *testing.T) {
	dir, m := t.TempDir(), newMachine()
	c := Open(Options{Dir: dir, machine: m, Kernel: m.synchronised})
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error)
	go func() { done <- c.Run(ctx) }()
	m.set(func(m *fakeMachine) { m.now.up += 7 * hour; m.now.wall += 7 * hour })
	cancel()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	kept, err := load(dir)
	if err != nil || kept.Up != 1000+7*hour || kept.Time != m.now.wall {
		t.Errorf("kept %+v, %v", kept, err)
	}
}
