//go:build !testclock

package clock

// offset is how far the wall clock is moved, in milliseconds. Only a binary
// that is built for tests can move it.
func offset() int64 { return 0 }

func testSynchronised() bool { return false }
