package compat

import (
	"context"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// limitStart is for a program to serve, on a busy machine.
const limitStart = 90 * time.Second

// process is a program that runs beside the test, until its end at the latest.
type process struct {
	t      *testing.T
	name   string
	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed when it has been waited for
}

// launch starts a program; what it prints is shown when the test fails.
func launch(t *testing.T, name string, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, name: name, cmd: cmd, log: filepath.Join(t.TempDir(), name+".log"), exited: make(chan struct{})}
	log, err := os.Create(p.log)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = log.Close() }() // the program has its own descriptor
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatalf("starting %s: %v", name, err)
	}
	go func() {
		_ = cmd.Wait() // how it ended is in its log
		close(p.exited)
	}()
	t.Cleanup(func() {
		p.kill()
		if t.Failed() {
			t.Logf("end of what %s printed:\n%s", name, p.tail())
		}
	})
	return p
}

func (p *process) kill() {
	_ = p.cmd.Process.Kill() // fails only when it is gone
	<-p.exited
}

// ready waits until check finds that the program serves.
func (p *process) ready(ctx context.Context, check func(context.Context) error) {
	p.t.Helper()
	ctx, cancel := context.WithTimeout(ctx, limitStart)
	defer cancel()
	for {
		err := check(ctx)
		if err == nil {
			return
		}
		select {
		case <-p.exited:
			p.t.Fatalf("%s ended at its start", p.name)
		case <-ctx.Done():
			p.t.Fatalf("%s does not serve after %s: %v", p.name, limitStart, err)
		case <-time.After(100 * time.Millisecond): // it announces itself to nobody
		}
	}
}

func (p *process) tail() string {
	text, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-8<<10):])
}

// freeAddresses returns addresses of 127.0.0.1 with ports that were all free
// at the same time a moment ago.
func freeAddresses(t *testing.T, n int) []string {
	t.Helper()
	var addrs []string
	for range n {
		l, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = l.Close() }()
		addrs = append(addrs, l.Addr().String())
	}
	return addrs
}
