package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// server is a process under measurement.
type server struct {
	name string
	dir  string // its data
	addr string // of its Kafka protocol, or of its own
	http string // of its metrics, ours only

	cmd    *exec.Cmd
	stdin  io.Closer // closing it ends one of our own roles
	log    string
	exited chan struct{} // closed when the process has ended
	err    error         // of Wait; read after exited is closed
}

// launch starts the command with its output in a log file. The lines of standard
// output go to lines when that is not nil.
func launch(name, dir string, cmd *exec.Cmd, lines chan<- string) (*server, error) {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(filepath.Join(filepath.Dir(dir), name+".log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = logFile.Close() }() // the process has its own descriptor
	s := &server{name: name, dir: dir, cmd: cmd, log: logFile.Name(), exited: make(chan struct{})}
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

// startRole starts this program as one of its roles and waits until it is
// ready. A role that takes no requests has no addresses.
func startRole(ctx context.Context, name, role, dir string, args ...string) (*server, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, err
	}
	lines := make(chan string, 8)
	s, err := launch(name, dir, exec.Command(self, append([]string{"role", role}, args...)...), lines)
	if err != nil {
		return nil, err
	}
	select {
	case line := <-lines:
		words := strings.Fields(line)
		if len(words) > 0 && words[0] == "ready" {
			for i, to := range []*string{&s.addr, &s.http} {
				if len(words) > i+1 {
					*to = words[i+1]
				}
			}
			return s, nil
		}
		return nil, errors.Join(fmt.Errorf("%s did not start:\n%s", name, s.tail()), s.kill())
	case <-ctx.Done():
		return nil, errors.Join(ctx.Err(), s.kill())
	}
}

func (s *server) pid() int { return s.cmd.Process.Pid }

// tail is the end of the log.
func (s *server) tail() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-3000):])
}

// stop ends the process cleanly, or after a minute by force.
func (s *server) stop() error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.exited:
	case <-time.After(time.Minute):
		return errors.Join(fmt.Errorf("%s did not stop", s.name), s.kill())
	}
	var exit *exec.ExitError
	if errors.As(s.err, &exit) && exit.ExitCode() == 143 { // Java's way to end by SIGTERM
		return nil
	}
	if s.err != nil {
		return fmt.Errorf("%s stopped badly: %w\n%s", s.name, s.err, s.tail())
	}
	return nil
}

// kill ends the process as a crash would.
func (s *server) kill() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.exited
	return nil
}

// serveUntilStopped is how a role waits: until SIGTERM, or until the program
// that started it has gone and closed its standard input.
func serveUntilStopped(cancel context.CancelFunc) {
	_, _ = io.Copy(io.Discard, os.Stdin)
	cancel()
}
