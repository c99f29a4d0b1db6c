package broker_test

import (
	"net"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"golang.org/x/sys/unix"
)

const shortOfDescriptors = "TEST_SHORT_OF_DESCRIPTORS"

// One connection that could not be accepted for want of a file descriptor ended
// the event loops: every client was cut off, the port was closed, and the
// process lived on without a word. The limit is the process's, so the test runs
// in one of its own.
func TestABrokerShortOfFileDescriptorsListensAgain(t *testing.T) {
	if os.Getenv(shortOfDescriptors) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), shortOfDescriptors+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	const limit = 128
	noError(t, unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: limit, Max: limit}))
	w := start(t)

	// Connections never take the last eighth: for each that would, the oldest gives way, or it is refused itself while
	// none has been idle for a second.
	var conns []net.Conn
	isClosed := func(c net.Conn, within time.Duration) bool {
		_ = c.SetReadDeadline(time.Now().Add(within))
		_, err := c.Read(make([]byte, 1))
		return err != nil && !os.IsTimeout(err)
	}
	closed := map[net.Conn]bool{}
	for range limit {
		c, err := net.Dial("tcp", w.b.Addr()) // its own end takes one, too
		if err != nil {
			break
		}
		conns = append(conns, c)
		if isClosed(c, 50*time.Millisecond) {
			closed[c] = true
		}
		for _, old := range conns[:min(3, len(conns)-1)] {
			if isClosed(old, time.Millisecond) {
				closed[old] = true
			}
		}
		if len(closed) >= 3 {
			break
		}
	}
	if len(closed) < 3 {
		t.Fatalf("%d of %d connections were closed, want 3 at last", len(closed), len(conns))
	}
	for _, c := range conns {
		noError(t, c.Close())
	}
	if alarms := w.b.Alarms(); len(alarms) != 0 {
		t.Fatalf("alarms: %q", alarms)
	}

	// Files take them all, but for the one that a client needs. The broker still
	// gives some back that it had for the connections.
	var files []*os.File
	for begun := time.Now(); len(w.b.Alarms()) == 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			t.Fatal("no alarm though no connection can be accepted")
		}
		for {
			f, err := os.Open(os.DevNull)
			if err != nil {
				break
			}
			files = append(files, f)
		}
		noError(t, files[len(files)-1].Close())
		files = files[:len(files)-1]
		if c, err := net.Dial("tcp", w.b.Addr()); err == nil { // else it was cut off already
			defer func() { _ = c.Close() }()
		}
	}
	if alarms := w.b.Alarms(); !strings.Contains(alarms[0], "file descriptors") {
		t.Fatalf("alarms: %q", alarms)
	}
	for _, f := range files {
		noError(t, f.Close())
	}
	for begun := time.Now(); len(w.b.Alarms()) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(begun) > 20*time.Second {
			t.Fatalf("alarms remain: %q", w.b.Alarms())
		}
	}
	ask[*kmsg.ApiVersionsResponse](w.dial(), kmsg.NewPtrApiVersionsRequest())
}

func noError(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
