package chaos

import (
	"fmt"
	"os/exec"
	"strings"
	"testing"
	"time"
)

// Consul is wiped (its data folder lost): no log is deleted, the agents raise
// an alarm, and `metadata rebuild` brings the service back with every
// acknowledged message where it was.
func TestConsulWipedAndRebuilt(t *testing.T) {
	c := Start(t, 3, 1, Options{})
	s := c.Sidecars[0]
	c.CreateTopic("orders", 6)
	l := NewLedger()
	fill(t, l, s, "orders", 0, 200)
	cluster := c.status(c.Agents[0]).ClusterID
	if cluster == "" {
		t.Fatal("an agent's /status does not tell its cluster id")
	}
	files := c.logFiles()

	c.Consul.Wipe()
	eventually(t, 90*time.Second, func() error {
		for _, a := range c.Agents {
			st := c.status(a)
			if !strings.Contains(strings.Join(st.Alarms, " "), "cluster-id") {
				return fmt.Errorf("%s raises no alarm: %v", a.Name, st.Alarms)
			}
		}
		return nil
	})
	if now := c.logFiles(); strings.Join(now, "\n") != strings.Join(files, "\n") {
		t.Fatalf("the log files changed when Consul was wiped:\nbefore %v\nafter %v", files, now)
	}
	// An agent that restarts in this state must not begin a new cluster.
	c.Agents[2].Kill()
	c.Agents[2].Start()

	args := []string{"metadata", "rebuild", "--cluster-id", cluster}
	for _, a := range c.Agents {
		args = append(args, "--agent", strings.TrimPrefix(a.HTTP, "http://"))
	}
	eventually(t, 60*time.Second, func() error {
		if out, err := exec.Command(c.bin, args...).CombinedOutput(); err != nil {
			return fmt.Errorf("metadata rebuild: %w\n%s", err, out)
		}
		return nil
	})
	eventually(t, 60*time.Second, func() error {
		for _, a := range c.Agents {
			if st := c.status(a); len(st.Alarms) > 0 {
				return fmt.Errorf("%s still has alarms: %v", a.Name, st.Alarms)
			}
		}
		return nil
	})
	eventually(t, 60*time.Second, func() error {
		value := fmt.Sprintf("after the rebuild at %d", time.Now().UnixNano())
		a, err := publish(s.HTTP, "orders", "", value, "&timeout=3s")
		if err != nil {
			return err
		}
		return l.Published("orders", a.Partition, a.Offset, value)
	})
	if now := c.logFiles(); !strings.Contains(strings.Join(now, "\n"), strings.Join(files, "\n")) && len(now) < len(files) {
		t.Errorf("log files went missing: before %v, after %v", files, now)
	}
	c.checkLog(l, s, "orders", 6)
	drainGroup(t, l, 90*time.Second, "after", "orders", s)
	c.CreateTopic("new", 4)
	fill(t, l, s, "new", 0, 10)
}
