package devserver_test

import (
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/discovery/discoverytest"
)

// stop ends it as an operator would.
func (a *agentProcess) stop() {
	a.t.Helper()
	if err := a.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		a.t.Fatal(err)
	}
	a.exited <- <-a.exited
}

// alarms are those of /status, while they change.
func (a *agentProcess) alarms() string {
	a.t.Helper()
	response, err := http.Get(a.http + "/status")
	if err != nil {
		a.t.Fatal(err)
	}
	defer response.Body.Close()
	var status struct{ Alarms []string }
	if err := json.NewDecoder(response.Body).Decode(&status); err != nil {
		a.t.Fatal(err)
	}
	return strings.Join(status.Alarms, " ")
}

// records is how many a topic's only partition holds.
func (p peer) records(topic string) int64 {
	p.t.Helper()
	starts, err := p.admin.ListStartOffsets(p.t.Context(), topic)
	ends, err2 := p.admin.ListEndOffsets(p.t.Context(), topic)
	if err = errors.Join(err, err2); err != nil {
		p.t.Fatal(err)
	}
	start, _ := starts.Lookup(topic, 0)
	end, _ := ends.Lookup(topic, 0)
	return end.Offset - start.Offset
}

func (p peer) make(topic, retention string) {
	p.t.Helper()
	answer, err := p.admin.CreateTopic(p.t.Context(), 1, 1, map[string]*string{"retention.ms": &retention}, topic)
	if err = errors.Join(err, answer.Err); err != nil {
		p.t.Fatal(err)
	}
}

func (p peer) put(topic string, at time.Time) {
	p.t.Helper()
	if err := p.client.ProduceSync(p.t.Context(), &kgo.Record{Topic: topic, Timestamp: at, Value: []byte("v")}).FirstErr(); err != nil {
		p.t.Fatal(err)
	}
}

// Five records of now, kept for a day. A host that began with a wrong clock, and
// a backup that was restored with old file times, had them deleted within a
// minute. The binary is one whose clock a test can move.
func TestAWrongClockDeletesNothing(t *testing.T) {
	program := filepath.Join(t.TempDir(), "sidestream")
	if out, err := exec.Command("go", "build", "-tags", "testclock", "-o", program, "sidestream/ops/sidestream").CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	wrong := filepath.Join(t.TempDir(), "clock")
	move := func(by string) {
		t.Helper()
		if err := os.WriteFile(wrong, []byte(by), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	move("0s")
	t.Setenv("TESTCLOCK", wrong)
	t.Setenv("SIDESTREAM_BROKER_RETENTION_CHECK_INTERVAL", "1s")
	dir, consul := t.TempDir(), discoverytest.Start(t, "")
	a := startAgent(t, program, dir, consul.Addr())
	restart := func() {
		t.Helper()
		a.stop()
		a = startAgent(t, program, dir, consul.Addr())
	}
	keeps := func(when string, want int64) {
		t.Helper()
		time.Sleep(3 * time.Second) // retention looks each second
		if got := dial(t, a.addr).records("kept"); got != want {
			t.Fatalf("%s: %d records of %d are left\n%s", when, got, want, a.said())
		}
	}
	alarmed := func(words string) {
		t.Helper()
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
			got := a.alarms()
			if words == "" && got == "" || words != "" && strings.Contains(got, words) {
				return
			}
			if time.Now().After(end) {
				t.Fatalf("alarms %q, want %q", got, words)
			}
		}
	}
	p := dial(t, a.addr)
	p.make("kept", "86400000")
	for range 5 {
		p.put("kept", time.Now())
	}
	a.stop()
	logs, err := filepath.Glob(filepath.Join(dir, "kept-0", "*.log"))
	if err != nil || len(logs) != 1 {
		t.Fatal(logs, err)
	}
	old := time.Date(2020, 1, 1, 0, 0, 0, 0, time.UTC)
	if err := os.Chtimes(logs[0], old, old); err != nil {
		t.Fatal(err)
	}
	a = startAgent(t, program, dir, consul.Addr())
	keeps("files of 2020", 5)
	alarmed("")

	move("48h")
	alarmed("nothing is deleted by time: the clock was moved by 48h0m")
	dial(t, a.addr).put("kept", time.Now())
	keeps("a clock that jumped", 6)
	restart()
	alarmed("the clock was moved by 48h0m")
	keeps("a start with a clock that is ahead", 6)
	move("48h synchronised")
	alarmed("the kernel's, which it calls synchronised, says")
	move("-20000h")
	alarmed("the clock was moved by -20000h0m")
	dial(t, a.addr).put("kept", time.Now()) // appended by a clock that is years behind
	move("0s")
	alarmed("")
	keeps("a clock that is right again", 7)

	// What is old goes: records of 2100 by when they were appended.
	p = dial(t, a.addr)
	p.make("short", "2000")
	p.put("short", time.Date(2100, 1, 1, 0, 0, 0, 0, time.UTC))
	for end := time.Now().Add(30 * time.Second); p.records("short") > 0; time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("a record of 2100 does not expire\n%s", a.said())
		}
	}
	keeps("at the end", 7)
}
