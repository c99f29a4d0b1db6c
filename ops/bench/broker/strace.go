package main

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// strace is the name of the step that counts system calls.
const strace = "strace"

// traced are the calls by which bytes get from files and sockets into the
// process, and from a file to a socket past it.
const traced = "sendfile,splice,pread64,preadv,read,readv"

// calls is what our broker read and sent for a number of answers of 1 MiB.
type calls struct {
	answers int64
	bytes   map[string]int64 // by system call
	why     string           // why they were not counted
}

// into is the bytes that came into the process: requests, and whatever it had to
// look up in files.
func (c calls) into() (n int64) {
	for name, bytes := range c.bytes {
		if name != "sendfile" {
			n += bytes
		}
	}
	return n
}

// watchSyscalls counts what system calls moved under the fetch load.
func (b *bench) watchSyscalls(ctx context.Context) error {
	if _, err := exec.LookPath("strace"); err != nil {
		b.calls.why = "there is no strace on the PATH"
		return nil
	}
	s, err := b.server(ctx, sidestream)
	if err != nil {
		return err
	}
	plan, err := b.plan(ctx, s)
	if err != nil {
		return err
	}
	out := filepath.Join(b.o.dir, "strace")
	cmd := exec.CommandContext(ctx, "strace", "-f", "-qq", "-s", "0", "-o", out, "-e", "trace="+traced, "-p", strconv.Itoa(s.PID()))
	if err := cmd.Start(); err != nil {
		return err
	}
	time.Sleep(time.Second) // it attaches to every thread
	m := &meter{s: s}
	loadErr := fetchLoad{8}.run(ctx, m, plan, b.o.window)
	interruptErr := cmd.Process.Signal(syscall.SIGINT)
	_ = cmd.Wait() // it reports the signal
	if err := errors.Join(loadErr, interruptErr); err != nil {
		return err
	}
	text, err := os.ReadFile(out)
	if err != nil {
		return err
	}
	b.calls = calls{answers: m.r.Records, bytes: parseStrace(string(text))}
	if len(b.calls.bytes) == 0 {
		b.calls.why = "strace could not attach"
	}
	return nil
}

// parseStrace sums what each call returned. A call that another thread's call
// interrupts in the text returns in a line of its own: "12 <... read resumed>…) = 4".
func parseStrace(text string) map[string]int64 {
	out := map[string]int64{}
	for line := range strings.Lines(text) {
		_, call, ok := strings.Cut(line, " ") // after the thread's number
		at := strings.LastIndex(call, " = ")
		if !ok || at < 0 {
			continue
		}
		call, value := strings.TrimSpace(call[:at]), strings.Fields(call[at+3:])
		call = strings.TrimPrefix(call, "<... ")
		name := call[:max(strings.IndexAny(call, "( "), 0)]
		if len(value) == 0 || name == "" {
			continue
		}
		if n, err := strconv.ParseInt(value[0], 10, 64); err == nil && n > 0 {
			out[name] += n
		}
	}
	return out
}
