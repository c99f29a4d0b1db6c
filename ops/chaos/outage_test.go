package chaos

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// seenWithin is how long an outage may go on before everybody tells of it.
const seenWithin = 5 * time.Second

// get is the body of a GET.
func get(p *Process, path string) (status int, body string, err error) {
	resp, err := http.Get(p.HTTP + path)
	if err != nil {
		return 0, "", err
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return resp.StatusCode, string(b), err
}

// lacks is an error for the first word that is not in a text.
func lacks(text string, words ...string) error {
	for _, w := range words {
		if !strings.Contains(text, w) {
			return fmt.Errorf("no %q in %s", w, text)
		}
	}
	return nil
}

// cli runs a command of the binary under test.
func (c *Cluster) cli(args ...string) (out string, code int) {
	cmd := exec.Command(c.bin, args...)
	cmd.Env = append(os.Environ(), "SIDESTREAM_SIDECAR="+c.Sidecars[0].HTTP, "GORACE=atexit_sleep_ms=0")
	b, err := cmd.CombinedOutput()
	if exit, ok := errors.AsType[*exec.ExitError](err); ok {
		return string(b), exit.ExitCode()
	} else if err != nil {
		return err.Error(), -1
	}
	return string(b), 0
}

// One agent of three was dead for two minutes: /readyz was 200 without a cause
// everywhere, alarms were empty, no metric told of partitions without a leader,
// the sidecar logged nothing of 837 publishes that failed, and `topic list` looked
// as always. Whoever looks sees it within five seconds, and its end.
func TestAnOutageIsSeenByWhoeverLooks(t *testing.T) {
	c := Start(t, 3, 1, Options{})
	side, dead, live := c.Sidecars[0], c.Agents[2], c.Agents[:2]
	c.CreateTopic("orders", 6)
	l := NewLedger()
	fill(t, l, side, "orders", 0, 30)
	pull := func(options string) (p api.Pulled, err error) {
		resp, err := http.Post(side.HTTP+"/groups/g/topics/orders/pull?ack=auto&max=50&"+options, "", nil)
		if err != nil {
			return p, err
		}
		defer resp.Body.Close()
		return p, json.NewDecoder(resp.Body).Decode(&p)
	}
	got := 0
	eventually(t, 30*time.Second, func() error {
		p, err := pull("wait=100ms")
		if got += len(p.Messages); err != nil || got < 30 {
			return fmt.Errorf("%d of 30 messages: %v", got, err)
		}
		return nil
	})
	var agentFlags, brokers []string
	for _, p := range c.Agents {
		var st struct{ Broker string }
		_, body, err := get(p, "/status")
		if err = errors.Join(err, json.Unmarshal([]byte(body), &st)); err != nil {
			t.Fatal(err)
		}
		brokers = append(brokers, st.Broker)
	}
	for _, p := range live {
		agentFlags = append(agentFlags, "--agent", p.HTTP)
	}
	ask := append([]string{"--bootstrap", strings.Join(brokers, ",")}, agentFlags...)
	eventually(t, 10*time.Second, func() error {
		if out, code := c.cli(append([]string{"status"}, ask...)...); code != 0 || !strings.HasPrefix(out, "well (") {
			return fmt.Errorf("status: %d %s", code, out)
		}
		return nil
	})

	t.Log("killing an agent")
	// The load goes on: some of it is for the partitions that go.
	var failed atomic.Int64
	load, endLoad := context.WithCancel(t.Context())
	var posting sync.WaitGroup
	for p := range 6 {
		posting.Go(func() {
			for n := 0; load.Err() == nil; n++ {
				resp, err := http.Post(fmt.Sprintf("%s/topics/orders?partition=%d&timeout=200ms", side.HTTP, p), "", strings.NewReader(fmt.Sprint(n)))
				if err != nil {
					continue
				}
				resp.Body.Close()
				if resp.StatusCode != 200 {
					failed.Add(1)
				}
				time.Sleep(100 * time.Millisecond)
			}
		})
	}
	defer posting.Wait()
	defer endLoad()

	dead.Kill()
	began := time.Now()
	var looking sync.WaitGroup
	seen := func(what string, look func() error) {
		looking.Go(func() {
			for {
				err := look()
				if took := time.Since(began).Round(10 * time.Millisecond); err == nil {
					t.Logf("%s: seen after %s", what, took)
					if took > seenWithin {
						t.Errorf("%s: seen after %s; want %s", what, took, seenWithin)
					}
					return
				}
				if time.Since(began) > 4*seenWithin {
					t.Errorf("%s: not seen: %v", what, err)
					return
				}
				time.Sleep(50 * time.Millisecond)
			}
		})
	}
	for _, p := range live {
		seen(p.Name, func() error {
			code, body, err := get(p, "/readyz")
			if err != nil || code != 200 {
				return fmt.Errorf("%d %v", code, err)
			}
			_, metrics, err := get(p, "/metrics")
			return errors.Join(err, lacks(body, "broker 3 (", "2 partitions of orders without a leader"),
				lacks(metrics, "sidestream_agent_offline_partitions 2\n", "sidestream_agent_brokers_missing 1\n", `sidestream_agent_broker_up{broker="3"} 0`))
		})
	}
	seen("sidecar", func() error {
		code, body, err := get(side, "/readyz")
		if err != nil || code != 200 {
			return fmt.Errorf("%d %v %s", code, err, body)
		}
		_, status, err := get(side, "/status")
		status = strings.NewReplacer("\n", "", " ", "").Replace(status)
		log, _ := os.ReadFile(side.log)
		return errors.Join(err, lacks(body, "2 partitions are away since", "orders (2 of 6)"), lacks(status, `"outage":{"since"`, `"away_partitions":2`),
			lacks(string(log), "partitions of topics that are used here are away"))
	})
	seen("pulls", func() error {
		p, err := pull("wait=1s")
		if err != nil || len(p.Messages) == 0 || p.Away != 2 {
			return fmt.Errorf("%d messages, %d away, %v", len(p.Messages), p.Away, err)
		}
		return rawTells(side)
	})

	looking.Wait()
	if t.Failed() {
		t.FailNow()
	}
	endLoad()
	posting.Wait()

	for _, x := range []struct {
		args []string
		code int
		want []string
	}{
		{append([]string{"status"}, ask...), 3, []string{"degraded: ", "broker 3 (", "2 partitions of orders", "since ", "to do: start the agent of broker 3", "2 of them without a leader", "told by agent"}},
		{append([]string{"status", "--json"}, ask...), 3, []string{`"state": "degraded"`, `"offline_partitions": 2`}},
		{append([]string{"topic", "list"}, ask...), 0, []string{"NO LEADER", "2 partitions of 1 topic without a leader", "as brokers "}},
		{append([]string{"topic", "list", "--json", "--lag"}, ask...), 0, []string{`"offline_partitions": 2`, `"lag": `, `"source": "brokers `}},
		{append([]string{"topic", "describe", "orders"}, ask...), 0, []string{"none", "2 partitions of 1 topic without a leader"}},
		{append([]string{"topic", "list", "--bootstrap", "127.0.0.1:1"}, agentFlags...), 0, []string{"2 partitions of 1 topic", "as agent " + live[0].HTTP + " (broker 1)", "no broker answers at 127.0.0.1:1"}},
		{[]string{"topic", "list", "--bootstrap", "127.0.0.1:1", "--agent", "127.0.0.1:1"}, 0, []string{"2 partitions of 1 topic", "as sidecar " + side.HTTP}},
		{[]string{"group", "describe", "g"}, 0, []string{"away: 2 partitions of topic orders", "their leaders are away"}},
		{[]string{"group", "list", "--json"}, 0, []string{`"group": "g"`, `"topic": "orders"`, `"partial": true`}},
		{[]string{"status", "--bootstrap", "127.0.0.1:1", "--agent", "127.0.0.1:1", "--sidecar", "127.0.0.1:1"}, 4, []string{"nobody answers"}},
	} {
		// The brokers' metadata follows once the dead one's session is ended, about
		// a second after the agents' alarms.
		eventually(t, 10*time.Second, func() error {
			out, code := c.cli(x.args...)
			if err := lacks(out, x.want...); err != nil || code != x.code {
				return fmt.Errorf("%v: exit code %d, want %d: %v", x.args, code, x.code, err)
			}
			return nil
		})
	}

	t.Logf("pausing Consul at %s", time.Since(began))
	c.Consul.Pause()
	eventually(t, 30*time.Second, func() error {
		out, code := c.cli(append([]string{"status"}, ask...)...)
		if code != 3 {
			return fmt.Errorf("exit code %d", code)
		}
		return lacks(out, "broker 3 (", "the coordination store has not answered since", "what it knows is ")
	})
	if out, code := c.cli("group", "describe", "g"); code != 0 || lacks(out, "note: ", "store", "only what sidecar sidecar-1 has of the group itself") != nil {
		t.Errorf("group describe without Consul: %d %s", code, out)
	}
	c.Consul.Resume()
	t.Logf("resumed Consul at %s", time.Since(began))

	dead.Start()
	dead.WaitReady(60 * time.Second)
	t.Logf("the agent is back at %s", time.Since(began))
	eventually(t, 30*time.Second, func() error {
		out, code := c.cli(append([]string{"status"}, append(ask, "--agent", dead.HTTP)...)...)
		log, _ := os.ReadFile(side.log)
		if code != 0 {
			return fmt.Errorf("exit code %d: %s", code, out)
		}
		return lacks(string(log), "no partition of the topics that are used here is away any more", `"failed_messages"`)
	})
	log, _ := os.ReadFile(side.log)
	for _, line := range []string{"partitions of topics that are used here are away", "no partition of the topics that are used here is away any more"} {
		if n := strings.Count(string(log), line); n != 1 {
			t.Errorf("%q is in the sidecar's log %d times", line, n)
		}
	}
	if failed.Load() == 0 {
		t.Error("no publish failed: the test shows nothing")
	}
}

// rawTells is an error unless a raw pull says that two partitions are away.
func rawTells(p *Process) error {
	resp, err := http.Post(p.HTTP+"/groups/g/topics/orders/pull?ack=auto&raw=1&wait=1s", "", nil)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.Header.Get("Sidestream-Away") != "2" {
		return fmt.Errorf("a raw pull: %d %v", resp.StatusCode, resp.Header)
	}
	return nil
}
