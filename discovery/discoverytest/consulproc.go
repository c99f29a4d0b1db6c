package discoverytest

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sidestream/discovery"
)

// MinSessionTTL is what a Consul of Start accepts as the TTL of a session.
const MinSessionTTL = time.Second

// Ports of a Consul of Start: Consul's own, since the address is nobody else's.
const (
	httpPort   = 8500
	serverPort = 8300
	serfPort   = 8301
)

// startTimeout is generous: the machine may be busy with other tests.
const startTimeout = 90 * time.Second

// Consul is a real Consul agent with a data folder, on a loopback address of its
// own: the one server, or a client that joined it (Join). Its methods fail the
// test on any error; call them from one goroutine at a time.
type Consul struct {
	t     testing.TB
	bin   string
	dir   string
	ip    string
	node  string
	token string
	join  string // the server's address; "" for the server itself

	cmd    *exec.Cmd
	exited chan struct{} // closed when the process has been waited for
}

// A ConsulOption changes how Start configures Consul.
type ConsulOption func(*Consul)

// WithACL makes Consul deny everything to who does not show the token.
func WithACL(token string) ConsulOption { return func(c *Consul) { c.token = token } }

// Start runs Consul until the test ends and waits until it can be written to.
// dir holds its data, config and log; "" makes a temporary one. The binary is
// the consul on the PATH, else the one built by ops/consul.
func Start(t testing.TB, dir string, opts ...ConsulOption) *Consul {
	t.Helper()
	c := &Consul{node: "test"}
	for _, opt := range opts {
		opt(c)
	}
	return c.run(t, dir)
}

// Join runs a client agent, as every host has one, until the test ends: it
// passes calls on to this server, and keeps the services and the checks of its
// host by itself. node names it among all; dir is as Start's.
func (c *Consul) Join(t testing.TB, dir, node string) *Consul {
	t.Helper()
	return (&Consul{node: node, token: c.token, join: c.ip}).run(t, dir)
}

func (c *Consul) run(t testing.TB, dir string) *Consul {
	t.Helper()
	if dir == "" {
		dir = t.TempDir()
	}
	c.t, c.bin, c.dir, c.ip = t, Binary(t), dir, freeAddress(t)
	c.configure()
	t.Cleanup(func() {
		c.Kill()
		if t.Failed() {
			t.Logf("end of the log of Consul's agent %s:\n%s", c.node, tail(c.logPath(), 8<<10))
		}
	})
	c.start()
	return c
}

// Addr is the host and port of Consul's HTTP API. It never changes.
func (c *Consul) Addr() string { return fmt.Sprintf("%s:%d", c.ip, httpPort) }

// Token is the one of WithACL, or "".
func (c *Consul) Token() string { return c.token }

// Config is how to reach it, with the shortest TTLs that it takes.
func (c *Consul) Config(cluster string) discovery.ConsulConfig {
	cfg := discovery.DefaultConsulConfig()
	cfg.Address, cfg.Token, cfg.Cluster = "http://"+c.Addr(), c.token, cluster
	cfg.SessionTTL, cfg.CheckTTL = MinSessionTTL, time.Second
	return cfg
}

// Kill ends the process with SIGKILL, if it runs, and waits for that.
func (c *Consul) Kill() {
	if c.cmd == nil {
		return
	}
	c.cmd.Process.Kill() // ends a paused one too; fails only when it is gone
	<-c.exited
	c.cmd = nil
}

// Restart kills Consul, if it runs, and starts it again on the same data.
func (c *Consul) Restart() {
	c.t.Helper()
	c.Kill()
	c.start()
}

// Wipe kills Consul, removes its data and starts it again, empty.
func (c *Consul) Wipe() {
	c.t.Helper()
	c.Kill()
	if err := os.RemoveAll(c.dataDir()); err != nil {
		c.t.Fatal(err)
	}
	c.start()
}

// Pause stops the process with SIGSTOP: connections stay and nothing answers.
func (c *Consul) Pause() { c.signal(syscall.SIGSTOP) }

// Resume ends a Pause.
func (c *Consul) Resume() { c.signal(syscall.SIGCONT) }

func (c *Consul) signal(s syscall.Signal) {
	c.t.Helper()
	if c.cmd == nil {
		c.t.Fatal("Consul does not run")
	}
	if err := c.cmd.Process.Signal(s); err != nil {
		c.t.Fatalf("Consul: %v", err)
	}
}

func (c *Consul) dataDir() string    { return filepath.Join(c.dir, "data") }
func (c *Consul) configPath() string { return filepath.Join(c.dir, "consul.json") }
func (c *Consul) logPath() string    { return filepath.Join(c.dir, "consul.log") }

func (c *Consul) configure() {
	c.t.Helper()
	cfg := map[string]any{
		"node_name": c.node, "datacenter": "dc1",
		"data_dir": c.dataDir(), "bind_addr": c.ip, "client_addr": c.ip,
		"ports": map[string]int{
			"http": httpPort, "server": serverPort, "serf_lan": serfPort,
			"serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1,
		},
		"performance":          map[string]any{"raft_multiplier": 1},
		"session_ttl_min":      MinSessionTTL.String(),
		"limits":               map[string]any{"http_max_conns_per_client": 10000},
		"connect":              map[string]any{"enabled": false},
		"disable_host_node_id": true, "disable_update_check": true, "leave_on_terminate": false,
		"log_level": "info",
	}
	if c.join == "" {
		cfg["server"], cfg["bootstrap_expect"] = true, 1
	} else {
		cfg["start_join"] = []string{c.join}
	}
	if c.token != "" {
		cfg["acl"] = map[string]any{
			"enabled": true, "default_policy": "deny",
			"tokens": map[string]string{"initial_management": c.token, "agent": c.token},
		}
	}
	b, err := json.MarshalIndent(cfg, "", "  ")
	if err == nil {
		err = os.MkdirAll(c.dir, 0o750)
	}
	if err == nil {
		err = os.WriteFile(c.configPath(), b, 0o640)
	}
	if err != nil {
		c.t.Fatal(err)
	}
}

func (c *Consul) start() {
	c.t.Helper()
	logs, err := os.OpenFile(c.logPath(), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o640)
	if err != nil {
		c.t.Fatal(err)
	}
	defer logs.Close() // the child has its own descriptor
	cmd := exec.Command(c.bin, "agent", "-config-file", c.configPath())
	cmd.Stdout, cmd.Stderr = logs, logs
	cmd.SysProcAttr = dieWithParent()
	if err := cmd.Start(); err != nil {
		c.t.Fatalf("starting Consul: %v", err)
	}
	exited := make(chan struct{})
	go func() {
		cmd.Wait()
		close(exited)
	}()
	c.cmd, c.exited = cmd, exited

	ctx, cancel := context.WithTimeout(context.Background(), startTimeout)
	defer cancel()
	for {
		err := c.usable(ctx)
		if err == nil && c.join != "" {
			err = c.synced(ctx)
		}
		if err == nil {
			return
		}
		select {
		case <-exited:
			c.t.Fatalf("Consul ended at its start; its log:\n%s", tail(c.logPath(), 8<<10))
		case <-ctx.Done():
			c.t.Fatalf("Consul is not ready after %s: %v; its log:\n%s", startTimeout, err, tail(c.logPath(), 8<<10))
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// usable makes and ends a session: that takes a leader, and the node's entry in
// the catalog, which comes last.
func (c *Consul) usable(ctx context.Context) error {
	reply, err := c.put(ctx, "/v1/session/create", `{"TTL":"10s","NodeChecks":[]}`)
	if err != nil {
		return err
	}
	var made struct{ ID string }
	if err := json.Unmarshal(reply, &made); err != nil {
		return err
	}
	_, err = c.put(ctx, "/v1/session/destroy/"+made.ID, "")
	return err
}

// synced lets a check of a client's node end and waits until the server knows.
// An agent that found no server at its start passes on no change of a check for
// up to half a minute (agent/ae of Consul, retryFullSyncState).
func (c *Consul) synced(ctx context.Context) error {
	if _, err := c.put(ctx, "/v1/agent/check/register", `{"ID":"probe","Name":"probe","TTL":"50ms","Status":"passing"}`); err != nil {
		return err
	}
	for {
		b, err := c.call(ctx, http.MethodGet, "/v1/health/node/"+c.node+"?consistent", "")
		if err != nil {
			return err
		}
		var checks []struct{ CheckID, Status string }
		if err := json.Unmarshal(b, &checks); err != nil {
			return err
		}
		for _, check := range checks {
			if check.CheckID == "probe" && check.Status == "critical" {
				_, err := c.put(ctx, "/v1/agent/check/deregister/probe", "")
				return err
			}
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (c *Consul) put(ctx context.Context, path, body string) ([]byte, error) {
	return c.call(ctx, http.MethodPut, path, body)
}

func (c *Consul) call(ctx context.Context, method, path, body string) ([]byte, error) {
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, method, "http://"+c.Addr()+path, strings.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("X-Consul-Token", c.token)
	req.Close = true // no idle connection is left behind
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return nil, err
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s %s: %s: %s", method, path, resp.Status, bytes.TrimSpace(b))
	}
	return b, nil
}

// freeAddress finds an address of 127.0.0.0/8 on which nobody uses the ports.
// A random one is as good as reserved: there are millions.
func freeAddress(t testing.TB) string {
	t.Helper()
	var last error
	for range 20 {
		ip := fmt.Sprintf("127.%d.%d.%d", 64+rand.IntN(128), rand.IntN(256), 1+rand.IntN(254))
		free := true
		for _, port := range []int{httpPort, serverPort, serfPort} {
			l, err := net.Listen("tcp", fmt.Sprintf("%s:%d", ip, port))
			if err != nil {
				free, last = false, err
				break
			}
			l.Close()
		}
		if free {
			return ip
		}
	}
	t.Fatalf("no loopback address for Consul: %v", last)
	return ""
}

var foundBinary struct {
	once sync.Once
	path string
	err  error
}

// Binary is the path of a consul binary. It builds one when there is none,
// which takes minutes, and fails the test when it cannot.
func Binary(t testing.TB) string {
	t.Helper()
	foundBinary.once.Do(func() { foundBinary.path, foundBinary.err = findBinary() })
	if foundBinary.err != nil {
		t.Fatalf("no Consul to test with: %v\nput a consul binary (1.14 or later) on the PATH, or run ops/consul/build.sh where the Go module proxy can be reached", foundBinary.err)
	}
	return foundBinary.path
}

func findBinary() (string, error) {
	if path, err := exec.LookPath("consul"); err == nil {
		return path, nil
	}
	_, here, _, ok := runtime.Caller(0)
	if !ok || !filepath.IsAbs(here) {
		return "", fmt.Errorf("the repository cannot be found from the test binary (built with -trimpath?)")
	}
	root := filepath.Join(filepath.Dir(here), "..", "..")
	cached := filepath.Join(root, ".cache", "consul", "consul")
	if info, err := os.Stat(cached); err == nil && info.Mode()&0o111 != 0 {
		return cached, nil
	}
	var out, errs bytes.Buffer
	build := exec.Command(filepath.Join(root, "ops", "consul", "build.sh"))
	build.Stdout, build.Stderr = &out, &errs
	if err := build.Run(); err != nil {
		return "", fmt.Errorf("ops/consul/build.sh: %w\n%s", err, errs.String())
	}
	return strings.TrimSpace(out.String()), nil
}

func tail(path string, n int) string {
	b, err := os.ReadFile(path)
	if err != nil {
		return err.Error()
	}
	if len(b) > n {
		b = b[len(b)-n:]
	}
	return string(b)
}
