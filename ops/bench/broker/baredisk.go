package main

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"sidestream/ops/bench/measure"
)

// diskDone is what the bare loop of write and sync did.
type diskDone struct {
	Bytes, Syncs int64
	Nanos        int64
}

// diskRole is the bare loop of write and fdatasync: so many files at once, each
// appended to by a thread of its own, a sync after each write. Its arguments are
// the folder, the files, the bytes of a write and the duration.
func diskRole(args []string) error {
	files, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	size, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	window, err := time.ParseDuration(args[3])
	if err != nil {
		return err
	}
	var bytes, syncs atomic.Int64
	var wg sync.WaitGroup
	errs := make(chan error, files)
	begun := time.Now()
	for i := range files {
		wg.Go(func() {
			errs <- appendAndSync(filepath.Join(args[0], fmt.Sprintf("disk-%d", i)), size, begun.Add(window), &bytes, &syncs)
		})
	}
	wg.Wait()
	took := time.Since(begun)
	for range files {
		if err := <-errs; err != nil {
			return err
		}
	}
	return json.NewEncoder(os.Stdout).Encode(diskDone{bytes.Load(), syncs.Load(), took.Nanoseconds()})
}

func appendAndSync(name string, size int, until time.Time, bytes, syncs *atomic.Int64) error {
	f, err := os.OpenFile(name, os.O_CREATE|os.O_TRUNC|os.O_WRONLY|os.O_APPEND, 0o644)
	if err != nil {
		return err
	}
	defer func() { _, _ = f.Close(), os.Remove(name) }()
	b := make([]byte, size)
	measure.Fill(b)
	for time.Now().Before(until) {
		if _, err := f.Write(b); err != nil {
			return err
		}
		if err := unix.Fdatasync(int(f.Fd())); err != nil {
			return err
		}
		bytes.Add(int64(size))
		syncs.Add(1)
	}
	return nil
}

// bareDisk runs the loop as a process and returns what it did.
func bareDisk(ctx context.Context, dir string, files, size int, window time.Duration) (result, error) {
	self, err := os.Executable()
	if err != nil {
		return result{}, err
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return result{}, err
	}
	cmd := exec.CommandContext(ctx, self, "role", "disk", dir, strconv.Itoa(files), strconv.Itoa(size), window.String())
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		return result{}, fmt.Errorf("the bare disk loop: %w", err)
	}
	var d diskDone
	if err := json.Unmarshal(out, &d); err != nil {
		return result{}, err
	}
	return result{
		Result: measure.Result{
			Records: d.Syncs, Bytes: d.Bytes, Took: time.Duration(d.Nanos),
			CPU: cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime(),
		},
		syncs: d.Syncs, synced: d.Bytes,
	}, nil
}
