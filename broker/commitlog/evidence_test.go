package commitlog

import (
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	"go.uber.org/zap/zaptest/observer"

	"sidestream/broker/disk"
)

// A folder whose segments somebody had removed began at offset 0 again without a
// word, so that a consumer's position was out of range or, later, stood for
// another record than the one that had been there. Whatever else is in the folder
// says how far the log went.
func TestLostSegmentsAreNoNewLog(t *testing.T) {
	begins := func(at int64, file string) lostCase { return lostCase{at: at, file: file} }
	all := []string{checkpointFile, epochFile, cleanFile, timesFile, indexSuffix, timeSuffix, snapshotSuffix}
	for name, c := range map[string]lostCase{
		"all but the logs":          begins(100, checkpointFile).without(),
		"only the recovery point":   begins(100, checkpointFile).keeping(all, checkpointFile),
		"only producer snapshots":   begins(100, "00000000000000000100.snapshot").keeping(all, snapshotSuffix),
		"only offset indexes":       begins(99, "00000000000000000096.index").keeping(all, indexSuffix),
		"only time indexes":         begins(96, "00000000000000000096.timeindex").keeping(all, timeSuffix),
		"only the epochs":           begins(61, epochFile).keeping(all, epochFile),
		"only the append times":     begins(100, timesFile).keeping(all, timesFile),
		"only the compaction point": begins(88, cleanFile).keeping(all, cleanFile),
		"all but the recovery point": begins(100, "00000000000000000100.snapshot").
			keeping(all, epochFile, cleanFile, indexSuffix, timeSuffix, snapshotSuffix),
		"an unreadable recovery point": {at: 100, file: "00000000000000000100.snapshot", more: spoil(checkpointFile, flip(20))},
		"an index of zeros":            {at: 96, file: "00000000000000000096.index", drop: all, more: zeros("00000000000000000096.index")},
		"an unreadable epoch file":     {at: 0, drop: all, more: leave(epochFile)},
		"nothing at all":               {at: 0, drop: all},
	} {
		t.Run(name, c.run)
	}
}

type lostCase struct {
	at   int64    // where the log begins
	file string   // what says so; "": nothing does
	drop []string // suffixes of what is removed besides the logs
	more func(*testing.T, *disk.Mem)
}

func zeros(name string) func(*testing.T, *disk.Mem) {
	return func(t *testing.T, m *disk.Mem) { must(t, disk.ReplaceFile(m, testDir+"/"+name, make([]byte, 40))) }
}

func (c lostCase) without(suffixes ...string) lostCase { c.drop = suffixes; return c }

func (c lostCase) keeping(all []string, kept ...string) lostCase {
	return c.without(slices.DeleteFunc(slices.Clone(all), func(s string) bool { return slices.Contains(kept, s) })...)
}

func (c lostCase) run(t *testing.T) {
	m := newDisk(t)
	cfg := smallConfig()
	l := open(t, m, cfg)
	for i := range 100 {
		epoch := int32(1)
		if i >= 60 {
			epoch = 2
		}
		_, _, err := l.Append([][]byte{idempotent(5, 0, int32(i), valueAt(int64(i)))}, epoch, testStart)
		must(t, err)
	}
	must(t, l.setCleanPoint(cleanPoint{Offset: 88, Horizon: -1}, 0))
	must(t, l.Close())
	removeSuffix(append([]string{logSuffix}, c.drop...)...)(t, m)
	if c.more != nil {
		c.more(t, m)
	}

	core, logged := observer.New(zapcore.ErrorLevel)
	l, err := Open(m, testDir, cfg, Options{Logger: zap.New(core), Begun: true})
	must(t, err)
	if l.StartOffset() != c.at || l.EndOffset() != c.at {
		t.Fatalf("the log spans %d to %d, want %d", l.StartOffset(), l.EndOffset(), c.at)
	}
	damage := l.Damage()
	if len(damage) != 1 || !errors.Is(damage[0], ErrCorrupt) || damage[0].Next != c.at || !strings.Contains(damage[0].Error(), c.file) {
		t.Fatalf("damage: %v, want one up to %d by %q", damage, c.at, c.file)
	}
	if logged.FilterMessage("stored data is gone").Len() != 1 {
		t.Errorf("logged: %v", logged.All())
	}
	if c.at > 0 {
		if _, err := l.Read(0, 100, c.at); !errors.Is(err, ErrOutOfRange) {
			t.Errorf("reading what is gone: %v", err)
		}
	}
	// It goes on like any other, through a clean stop, a crash and more damage to
	// look for, and knows nothing of its earlier life.
	_, _, err = l.Append([][]byte{batch(valueAt(c.at))}, 1, testStart)
	must(t, err)
	if epoch, end := l.EpochEnd(1); epoch != 1 || end != c.at+1 {
		t.Errorf("epoch 1 ends at %d, %d", epoch, end)
	}
	if bad, err := l.Verify(t.Context()); err != nil || len(bad) > 0 {
		t.Errorf("verify: %v, %v", bad, err)
	}
	flush(t, l)
	crashed := open(t, m.Crash(3), cfg)
	must(t, l.Close())
	for _, l := range []*Log{crashed, open(t, m, cfg)} {
		wantDense(t, readAll(t, l, c.at), c.at, c.at+1)
		if len(l.Damage()) > 0 || l.StartOffset() != c.at {
			t.Errorf("afterwards: from %d, %v", l.StartOffset(), l.Damage())
		}
	}
}

// A new log is no lost one.
func TestANewLogIsNotDamaged(t *testing.T) {
	m := newDisk(t)
	must(t, m.MkdirAll(testDir, 0o755))
	leave("partition.metadata")(t, m)
	if l := open(t, m, smallConfig()); len(l.Damage()) > 0 || l.StartOffset() != 0 {
		t.Errorf("from %d, %v", l.StartOffset(), l.Damage())
	}
}

// A power cut between the steps of such a beginning leads to the same one.
func TestLostSegmentsAndPowerCuts(t *testing.T) {
	for seed := range uint64(20) {
		m := newDisk(t)
		l := open(t, m, smallConfig())
		for i := range 30 {
			appendTo(t, l, idempotent(5, 0, int32(i), valueAt(int64(i))))
		}
		must(t, l.Close())
		removeSuffix(logSuffix, checkpointFile)(t, m)
		must(t, m.SyncDir(testDir))
		steps := 0
		fsys := disk.WithFaults(m, func(op disk.Op) error {
			if op.Kind.Mutates() {
				if steps++; steps > int(seed) {
					return errors.New("power cut")
				}
			}
			return nil
		})
		if l, err := Open(fsys, testDir, smallConfig(), Options{}); err == nil {
			t.Cleanup(func() { _ = l.Close() })
		}
		l = open(t, m.Crash(seed), smallConfig())
		if l.EndOffset() != 30 {
			t.Errorf("cut after %d changes: the log ends at %d", seed, l.EndOffset())
		}
		_, _, err := l.Append([][]byte{batch(valueAt(30))}, 1, time.Now())
		must(t, err)
		wantDense(t, readAll(t, l, 30), 30, 31)
	}
}

// Emptied files are as good as removed ones.
func TestEmptiedSegmentsAreNoNewLog(t *testing.T) {
	m := newDisk(t)
	l := open(t, m, smallConfig())
	for i := range 5 {
		appendTo(t, l, idempotent(5, 0, int32(i), valueAt(int64(i))))
	}
	must(t, l.Close())
	both(spoil("00000000000000000000.log", cutTo(0)), remove(checkpointFile))(t, m)
	l = open(t, m, smallConfig())
	if l.EndOffset() != 5 || len(l.Damage()) != 1 {
		t.Errorf("the log ends at %d, damage: %v", l.EndOffset(), l.Damage())
	}
}
