package sidecar

import (
	"errors"
	"fmt"
	"net"
	"os"
	"syscall"
	"time"
)

// listenTCP binds the API's port. One that is taken is an error that names the
// setting to change.
func listenTCP(addr string) (net.Listener, error) {
	ln, err := net.Listen("tcp", addr)
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		return nil, fmt.Errorf("listen: %s is in use: another sidecar, or another program, has that port; stop it or set listen to another address: %w", addr, err)
	case err != nil:
		return nil, fmt.Errorf("listen: %s cannot be bound: %w", addr, err)
	}
	return ln, nil
}

// listenUnix binds a UNIX socket. What a killed process left of it is removed;
// one that somebody answers at is not.
func listenUnix(path string) (net.Listener, error) {
	if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
		_ = c.Close()
		return nil, fmt.Errorf("listen_unix: %s is in use by another process", path)
	} else if errors.Is(err, syscall.ECONNREFUSED) {
		if err := os.Remove(path); err != nil {
			return nil, fmt.Errorf("listen_unix: %w", err)
		}
	}
	ln, err := net.Listen("unix", path)
	if err != nil {
		return nil, fmt.Errorf("listen_unix: %s cannot be bound: %w", path, err)
	}
	if err := os.Chmod(path, 0o660); err != nil {
		_ = ln.Close()
		return nil, fmt.Errorf("listen_unix: %w", err)
	}
	return ln, nil
}
