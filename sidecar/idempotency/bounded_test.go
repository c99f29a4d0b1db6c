package idempotency

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pgregory.net/rapid"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// later moves the clock that keys are timed by.
func (r *rig) later(d time.Duration) {
	r.Keys.mu.Lock()
	defer r.Keys.mu.Unlock()
	r.journal.clock.mu.Lock()
	defer r.journal.clock.mu.Unlock()
	r.journal.clock.base += d
}

func TestTheWindowEnds(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.Window = time.Hour })
	first, _, err := r.post("k")
	if err != nil {
		t.Fatal(err)
	}
	r.later(59 * time.Minute)
	if _, _, err := r.post("then"); err != nil { // the journal knows how late it is by what is written to it
		t.Fatal(err)
	}
	r.restart()
	if got, again, err := r.post("k"); err != nil || !again || got != first {
		t.Errorf("before its end: %+v, replayed %v, %v", got, again, err)
	}
	r.later(2 * time.Minute)
	if got, again, err := r.post("k"); err != nil || again || got == first {
		t.Errorf("after its end: %+v, replayed %v, %v", got, again, err)
	}
	r.later(2 * time.Hour)
	if _, _, err := r.post("other"); err != nil {
		t.Fatal(err)
	}
	r.restart()
	if s := r.Status(); s.Keys != 1 {
		t.Errorf("after a restart %d keys, want the one of now", s.Keys)
	}
}

// What is on its way is minded however long it takes.
func TestTheWindowDoesNotEndUnderway(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.Window = time.Hour })
	r.world.next(landsWritten)
	if _, _, err := r.post("k"); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatal(err)
	}
	r.later(2 * time.Hour)
	r.sweep()
	if _, _, err := r.post("k", quick); !isCode(err, api.CodeUnknownOutcome) || r.world.requests() != 1 {
		t.Errorf("%v, %d requests passed on", err, r.world.requests())
	}
	r.world.land()
}

func TestTheOldestMakeRoom(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.MaxKeys = 5 })
	r.world.next(landsWritten)
	if _, _, err := r.post("flying"); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatal(err)
	}
	for i := range 8 {
		if _, _, err := r.post(fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	known := func(when string, first int) {
		t.Helper()
		for i := range 8 {
			r.Keys.mu.Lock()
			_, ok := r.entries[keyDigest(fmt.Sprint("k", i))]
			r.Keys.mu.Unlock()
			if ok != (i >= first) {
				t.Errorf("%s: k%d is known: %v", when, i, ok)
			}
		}
		if n := r.Status().Keys; n != 5 {
			t.Errorf("%s: %d keys", when, n)
		}
	}
	known("with one on its way", 4)
	r.world.land()
	if _, again, err := r.post("flying"); err != nil || !again {
		t.Errorf("replayed %v, %v", again, err)
	}
	r.restart()
	known("after a restart", 3) // the oldest is the one that was on its way
}

func TestLargeAnswersMakeRoom(t *testing.T) {
	r := newRig(t, nil)
	r.Keys.cfg.MaxBytes = 50_000
	for i := range 6 {
		if _, _, err := r.batch(fmt.Sprint("b", i), 5000); err != nil {
			t.Fatal(err)
		}
	}
	if s := r.Status(); s.Bytes > 50_000 || s.Keys == 0 || s.Keys == 6 {
		t.Errorf("%+v", s)
	}
}

// The journal takes no more disk than what is remembered needs.
func TestTheJournalIsCutOff(t *testing.T) {
	r := newRig(t, func(c *Config, _ *Deps) { c.MaxKeys = 10 })
	r.journal.size = 64 << 10
	cfg := journalConfig()
	cfg.SegmentBytes = r.journal.size
	if err := r.journal.log.SetConfig(cfg); err != nil {
		t.Fatal(err)
	}
	for i := range 1500 {
		if _, _, err := r.post(fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
		if i%100 == 0 {
			r.sweep()
		}
	}
	r.sweep()
	if n := r.journal.log.Size(); n > 3*r.journal.size {
		t.Errorf("the journal has %d bytes", n)
	}
	r.crash(3)
	for i := 1490; i < 1500; i++ {
		if _, again, err := r.post(fmt.Sprint("k", i)); err != nil || !again {
			t.Errorf("k%d: replayed %v, %v", i, again, err)
		}
	}
}

// fullWhen is a disk that takes no more while full says so.
func fullWhen(full *atomic.Bool) func(disk.Op) error {
	return func(op disk.Op) error {
		if full.Load() && (op.Kind == disk.OpWrite || op.Kind == disk.OpOpen && op.Flag&os.O_CREATE != 0) {
			return syscall.ENOSPC
		}
		return nil
	}
}

// A request whose intent finds no room on the disk is refused, and nothing of it
// is sent; what is known stays known.
func TestFullDisk(t *testing.T) {
	var full atomic.Bool
	mem := disk.NewMem()
	r := newRig(t, func(_ *Config, d *Deps) { d.FS = disk.WithFaults(mem, fullWhen(&full)) })
	if _, _, err := r.post("k"); err != nil {
		t.Fatal(err)
	}
	full.Store(true)
	if _, _, err := r.post("k2"); !isCode(err, api.CodeDiskUnavailable) || !strings.Contains(err.Error(), "full") {
		t.Errorf("got %v", err)
	}
	if _, again, err := r.post("k"); err != nil || !again || r.world.total() != 1 {
		t.Errorf("replayed %v, %v, %d records", again, err, r.world.total())
	}
	if _, err := r.Publish(t.Context(), "t", publish.Message{}, publish.Options{Landed: func([]api.BatchResult) {}}); err != nil {
		t.Errorf("without a key: %v", err)
	}
	full.Store(false)
	if _, again, err := r.post("k2"); err != nil || again || r.Err() != nil {
		t.Errorf("with room again: replayed %v, %v, %v", again, err, r.Err())
	}
}

// A disk that becomes full between intent and fates makes no answer wrong.
func TestDiskFullAfterTheIntent(t *testing.T) {
	var full atomic.Bool
	r := newRig(t, nil)
	mem := r.fs
	if err := r.Keys.Close(); err != nil {
		t.Fatal(err)
	}
	r.deps.FS = disk.WithFaults(mem, fullWhen(&full))
	r.open()
	r.world.mu.Lock()
	r.world.before = func() { full.Store(true) }
	r.world.mu.Unlock()
	first, _, err := r.post("k")
	if err != nil {
		t.Fatal(err)
	}
	r.world.mu.Lock()
	r.world.before = nil
	r.world.mu.Unlock()
	r.crash(1)
	if got, again, err := r.post("k"); err != nil || !again || got != first {
		t.Errorf("%+v, replayed %v, %v; want %+v", got, again, err, first)
	}
}

// A failed sync may have lost what it says it kept, so the journal takes no more.
func TestAFailedSyncIsFinal(t *testing.T) {
	var fail atomic.Bool
	mem := disk.NewMem()
	broken := func(op disk.Op) error {
		if fail.Load() && op.Kind == disk.OpDatasync {
			return syscall.EIO
		}
		return nil
	}
	r := newRig(t, func(_ *Config, d *Deps) { d.FS = disk.WithFaults(mem, broken) })
	if _, _, err := r.post("k"); err != nil {
		t.Fatal(err)
	}
	fail.Store(true)
	for range 2 {
		if _, _, err := r.post("k2"); !isCode(err, api.CodeDiskUnavailable) {
			t.Errorf("got %v", err)
		}
		fail.Store(false)
	}
	if r.Err() == nil || r.Status().Error == "" || r.world.total() != 1 {
		t.Errorf("%v, %+v, %d records", r.Err(), r.Status(), r.world.total())
	}
	if err := r.Keys.Close(); err != nil && r.Err() == nil {
		t.Error(err)
	}
	r.deps.FS = mem
	r.open()
	if _, again, err := r.post("k"); err != nil || !again {
		t.Errorf("after a restart: replayed %v, %v", again, err)
	}
	if _, _, err := r.post("k2"); err != nil {
		t.Error(err)
	}
}

func TestDamageInTheJournalIsTold(t *testing.T) {
	r := newRig(t, nil)
	for i := range 50 {
		if _, _, err := r.post(fmt.Sprint("k", i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.Keys.Close(); err != nil {
		t.Fatal(err)
	}
	names, err := r.fs.ReadDir("/keys")
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range names {
		if !strings.HasSuffix(n.Name(), ".log") {
			continue
		}
		f, err := r.fs.OpenFile("/keys/"+n.Name(), 2, 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := f.WriteAt([]byte("damage"), 100); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(f.Sync(), f.Close()); err != nil {
			t.Fatal(err)
		}
	}
	r.open()
	again := 0
	for i := range 50 {
		_, replayed, err := r.post(fmt.Sprint("k", i))
		if err != nil {
			t.Fatal(err)
		}
		if replayed {
			again++
		}
	}
	if again < 45 || again == 50 {
		t.Errorf("%d of 50 keys are known, want all but one or two", again)
	}
	if r.Status().Damaged == 0 {
		t.Error("the damage is not told")
	}
}

// Whatever the disk does to the journal, a start makes the best of it.
func TestAnyDamageIsSurvived(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		r := &rig{t: t, world: newWorld(t), fs: disk.NewMem(), cfg: DefaultConfig()}
		r.deps = Deps{Dir: "/keys", Nonce: "n", Brokers: r.world, Timeout: 10 * time.Second, MaxTimeout: time.Minute, quiet: time.Millisecond, FS: r.fs}
		r.open()
		for i := range 20 {
			if _, _, err := r.post(fmt.Sprint("k", i)); err != nil {
				rt.Fatal(err)
			}
		}
		if rapid.Bool().Draw(rt, "stop") {
			if err := r.Keys.Close(); err != nil {
				rt.Fatal(err)
			}
		} else {
			r.fs = r.fs.Crash(rapid.Uint64().Draw(rt, "seed"))
			_ = r.Keys.Close()
			r.deps.FS = r.fs
		}
		names, err := r.fs.ReadDir("/keys")
		if err != nil {
			rt.Fatal(err)
		}
		for range rapid.IntRange(1, 3).Draw(rt, "damages") {
			name := "/keys/" + rapid.SampledFrom(names).Draw(rt, "file").Name()
			f, err := r.fs.OpenFile(name, os.O_RDWR, 0)
			if err != nil {
				rt.Fatal(err)
			}
			size, err := f.Size()
			if err != nil {
				rt.Fatal(err)
			}
			if size == 0 {
				continue
			}
			at := rapid.Int64Range(0, size-1).Draw(rt, "at")
			if rapid.Bool().Draw(rt, "cut") {
				err = f.Truncate(at)
			} else {
				_, err = f.WriteAt([]byte{rapid.Byte().Draw(rt, "byte")}, at)
			}
			if err := errors.Join(err, f.Sync(), f.Close()); err != nil {
				rt.Fatal(err)
			}
		}
		k, err := New(r.world, r.cfg, r.deps)
		if err != nil {
			rt.Fatalf("it does not start: %v", err)
		}
		r.Keys = k
		for i := range 20 {
			if _, _, err := r.post(fmt.Sprint("k", i)); err != nil {
				rt.Fatal(err)
			}
		}
		if err := r.Keys.Close(); err != nil {
			rt.Fatal(err)
		}
	})
}

func TestConfig(t *testing.T) {
	for _, c := range []struct {
		change func(*Config)
		says   string
	}{
		{func(*Config) {}, ""},
		{func(c *Config) { c.Window = time.Second }, "window"},
		{func(c *Config) { c.Window = 8 * 24 * time.Hour }, "window"},
		{func(c *Config) { c.MaxKeys = 0 }, "max_keys"},
		{func(c *Config) { c.MaxBytes = 1 }, "max_bytes"},
	} {
		cfg := DefaultConfig()
		c.change(&cfg)
		if err := cfg.Validate(); (err == nil) != (c.says == "") || err != nil && !strings.HasPrefix(err.Error(), c.says+": got") {
			t.Errorf("%+v: %v", cfg, err)
		}
	}
}

// A start on a full disk knows all that was known, and takes new keys once there
// is room.
func TestStartOnAFullDisk(t *testing.T) {
	for name, crash := range map[string]bool{"after a stop": false, "after a crash": true} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			first, _, err := r.post("k")
			if err != nil {
				t.Fatal(err)
			}
			mem := r.fs
			if crash {
				mem = r.fs.Crash(7)
			}
			if err := r.Keys.Close(); err != nil {
				t.Fatal(err)
			}
			var full atomic.Bool
			full.Store(true)
			r.deps.FS = disk.WithFaults(mem, fullWhen(&full))
			r.open()
			if got, again, err := r.post("k"); err != nil || !again || got != first {
				t.Errorf("%+v, replayed %v, %v", got, again, err)
			}
			if _, _, err := r.post("k2"); !isCode(err, api.CodeDiskUnavailable) {
				t.Errorf("got %v", err)
			}
			full.Store(false)
			if _, _, err := r.post("k2"); err != nil {
				t.Error(err)
			}
		})
	}
}
