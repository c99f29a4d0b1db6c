package api

import (
	"net"

	"golang.org/x/sys/unix"
)

// userOf asks the kernel who was at the other side of a UNIX socket when it
// connected.
func userOf(nc net.Conn) (uid uint32, ok bool) {
	sock, isUnix := nc.(*net.UnixConn)
	if !isUnix {
		return 0, false
	}
	raw, err := sock.SyscallConn()
	if err != nil {
		return 0, false
	}
	err = raw.Control(func(fd uintptr) {
		cred, err := unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
		if err == nil {
			uid, ok = cred.Uid, true
		}
	})
	return uid, ok && err == nil
}
