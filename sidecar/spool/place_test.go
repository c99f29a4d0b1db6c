package spool

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// notNoticed is longer than what is looked at may be old.
const notNoticed = 20 * time.Millisecond

// The data folder of a sidecar was removed while it ran: ?ack=spool was answered
// 202 and a restart had nothing. What was taken before is sent while it lives.
func TestFolderGone(t *testing.T) {
	for name, lose := range map[string]func(fs disk.FS) error{
		"removed":         func(fs disk.FS) error { return fs.RemoveAll("spool") },
		"moved":           func(fs disk.FS) error { return fs.Rename("spool", "aside") },
		"journal removed": func(fs disk.FS) error { return fs.RemoveAll("spool/journal") },
		"another's in its place": func(fs disk.FS) error {
			return errors.Join(fs.Rename("spool", "aside"), fs.MkdirAll("spool/journal", 0o700), fs.SyncDir("spool"))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.KeepEvery, c.ReclaimEvery = 2*time.Millisecond, 5*time.Millisecond })
			r.b.set(func() { r.b.topics["t"].parts[0].away = true })
			for i := range 20 {
				r.spool(0, fmt.Sprint("before ", i))
			}
			if err := lose(r.fs); err != nil {
				t.Fatal(err)
			}
			time.Sleep(notNoticed)
			zero := int32(0)
			for range 2 {
				_, err := r.Publish(t.Context(), "t", publish.Message{Value: []byte("lost"), Partition: &zero}, publish.Options{Ack: publish.AckSpool})
				if codeOf(err) != api.CodeDiskUnavailable || !strings.Contains(err.Error(), "gone from its place") {
					t.Fatalf("after it: %v", err)
				}
			}
			if err := r.Err(); !errors.Is(err, disk.ErrGone) {
				t.Fatalf("the spool says %v", err)
			}
			r.b.set(func() { r.b.topics["t"].parts[0].away = false })
			r.settled()
			if values := r.b.values("t", 0); len(values) != 20 || slices.Contains(values, "lost") {
				t.Fatalf("sent are %v", values)
			}
			_ = r.Spool.Close(t.Context()) // it says what is gone
			if left, err := r.fs.ReadDir("spool"); strings.HasPrefix(name, "another") && (err != nil || len(left) != 1) {
				t.Errorf("in the other's folder: %v, %v", left, err)
			}
		})
	}
}

// It is found out without anybody asking for more.
func TestFolderGoneIdle(t *testing.T) {
	r := newRig(t, nil)
	r.spool(0, "a")
	r.settled()
	if err := r.fs.RemoveAll("spool"); err != nil {
		t.Fatal(err)
	}
	time.Sleep(notNoticed)
	r.Check()
	if err := r.Err(); !errors.Is(err, disk.ErrGone) {
		t.Fatalf("the spool says %v", err)
	}
	_ = r.Spool.Close(t.Context())
}

// Somebody removed a small file of the spool. Without the nonces the ids of what
// waits were others after the next start, and what had been sent was not found.
func TestSmallFilesGone(t *testing.T) {
	r := newRig(t, func(c *Config) { c.KeepEvery = 2 * time.Millisecond })
	r.b.set(func() { r.b.topics["t"].parts[0].away = true })
	waits := r.spool(0, "waits")
	done := r.spool(1, "done")
	for r.Status().Pending > 1 {
		time.Sleep(time.Millisecond)
	}
	for _, name := range []string{nonceName, topicsName, marksName} {
		if err := r.fs.Remove("spool/" + name); err != nil {
			t.Fatal(name, err)
		}
	}
	time.Sleep(notNoticed)
	r.Check()
	r.spool(1, "so that marks are written")
	for end := time.Now().Add(10 * time.Second); ; time.Sleep(time.Millisecond) {
		if _, err := r.fs.Stat("spool/" + marksName); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("no marks are written")
		}
	}
	r.restart()
	if ev, err := r.Event(waits); err != nil || ev.State != api.SpoolPending || ev.Topic != "t" {
		t.Errorf("what waits: %+v, %v", ev, err)
	}
	if ev, err := r.Event(done); err != nil || ev.State != api.SpoolWritten || ev.Topic != "t" {
		t.Errorf("what was written: %+v, %v", ev, err)
	}
	r.b.set(func() { r.b.topics["t"].parts[0].away = false })
	r.settled()
	if values := r.b.values("t", 0); len(values) != 1 {
		t.Errorf("written are %v", values)
	}
}

// A file of parked messages was removed: the journal does not have them any more.
func TestParkedGone(t *testing.T) {
	r := newFaultyRig(t, func(c *Config) { c.SegmentBytes, c.ParkAbove = 4<<10, 8<<10 }, func(disk.Op) error { return nil })
	defer r.close()
	r.b.set(func() { r.b.topics["t"].parts[3].away = true })
	value := strings.Repeat("x", 500)
	for i := range 200 {
		r.spool(int32(i%4), value)
	}
	var names []string
	for end := time.Now().Add(20 * time.Second); len(names) == 0; time.Sleep(time.Millisecond) {
		list, err := r.fs.ReadDir("spool/" + parkedFolder)
		if err != nil || time.Now().After(end) {
			t.Fatalf("nothing is parked, %v", err)
		}
		for _, f := range list {
			names = append(names, f.Name())
		}
	}
	time.Sleep(notNoticed)
	r.Check()
	if err := r.Lost(); err != nil {
		t.Fatal(err)
	}
	for _, name := range names {
		if err := r.fs.Remove("spool/" + parkedFolder + "/" + name); err != nil && !errors.Is(err, os.ErrNotExist) {
			t.Fatal(err)
		}
	}
	r.Check()
	if err := r.Lost(); !errors.Is(err, disk.ErrGone) || !strings.Contains(err.Error(), "t") {
		t.Fatalf("got %v", err)
	}
	r.b.set(func() { r.b.topics["t"].parts[3].away = false })
	r.settled()
	if n := len(r.b.values("t", 3)); n != 50 {
		t.Fatalf("%d of 50 are sent", n)
	}
}

// What cannot be kept in the file of rejected messages stays in the journal.
func TestRejectsGone(t *testing.T) {
	fs := disk.NewMem()
	if err := fs.MkdirAll("spool", 0o700); err != nil {
		t.Fatal(err)
	}
	var r *rejects
	removing := disk.WithFaults(fs, func(op disk.Op) error {
		if op.Kind == disk.OpDatasync {
			return fs.RemoveAll("spool")
		}
		return nil
	})
	r = &rejects{fsys: removing, dir: "spool", limit: 1 << 20, turn: make(turn, 1), gone: func() error { return nil }}
	if err := fs.MkdirAll("spool", 0o700); err != nil {
		t.Fatal(err)
	}
	f, err := fs.OpenFile("spool/"+RejectsName, os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		t.Fatal(err)
	}
	f.Close()
	if _, err := r.add([][]byte{[]byte("{}")}); !errors.Is(err, disk.ErrGone) {
		t.Fatalf("got %v", err)
	}
}
