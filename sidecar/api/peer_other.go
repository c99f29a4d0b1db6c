//go:build !linux

package api

import "net"

// userOf knows nobody: how to ask differs from system to system.
func userOf(net.Conn) (uid uint32, ok bool) { return 0, false }
