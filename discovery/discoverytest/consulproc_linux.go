package discoverytest

import "syscall"

// dieWithParent ends the child when the test process dies without its cleanups.
func dieWithParent() *syscall.SysProcAttr {
	return &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
}
