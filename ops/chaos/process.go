package chaos

import (
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"sidestream/discovery/discoverytest"
)

// binary builds the program under test once, with the race detector in it, so
// that every whole-system run also looks for races in the running daemons.
var binary = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "sidestream-bin-")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "sidestream")
	cmd := exec.Command("go", "build", "-race", "-o", path, "sidestream/ops/sidestream")
	cmd.Dir = repoRoot()
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("building the binary under test: %w\n%s", err, out)
	}
	return path, nil
})

func repoRoot() string {
	_, file, _, _ := runtime.Caller(0)
	return filepath.Dir(filepath.Dir(filepath.Dir(file)))
}

// Process is one daemon that a test may kill and start again with the same
// arguments and folders.
type Process struct {
	Name   string
	HTTP   string                // base URL of its HTTP API
	Consul *discoverytest.Consul // that it speaks to

	t      testing.TB
	path   string
	args   []string
	env    []string
	log    string
	cmd    *exec.Cmd
	exited chan struct{}
	lives  atomic.Int32 // times that it was started
}

// Start runs the process; it does not wait until it is ready.
func (p *Process) Start() {
	p.t.Helper()
	out, err := os.OpenFile(p.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		p.t.Fatal(err)
	}
	defer out.Close()
	cmd := exec.Command(p.path, p.args...)
	cmd.Env = append(os.Environ(), p.env...)
	cmd.Stdout, cmd.Stderr = out, out
	if err := cmd.Start(); err != nil {
		p.t.Fatalf("%s: %v", p.Name, err)
	}
	exited := make(chan struct{})
	go func() { _ = cmd.Wait(); close(exited) }()
	p.cmd, p.exited = cmd, exited
	p.lives.Add(1)
}

// Kill is kill -9 and waits for the end.
func (p *Process) Kill() {
	p.t.Helper()
	_ = p.cmd.Process.Kill()
	<-p.exited
}

// Signal sends a signal and does not wait.
func (p *Process) Signal(s syscall.Signal) { _ = p.cmd.Process.Signal(s) }

// Stop is SIGTERM; the process must leave by itself, with status 0.
func (p *Process) Stop() {
	p.t.Helper()
	p.Signal(syscall.SIGTERM)
	p.Signal(syscall.SIGCONT) // a test that failed may have left it paused
	select {
	case <-p.exited:
		if code := p.cmd.ProcessState.ExitCode(); code != 0 {
			p.t.Errorf("%s left with status %d after SIGTERM\n%s", p.Name, code, p.Tail())
		}
	case <-time.After(60 * time.Second):
		p.Signal(syscall.SIGQUIT) // goroutines into the log
		<-p.exited
		p.t.Errorf("%s did not leave within 60 s of SIGTERM\n%s", p.Name, p.Tail())
	}
}

// Exited tells whether the process has ended.
func (p *Process) Exited() bool {
	select {
	case <-p.exited:
		return true
	default:
		return false
	}
}

// WaitReady waits until /readyz answers 200.
func (p *Process) WaitReady(limit time.Duration) {
	p.t.Helper()
	var last string
	eventually(p.t, limit, func() error {
		if p.Exited() {
			p.t.Fatalf("%s ended while starting\n%s", p.Name, p.Tail())
		}
		resp, err := http.Get(p.HTTP + "/readyz")
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		body, _ := io.ReadAll(resp.Body)
		if last = string(body); resp.StatusCode != 200 {
			return fmt.Errorf("%s is not ready: %d %s", p.Name, resp.StatusCode, last)
		}
		return nil
	})
}

// Tail is the end of the process's log.
func (p *Process) Tail() string {
	if p.cmd == nil {
		return p.Name + " was never started"
	}
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	if len(b) > 6000 {
		b = b[len(b)-6000:]
	}
	return fmt.Sprintf("--- %s ---\n%s", p.log, b)
}

// eventually repeats a check until it holds or the limit has passed.
func eventually(t testing.TB, limit time.Duration, check func() error) {
	t.Helper()
	end := time.Now().Add(limit)
	for {
		err := check()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			t.Fatalf("not within %v: %v", limit, err)
		}
		time.Sleep(50 * time.Millisecond) // polling another process: there is nothing to wait on
	}
}

// freePort picks a port that was free a moment ago: the daemons under test
// must come back on the same one after a kill.
func freePort(t testing.TB, host string) int {
	t.Helper()
	l, err := net.Listen("tcp", net.JoinHostPort(host, "0"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

var errNotYet = errors.New("not yet")
