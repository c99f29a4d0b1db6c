package api

import (
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
	zaptest "go.uber.org/zap/zaptest/observer"
	"golang.org/x/sys/unix"
)

const shortOfDescriptors = "TEST_SHORT_OF_DESCRIPTORS"

// One connection that could not be accepted for want of a file descriptor ended
// the HTTP server for good, while the process lived on without a word. The limit
// is the process's, so the test runs in one of its own.
func TestAServerShortOfFileDescriptorsGoesOn(t *testing.T) {
	if os.Getenv(shortOfDescriptors) == "" {
		cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
		cmd.Env = append(os.Environ(), shortOfDescriptors+"=1")
		out, err := cmd.CombinedOutput()
		if err != nil || !strings.Contains(string(out), "--- PASS") {
			t.Fatalf("%v\n%s", err, out)
		}
		return
	}
	warned := make(chan struct{}, 1)
	core, _ := zaptest.New(zapcore.WarnLevel)
	log := zap.New(core, zap.Hooks(func(zapcore.Entry) error {
		select {
		case warned <- struct{}{}:
		default:
		}
		return nil
	}))
	s := serve(t, func(o *Options) { o.Logger = log })
	if err := unix.Setrlimit(unix.RLIMIT_NOFILE, &unix.Rlimit{Cur: 64, Max: 64}); err != nil {
		t.Fatal(err)
	}
	var files []*os.File
	for {
		f, err := os.Open(os.DevNull)
		if err != nil {
			break
		}
		files = append(files, f)
	}
	// The last is for the client's end.
	_ = files[len(files)-1].Close()
	files = files[:len(files)-1]
	c, err := net.Dial("tcp", s.addr)
	if err != nil {
		t.Fatal(err)
	}
	_ = c.SetDeadline(time.Now().Add(20 * time.Second))
	<-warned
	for _, f := range files {
		_ = f.Close()
	}
	// The client that had to wait is served, and so is the next.
	if _, err := c.Write([]byte("GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")); err != nil {
		t.Fatal(err)
	}
	if answer, err := io.ReadAll(c); err != nil || !strings.HasPrefix(string(answer), "HTTP/1.1 200") {
		t.Errorf("%v %q", err, answer)
	}
	_ = c.Close()
	resp, err := http.Get("http://" + s.addr + "/healthz")
	if err != nil {
		t.Fatal(err)
	}
	_ = resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Error(resp.Status)
	}
}
