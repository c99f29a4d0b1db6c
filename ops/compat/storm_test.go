package compat

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// limitStorm is for one local cluster from its start to its end.
const limitStorm = 4 * time.Minute

// Storm's own spout keeps its offsets with our broker. With EARLIEST it goes
// back to the start unless the metadata that it finds beside an offset names
// its own topology: restarted in place, it must go on; and so must another
// topology of the group that begins with what is not committed.
func TestStormGoesOnFromItsCommittedOffsets(t *testing.T) {
	needJava(t, "storm")
	broker := startBroker(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*limitStorm)
	defer cancel()
	if keys := offered(ctx, t, broker); !keys[kmsg.OffsetCommit] || !keys[kmsg.OffsetFetch] {
		t.Skip("this broker does not offer OffsetCommit and OffsetFetch")
	}
	const topic, group = "storm", "compat-storm"
	createTopic(ctx, t, broker, topic, 2)

	first := startTopology(ctx, t, broker, topic, group, "EARLIEST")
	produceStorm(ctx, t, broker, topic, "one", 100)
	first.expect(t, "one", 100)
	waitCommitted(ctx, t, broker, topic, group, 100)
	first.command(t, "restart")
	first.await(t, "restarting")
	first.await(t, "prepared")
	produceStorm(ctx, t, broker, topic, "two", 50)
	first.expect(t, "two", 50)
	waitCommitted(ctx, t, broker, topic, group, 150)
	first.finish(t)

	produceStorm(ctx, t, broker, topic, "three", 30)
	second := startTopology(ctx, t, broker, topic, group, "UNCOMMITTED_EARLIEST")
	second.expect(t, "three", 30)
	waitCommitted(ctx, t, broker, topic, group, 180)
	second.finish(t)
}

func stormValue(round string, i int) string { return fmt.Sprintf("%s-%04d", round, i) }

func produceStorm(ctx context.Context, t *testing.T, broker, topic, round string, n int) {
	t.Helper()
	var records []Record
	for i := range n {
		records = append(records, Record{fmt.Sprint("key-", i), stormValue(round, i)})
	}
	if err := (franz{}).Produce(ctx, broker, topic, "none", records); err != nil {
		t.Fatal(err)
	}
}

// waitCommitted waits until the group's offsets add up to n, as they do at the
// spout's next commit.
func waitCommitted(ctx context.Context, t *testing.T, broker, topic, group string, n int64) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	var sum int64
	metadata := ""
	for range 150 {
		found, err := kadm.NewClient(client).FetchOffsets(ctx, group)
		if err != nil {
			t.Fatal(err)
		}
		sum = 0
		found.Each(func(o kadm.OffsetResponse) {
			if o.Topic == topic {
				sum, metadata = sum+max(0, o.At), o.Metadata
			}
		})
		if sum == n {
			t.Logf("committed %d, with the metadata %s", sum, metadata)
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Fatalf("the group has committed %d, want %d", sum, n)
}

// topology is a running Topology.java.
type topology struct {
	in     io.WriteCloser
	lines  chan string // what it prints; closed at its end
	ended  chan error
	cancel func()
	errs   *tail
	seen   []string // values of the tuples since the last expect
}

func startTopology(ctx context.Context, t *testing.T, broker, topic, group, strategy string) *topology {
	t.Helper()
	path, err := classPath(ctx, "storm", "Topology")
	if err != nil {
		t.Fatal(err)
	}
	var dirs []string // absolute, since it runs in a folder of its own, where Storm leaves logs
	for _, dir := range filepath.SplitList(path) {
		absolute, err := filepath.Abs(dir)
		if err != nil {
			t.Fatal(err)
		}
		dirs = append(dirs, absolute)
	}
	folder, err := os.MkdirTemp("", "compat-storm-")
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(ctx, limitStorm)
	cmd := exec.CommandContext(ctx, "java", slices.Concat(javaFlags, []string{"-Djava.io.tmpdir=" + folder,
		"-cp", strings.Join(dirs, string(filepath.ListSeparator)), "Topology", broker, topic, group, strategy})...)
	cmd.Dir = folder
	in, err := cmd.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	p := &topology{in: in, lines: make(chan string, 1000), ended: make(chan error, 1), cancel: cancel, errs: &tail{limit: 16 << 10}}
	cmd.Stderr = p.errs
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		scanner := bufio.NewScanner(out)
		for scanner.Scan() {
			p.lines <- scanner.Text()
		}
		close(p.lines)
		p.ended <- cmd.Wait()
	}()
	t.Cleanup(func() {
		cancel()
		for range p.lines {
		}
		<-p.ended
		if t.Failed() {
			t.Logf("Storm logged at last:\n%s", p.errs)
		}
		_ = os.RemoveAll(folder)
	})
	return p
}

func (p *topology) command(t *testing.T, line string) {
	t.Helper()
	if _, err := io.WriteString(p.in, line+"\n"); err != nil {
		t.Fatal(err)
	}
}

// next returns the next line, after it has noted the tuple that it tells.
func (p *topology) next(t *testing.T, quiet time.Duration) (string, bool) {
	t.Helper()
	select {
	case line, open := <-p.lines:
		if !open {
			t.Fatal("the topology ended")
		}
		if fields := strings.Split(line, "\t"); fields[0] == "tuple" && len(fields) == 4 {
			p.seen = append(p.seen, fields[3])
		}
		return line, true
	case <-time.After(quiet):
		return "", false
	}
}

func (p *topology) await(t *testing.T, want string) {
	t.Helper()
	for {
		line, told := p.next(t, time.Minute)
		if !told {
			t.Fatalf("the topology did not tell %q", want)
		}
		if line == want {
			return
		}
	}
}

// expect waits for n tuples and some time more, and fails if they are not
// those of one round, each once.
func (p *topology) expect(t *testing.T, round string, n int) {
	t.Helper()
	for len(p.seen) < n {
		if _, told := p.next(t, time.Minute); !told {
			t.Fatalf("%d tuples, want %d", len(p.seen), n)
		}
	}
	for {
		if _, told := p.next(t, 2*time.Second); !told {
			break
		}
	}
	var want []string
	for i := range n {
		want = append(want, stormValue(round, i))
	}
	slices.Sort(p.seen)
	if !slices.Equal(p.seen, want) {
		t.Fatalf("%d tuples that are not the %d of round %s: %v", len(p.seen), n, round, p.seen)
	}
	p.seen = nil
}

func (p *topology) finish(t *testing.T) {
	t.Helper()
	p.command(t, "stop")
	p.await(t, "stopped")
	if len(p.seen) > 0 {
		t.Errorf("%d tuples more while it stopped: %v", len(p.seen), p.seen)
	}
}
