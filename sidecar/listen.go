package sidecar

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
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

// maxSocketPath is what fits into the kernel's address, beside the name under
// which the socket is made.
const maxSocketPath = 107 - len(socketBirth)

// socketBirth is added to the path while nobody may connect yet.
const socketBirth = ".new"

func (c Config) checkUnix() error {
	switch {
	case strings.HasPrefix(c.ListenUnix, "@"):
		return fmt.Errorf("listen_unix: got %q: use the path of a file, since an abstract socket has no permissions", c.ListenUnix)
	case len(c.ListenUnix) > maxSocketPath:
		return fmt.Errorf("listen_unix: got a path of %d bytes: use one of at most %d", len(c.ListenUnix), maxSocketPath)
	}
	if _, err := c.unixMode(); err != nil {
		return err
	}
	return nil
}

func (c Config) unixMode() (fs.FileMode, error) {
	mode, err := strconv.ParseUint(c.UnixMode, 8, 32)
	if err != nil || mode == 0 || mode > 0o777 {
		return 0, fmt.Errorf("unix_mode: got %q: use permissions in octal such as 0660", c.UnixMode)
	}
	return fs.FileMode(mode), nil
}

// listenUnix binds a UNIX socket with its permissions. What a killed process
// left of it is replaced; what somebody answers at, and what is no socket, is
// not.
func (c Config) listenUnix() (net.Listener, error) {
	path := c.ListenUnix
	mode, err := c.unixMode()
	if err != nil {
		return nil, err
	}
	switch at, err := os.Lstat(path); {
	case errors.Is(err, fs.ErrNotExist):
	case err != nil:
		return nil, fmt.Errorf("listen_unix: %w", err)
	case at.Mode().Type() != fs.ModeSocket:
		return nil, fmt.Errorf("listen_unix: %s is there and is no socket: remove it, or name another path", path)
	default:
		if c, err := net.DialTimeout("unix", path, time.Second); err == nil {
			_ = c.Close()
			return nil, fmt.Errorf("listen_unix: %s is in use by another process", path)
		} else if !errors.Is(err, syscall.ECONNREFUSED) {
			return nil, fmt.Errorf("listen_unix: %s: cannot tell whether another process uses it: %w", path, err)
		}
	}
	// It gets its name when its permissions are right: a connection that was
	// made before would stay.
	birth := path + socketBirth
	if err := os.Remove(birth); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("listen_unix: %w", err)
	}
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: birth, Net: "unix"})
	if err != nil {
		return nil, fmt.Errorf("listen_unix: %s cannot be bound: %w", path, err)
	}
	ln.SetUnlinkOnClose(false)
	err = c.giveGroup(birth)
	if err == nil {
		err = os.Chmod(birth, mode)
	}
	if err == nil {
		err = os.Rename(birth, path)
	}
	if err != nil {
		_ = ln.Close()
		_ = os.Remove(birth)
		return nil, fmt.Errorf("listen_unix: %w", err)
	}
	return &socket{UnixListener: ln, path: path}, nil
}

// giveGroup lets the members of unix_group use the socket.
func (c Config) giveGroup(path string) error {
	if c.UnixGroup == "" {
		return nil
	}
	number := c.UnixGroup
	if g, err := user.LookupGroup(c.UnixGroup); err == nil {
		number = g.Gid
	}
	gid, err := strconv.Atoi(number)
	if err != nil {
		return fmt.Errorf("unix_group: this host has no group %q", c.UnixGroup)
	}
	if err := os.Chown(path, -1, gid); err != nil {
		return fmt.Errorf("unix_group: %w", err)
	}
	return nil
}

// socket removes its file when it is closed.
type socket struct {
	*net.UnixListener
	path string
}

func (s *socket) Close() error {
	err := s.UnixListener.Close()
	if err == nil { // the first time only: another process may have taken the path since
		err = os.Remove(s.path)
	}
	return err
}

// Addr has the path that clients know.
func (s *socket) Addr() net.Addr { return &net.UnixAddr{Name: filepath.Clean(s.path), Net: "unix"} }
