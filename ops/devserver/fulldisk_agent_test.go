package devserver_test

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"

	"sidestream/discovery/discoverytest"
)

// agentProcess is a running `sidestream agent`.
type agentProcess struct {
	t          *testing.T
	cmd        *exec.Cmd
	exited     chan error
	log        string
	http, addr string // URL of its HTTP, and the broker's address
}

func startAgent(t *testing.T, program, dir, consul string, args ...string) *agentProcess {
	t.Helper()
	a := &agentProcess{t: t, exited: make(chan error, 1), log: filepath.Join(t.TempDir(), "log"), http: "http://" + free(t), addr: free(t)}
	a.cmd = exec.Command(program, append([]string{"agent", "--data-dir", dir, "--listen", strings.TrimPrefix(a.http, "http://"),
		"--broker-listen", a.addr, "--consul-address", consul}, args...)...)
	log, err := os.Create(a.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	a.cmd.Stdout, a.cmd.Stderr = log, log
	if err := a.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() { a.exited <- a.cmd.Wait() }()
	t.Cleanup(a.kill)
	ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
	defer cancel()
	for {
		response, err := http.Get(a.http + "/readyz")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return a
			}
		}
		select {
		case err := <-a.exited:
			a.exited <- err
			t.Fatalf("the agent ended: %v\n%s", err, a.said())
		case <-ctx.Done():
			t.Fatalf("the agent does not serve: %v\n%s", err, a.said())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func (a *agentProcess) said() string {
	text, err := os.ReadFile(a.log)
	return fmt.Sprint(string(text), err)
}

// kill ends it as a crash would.
func (a *agentProcess) kill() {
	if a.cmd.Process.Kill() == nil {
		a.exited <- <-a.exited
	}
}

// free is an address that nothing listens on.
func free(t *testing.T) string {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

// epochs are those of the partitions that the agent leads.
func (a *agentProcess) epochs() []int32 {
	a.t.Helper()
	response, err := http.Get(a.http + "/status")
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	var status struct{ Partitions []struct{ Epoch int32 } }
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		a.t.Fatal(err)
	}
	var out []int32
	for _, p := range status.Partitions {
		out = append(out, p.Epoch)
	}
	return out
}

// A storage host whose disk is full and whose agent was killed comes back as it
// does with room: it registers, leads at the next epoch and serves, and takes
// writes again once records were deleted.
func TestAnAgentComesBackOnAFullDisk(t *testing.T) {
	dir := mountSmall(t)
	consul := discoverytest.Start(t, "")
	program := binary(t)
	c := &checker{t: t}
	a := startAgent(t, program, dir, consul.Addr())
	createTopic(t, a.addr)
	for round := range int32(2) {
		c.fill(a.addr)
		fillUp(t, dir)
		// Twice in a row: an epoch of which the folder could not be told is not
		// given again.
		for again := range int32(2) {
			a.kill()
			a = startAgent(t, program, dir, consul.Addr())
			if want := []int32{2 + 2*round + again, 2 + 2*round + again}; fmt.Sprint(a.epochs()) != fmt.Sprint(want) {
				t.Errorf("start %d: led at the epochs %v, want %v", 2*round+again+1, a.epochs(), want)
			}
		}
		c.check(a.addr)
		if got := alarms(t, a.http); !strings.Contains(got, "is full") {
			t.Errorf("alarms %q, want one that says that the disk is full", got)
		}
		if _, err := dial(t, a.addr).produce(0, value(0, 0)); !errors.Is(err, kerr.KafkaStorageError) {
			t.Errorf("producing on a full disk: %v, want the storage error", err)
		}
		c.deleteSome(a.addr)
		for part := range int32(partitions) {
			v := value(part, c.n)
			offset, err := dial(t, a.addr).produce(part, v)
			if err != nil {
				t.Fatalf("producing after records were deleted: %v", err)
			}
			c.acked[part][offset] = v
		}
		if got := alarms(t, a.http); got != "" {
			t.Errorf("alarms %q although there is room again", got)
		}
		c.check(a.addr)
	}
}
