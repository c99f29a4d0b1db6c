package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"syscall"

	"golang.org/x/sys/unix"

	"sidestream/ops/bench/measure"
)

// sendRequest is what the bare sendfile loop is asked for: a range of one of the
// files that it was started with. The answer is its length in four bytes, and
// the range.
type sendRequest struct {
	file uint32
	pos  uint64
	size uint32
}

const sendRequestBytes = 16

func (r sendRequest) append(b []byte) []byte {
	b = binary.BigEndian.AppendUint32(b, r.file)
	b = binary.BigEndian.AppendUint64(b, r.pos)
	return binary.BigEndian.AppendUint32(b, r.size)
}

// sendfileRole is the bare sendfile loop: a goroutine a connection that reads a
// request and answers by sendfile(2).
func sendfileRole(args []string) error {
	var files []*os.File
	for _, name := range args {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		files = append(files, f)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return err
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go measure.ServeUntilStopped(cancel)
	context.AfterFunc(ctx, func() { _ = l.Close() })
	fmt.Println("ready", l.Addr())
	for {
		c, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		go func() {
			defer func() { _ = c.Close() }()
			if err := sendFiles(c.(*net.TCPConn), files); !errors.Is(err, io.EOF) {
				fmt.Fprintln(os.Stderr, "bare sendfile loop:", err)
			}
		}()
	}
}

func sendFiles(c *net.TCPConn, files []*os.File) error {
	rc, err := c.SyscallConn()
	if err != nil {
		return err
	}
	for {
		var b [sendRequestBytes]byte
		if _, err := io.ReadFull(c, b[:]); err != nil {
			return err
		}
		in := files[binary.BigEndian.Uint32(b[:])]
		pos, left := int64(binary.BigEndian.Uint64(b[4:])), int(binary.BigEndian.Uint32(b[12:]))
		if err := sendRaw(rc, func(fd int) (int, error) { // the length travels with the data
			return unix.SendmsgN(fd, b[12:], nil, nil, unix.MSG_MORE)
		}); err != nil {
			return err
		}
		for left > 0 {
			if err := sendRaw(rc, func(fd int) (int, error) {
				n, err := unix.Sendfile(fd, int(in.Fd()), &pos, left)
				left -= max(n, 0)
				if n == 0 && err == nil {
					err = io.ErrUnexpectedEOF
				}
				return n, err
			}); err != nil {
				return err
			}
		}
	}
}

// sendRaw makes a system call on the socket, waiting until it takes something.
func sendRaw(rc syscall.RawConn, call func(fd int) (int, error)) (err error) {
	waitErr := rc.Write(func(fd uintptr) bool {
		_, err = call(int(fd))
		return err != unix.EAGAIN && err != unix.EINTR
	})
	return errors.Join(waitErr, err)
}
