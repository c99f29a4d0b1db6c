package measure

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime/pprof"
	"strings"
	"syscall"
	"time"
)

// Process is a server under measurement.
type Process struct {
	Name    string
	Dir     string // its data
	Addr    string // of what it serves
	HTTP    string // of its metrics, where it has any
	Profile string // where it writes a CPU profile between SIGUSR1 and SIGUSR2, "" where it does not

	cmd    *exec.Cmd
	stdin  io.Closer // closing it ends one of our own roles
	log    string
	exited chan struct{} // closed when the process has ended
	err    error         // of Wait; read after exited is closed
}

// Launch starts the command with its output in a log file. The lines of standard
// output go to lines when that is not nil.
func Launch(name, dir string, cmd *exec.Cmd, lines chan<- string) (*Process, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(filepath.Join(filepath.Dir(dir), name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = logFile.Close() }() // the process has its own descriptor
	s := &Process{Name: name, Dir: dir, cmd: cmd, log: logFile.Name(), exited: make(chan struct{})}
	cmd.Stderr = logFile
	cmd.Stdout = logFile
	var out io.ReadCloser
	if lines != nil {
		cmd.Stdout = nil
		if out, err = cmd.StdoutPipe(); err != nil {
			return nil, err
		}
		if s.stdin, err = cmd.StdinPipe(); err != nil {
			return nil, err
		}
	}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", name, err)
	}
	go func() {
		defer close(s.exited)
		if out != nil {
			scan := bufio.NewScanner(out)
			for scan.Scan() {
				lines <- scan.Text()
			}
			close(lines)
		}
		s.err = cmd.Wait()
	}()
	return s, nil
}

// StartRole starts this program as one of its roles and waits until it is
// ready. A role that takes no requests has no addresses.
func StartRole(ctx context.Context, name, role, dir string, args ...string) (*Process, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	lines := make(chan string, 8)
	s, err := Launch(name, dir, exec.Command(self, append([]string{"role", role}, args...)...), lines)
	if err != nil {
		return nil, err
	}
	select {
	case line := <-lines:
		words := strings.Fields(line)
		if len(words) > 0 && words[0] == "ready" {
			for i, to := range []*string{&s.Addr, &s.HTTP} {
				if len(words) > i+1 {
					*to = words[i+1]
				}
			}
			return s, nil
		}
		return nil, errors.Join(fmt.Errorf("%s did not start:\n%s", name, s.Tail()), s.Kill())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.Kill())
	}
}

// PID is the process's number.
func (s *Process) PID() int { return s.cmd.Process.Pid }

// Ended tells how the process ended, nil while it runs.
func (s *Process) Ended() error {
	select {
	case <-s.exited:
		return fmt.Errorf("%s has ended: %v\n%s", s.Name, s.err, s.Tail())
	default:
		return nil
	}
}

// Tail is the end of the log.
func (s *Process) Tail() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}

// Stop ends the process cleanly, or after a minute by force.
func (s *Process) Stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.exited:
	case <-time.After(time.Minute):
		return errors.Join(fmt.Errorf("%s did not stop", s.Name), s.Kill())
	}
	var exit *exec.ExitError
	if errors.As(s.err, &exit) && exit.ExitCode() == 143 { // Java's way to end by SIGTERM
		return nil
	}
	if s.err != nil {
		return fmt.Errorf("%s stopped badly: %w\n%s", s.Name, s.err, s.Tail())
	}
	return nil
}

// Kill ends the process as a crash would.
func (s *Process) Kill() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.exited
	return nil
}

// ServeUntilStopped is how a role waits: until SIGTERM, or until the program
// that started it has gone and closed its standard input.
func ServeUntilStopped(cancel context.CancelFunc) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
}

// ProfileOnSignal writes CPU profiles, one after another, to path.
func ProfileOnSignal(path string) {
	begin, end := make(chan os.Signal, 1), make(chan os.Signal, 1)
	signal.Notify(begin, syscall.SIGUSR1)
	signal.Notify(end, syscall.SIGUSR2)
	for range begin {
		f, err := os.Create(path)
		if err == nil {
			err = pprof.StartCPUProfile(f)
		}
		<-end
		pprof.StopCPUProfile()
		if err == nil {
			err = f.Close()
		}
		if err != nil {
			fmt.Fprintln(os.Stderr, "profile:", err)
		}
	}
}

// Reachable waits until the server takes connections.
func (s *Process) Reachable(ctx context.Context) error {
	for {
		c, err := net.DialTimeout("tcp", s.Addr, time.Second)
		if err == nil {
			return c.Close()
		}
		select {
		case <-s.exited:
			return fmt.Errorf("%s ended before it served:\n%s", s.Name, s.Tail())
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(2 * time.Millisecond):
		}
	}
}

// FreeAddr is an address of this host that nobody listens on.
func FreeAddr() (string, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return "", err
	}
	return l.Addr().String(), l.Close()
}
