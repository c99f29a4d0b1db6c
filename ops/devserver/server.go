package devserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"syscall"
	"time"
)

// Options of [Start].
type Options struct {
	Binary   string // path of the sidestream binary
	Dir      string // data folder; its log goes to dev.log in it
	Sidecars int
	Args     []string // further arguments of `sidestream dev`
}

// Server is a running `sidestream dev` on free ports.
type Server struct {
	Info Info

	cmd    *exec.Cmd
	log    string
	exited chan struct{} // closed when the process has ended
	err    error         // of Wait; read after exited is closed
}

// Start starts the server and returns when it serves, or says why it does not.
func Start(ctx context.Context, o Options) (*Server, error) {
	if err := os.MkdirAll(o.Dir, 0o755); err != nil {
		return nil, err
	}
	if err := Remove(o.Dir); err != nil {
		return nil, err
	}
	logFile, err := os.OpenFile(filepath.Join(o.Dir, "dev.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, err
	}
	defer func() { _ = logFile.Close() }() // the process has its own descriptor
	args := append([]string{"dev", "--free-ports", "--data-dir", o.Dir, "--sidecars", fmt.Sprint(max(o.Sidecars, 1))}, o.Args...)
	s := &Server{cmd: exec.Command(o.Binary, args...), log: logFile.Name(), exited: make(chan struct{})}
	s.cmd.Stdout, s.cmd.Stderr = logFile, logFile
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("starting %s: %w", o.Binary, err)
	}
	go func() {
		defer close(s.exited)
		s.err = s.cmd.Wait()
	}()
	if err := s.waitReady(ctx, o.Dir); err != nil {
		return nil, errors.Join(err, s.Kill())
	}
	return s, nil
}

func (s *Server) waitReady(ctx context.Context, dir string) error {
	ticker := time.NewTicker(10 * time.Millisecond)
	defer ticker.Stop()
	for {
		info, err := Read(dir)
		if err == nil && info.PID == s.cmd.Process.Pid {
			s.Info = info
			return nil
		}
		select {
		case <-s.exited:
			return fmt.Errorf("sidestream dev ended before it served: %v\n%s", s.err, s.Log())
		case <-ctx.Done():
			return fmt.Errorf("sidestream dev did not serve in time: %w\n%s", ctx.Err(), s.Log())
		case <-ticker.C:
		}
	}
}

// PID of the process.
func (s *Server) PID() int { return s.cmd.Process.Pid }

// Log is the end of what the server logged, for error messages.
func (s *Server) Log() string {
	text, err := os.ReadFile(s.log)
	if err != nil {
		return err.Error()
	}
	return string(text[max(0, len(text)-4000):])
}

// Stop asks the server to stop and waits for it. A server that does not stop
// within ctx is killed, which is an error, as is an exit code other than 0.
func (s *Server) Stop(ctx context.Context) error {
	if err := s.cmd.Process.Signal(syscall.SIGTERM); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	select {
	case <-s.exited:
	case <-ctx.Done():
		return errors.Join(fmt.Errorf("sidestream dev did not stop in time: %w", ctx.Err()), s.Kill())
	}
	if s.err != nil {
		return fmt.Errorf("sidestream dev stopped badly: %w\n%s", s.err, s.Log())
	}
	return nil
}

// Kill ends the server as a crash would and waits for it.
func (s *Server) Kill() error {
	if err := s.cmd.Process.Kill(); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	<-s.exited
	return nil
}
