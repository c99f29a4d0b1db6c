package sidecar

import (
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sidestream/sdk/api"
)

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	r := newRig(t, func(c *Config) { c.ListenUnix, c.UnixMode = path, "0600" })
	client := unixClient(t, path)
	resp, err := client.Post("http://anything/topics/one", "", strings.NewReader("hi"))
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		t.Errorf("status %d: no browser reaches a UNIX socket, so any Host goes", resp.StatusCode)
	}
	at, err := os.Stat(path)
	if err != nil || at.Mode() != fs.ModeSocket|0o600 {
		t.Errorf("the socket is %v (%v)", at.Mode(), err)
	}
	into[api.Published](t, r.do("POST", "/topics/one", "by TCP"), 200)
	client.CloseIdleConnections()
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if left, _ := filepath.Glob(path + "*"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestListenUnixReplacesOnlyWhatIsDead(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c := DefaultConfig()
	c.ListenUnix = path
	first, err := c.listenUnix()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.listenUnix(); err == nil || !strings.Contains(err.Error(), "in use by another process") {
		t.Errorf("a second one: %v", err)
	}
	if err := first.(*socket).UnixListener.Close(); err != nil { // as kill -9 does
		t.Fatal(err)
	}
	second, err := c.listenUnix()
	if err != nil {
		t.Fatalf("after a crash: %v", err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error(err)
	} else {
		_ = conn.Close()
	}
	if err := second.Close(); err != nil {
		t.Fatal(err)
	}
	if err := second.Close(); err == nil {
		t.Error("closed twice without an error")
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := c.listenUnix(); err == nil || !strings.Contains(err.Error(), "is no socket") {
		t.Errorf("a file in the way: %v", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Errorf("the file is gone: %q, %v", b, err)
	}
}

func TestUnixSettingsAreChecked(t *testing.T) {
	for want, change := range map[string]func(*Config){
		`listen_unix: got "@x": use the path of a file`: func(c *Config) { c.ListenUnix = "@x" },
		`listen_unix: got a path of 200 bytes`:          func(c *Config) { c.ListenUnix = strings.Repeat("x", 200) },
		`unix_mode: got "rw": use permissions in octal`: func(c *Config) { c.UnixMode = "rw" },
		`unix_mode: got "1777"`:                         func(c *Config) { c.UnixMode = "1777" },
		`callers.root: got "a b": use a name`:           func(c *Config) { c.Callers = map[string]string{"root": "a b"} },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s…", err, want)
		}
	}
	c := DefaultConfig()
	c.ListenUnix, c.UnixGroup = filepath.Join(t.TempDir(), "s"), "no-such-group-here"
	if _, err := c.listenUnix(); err == nil || !strings.Contains(err.Error(), "has no group") {
		t.Errorf("got %v", err)
	}
}
