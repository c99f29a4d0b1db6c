//go:build !linux

package discoverytest

import "syscall"

func dieWithParent() *syscall.SysProcAttr { return nil }
