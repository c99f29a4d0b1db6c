package devserver_test

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
	"sidestream/discovery/discoverytest"
	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// sidecarProcess is a running `sidestream sidecar` with 4 GB of address space.
type sidecarProcess struct {
	cmd       *exec.Cmd
	exited    chan struct{}
	http, log string
}

func startSidecar(t *testing.T, program, dir, consul string) *sidecarProcess {
	t.Helper()
	s := &sidecarProcess{exited: make(chan struct{}), log: filepath.Join(t.TempDir(), "log")}
	address := free(t)
	s.http = "http://" + address
	s.cmd = exec.Command("sh", "-c", `ulimit -v 4000000; exec "$0" "$@"`, program, "sidecar", "--data-dir", dir, "--listen", address, "--consul-address", consul)
	log, err := os.Create(s.log)
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	s.cmd.Stdout, s.cmd.Stderr = log, log
	if err := s.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		_ = s.cmd.Wait()
		close(s.exited)
	}()
	t.Cleanup(s.kill)
	for end := time.Now().Add(90 * time.Second); ; {
		response, err := http.Get(s.http + "/readyz")
		if err == nil {
			response.Body.Close()
			if response.StatusCode == http.StatusOK {
				return s
			}
		}
		if time.Now().After(end) {
			t.Fatalf("the sidecar is not ready: %v\n%s", err, s.said())
		}
		s.lives(t)
		time.Sleep(50 * time.Millisecond)
	}
}

func (s *sidecarProcess) said() string {
	text, err := os.ReadFile(s.log)
	if len(text) > 8000 {
		text = text[len(text)-8000:]
	}
	return fmt.Sprint(string(text), err)
}

func (s *sidecarProcess) lives(t *testing.T) {
	t.Helper()
	select {
	case <-s.exited:
		t.Fatalf("the sidecar has ended: %v\n%s", s.cmd.ProcessState, s.said())
	default:
	}
}

func (s *sidecarProcess) kill() {
	_ = s.cmd.Process.Kill()
	<-s.exited
}

// peak is the most memory that it had, in bytes.
func (s *sidecarProcess) peak(t *testing.T) int64 {
	t.Helper()
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", s.cmd.Process.Pid))
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(text)) {
		var kB int64
		if _, err := fmt.Sscanf(line, "VmHWM: %d kB", &kB); err == nil {
			return kB << 10
		}
	}
	t.Fatalf("no VmHWM in %s", text)
	return 0
}

// call does a request and decodes what it answers.
func (s *sidecarProcess) call(t *testing.T, method, path string, out any) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), method, s.http+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	response, err := http.DefaultClient.Do(req)
	if err != nil {
		s.lives(t)
		t.Fatalf("%s %s: %v\n%s", method, path, err, s.said())
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err == nil {
		err = json.Unmarshal(body, out)
	}
	if err != nil {
		t.Fatalf("%s %s: %v: %.300s", method, path, err, body)
	}
	return response.StatusCode
}

// consume takes so many messages of a topic and acknowledges them.
func (s *sidecarProcess) consume(t *testing.T, group, topic string, count int) (offsets []int64) {
	t.Helper()
	for end := time.Now().Add(60 * time.Second); len(offsets) < count; {
		var pulled api.Pulled
		s.call(t, http.MethodPost, "/groups/"+group+"/topics/"+topic+"/pull?wait=2s&ack=auto", &pulled)
		for _, m := range pulled.Messages {
			offsets = append(offsets, m.Offset)
		}
		if time.Now().After(end) {
			t.Fatalf("group %s got %v of topic %s\n%s", group, offsets, topic, s.said())
		}
	}
	return offsets
}

// namedProduce names its topic instead of giving its id.
type namedProduce struct{ *kmsg.ProduceRequest }

func (namedProduce) MaxVersion() int16 { return 12 }

// put writes a batch as it is.
func put(t *testing.T, client *kgo.Client, topic string, batch []byte) {
	t.Helper()
	req := kmsg.NewPtrProduceRequest()
	req.Acks, req.TimeoutMillis = -1, 30_000
	req.Topics = []kmsg.ProduceRequestTopic{{Topic: topic, Partitions: []kmsg.ProduceRequestTopicPartition{{Records: batch}}}}
	response, err := client.Request(t.Context(), namedProduce{req})
	if err == nil {
		err = kerr.ErrorForCode(response.(*kmsg.ProduceResponse).Topics[0].Partitions[0].ErrorCode)
	}
	if err != nil {
		t.Fatalf("topic %s: %v", topic, err)
	}
}

// A batch of one megabyte that unpacks to a gigabyte drove every sidecar that
// pulled it to 7 to 12 GB. With 6 GB of address space it died, and died again
// after each start, before it had written the dead letter; a peek took 11 GB.
//
// Now, with 4 GB, for each codec, alone and behind good messages, as one record
// and as many: one letter, the others go on, within the memory that the
// documentation says. Brokers may hold such batches, of other makes, or of ours
// with another limit.
func TestBombsAtASidecarOfItsOwn(t *testing.T) {
	consul := discoverytest.Start(t, "")
	program := binary(t)
	agent := startAgent(t, program, t.TempDir(), consul.Addr(), "--broker-max-unpacked-bytes", "2147483647")
	client, err := kgo.NewClient(kgo.SeedBrokers(agent.addr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()

	good := recordtest.Batch(recordtest.Spec{Values: []string{"a", "b", "c"}})
	var trials []trial
	configs := map[string]*string{"max.message.bytes": kadm.StringPtr("5000000")}
	create := func(topic string) {
		t.Helper()
		if _, err := kadm.NewClient(client).CreateTopic(t.Context(), 1, 1, configs, topic); err != nil {
			t.Fatal(err)
		}
	}
	create("ordinary")
	put(t, client, "ordinary", bytes.Clone(good))
	for _, f := range recordtest.Forms {
		size := 1 << 30
		if f.Codec == record.Snappy { // which makes 21 bytes of one at most
			size = 80 << 20
		}
		for _, x := range []trial{{"alone-" + f.Name, 0, 1}, {"behind-" + f.Name, 3, 256}} {
			create(x.topic)
			if x.before > 0 {
				put(t, client, x.topic, bytes.Clone(good))
			}
			put(t, client, x.topic, f.Bomb(x.records, size/x.records))
			put(t, client, x.topic, bytes.Clone(good))
			trials = append(trials, x)
		}
	}

	dir := t.TempDir()
	s := startSidecar(t, program, dir, consul.Addr())
	walk := func(group string) {
		begun := time.Now()
		s.consume(t, group, "ordinary", 3)
		t.Logf("%s: without a bomb %s", group, time.Since(begun))
		idle := s.peak(t)
		t.Run(group, func(t *testing.T) {
			for _, x := range trials {
				t.Run(x.topic, func(t *testing.T) {
					t.Parallel()
					x.run(t, s, group+"-"+x.topic)
				})
			}
		})
		budget := upstream.DefaultConfig().UnpackMemory
		grown := s.peak(t) - idle
		t.Logf("%s: idle %d MB, grown by %d MB of %d", group, idle>>20, grown>>20, budget>>20)
		if grown > budget {
			t.Errorf("%s: the sidecar grew by %d bytes, and may by %d", group, grown, budget)
		}
	}
	walk("first")
	s.kill()
	s = startSidecar(t, program, dir, consul.Addr())
	walk("fresh") // groups that begin, in a process that begins
}

// trial is a topic: so many good messages, a bomb of so many records, three good
// messages.
type trial struct {
	topic           string
	before, records int
}

func (x trial) run(t *testing.T, s *sidecarProcess, group string) {
	bomb, after := int64(x.before), int64(x.before+x.records)
	begun := time.Now()
	got := s.consume(t, group, x.topic, x.before+3)
	took := time.Since(begun)
	t.Logf("took %s", took)
	if took > 15*time.Second { // a second on a machine that does nothing else
		t.Errorf("one batch took %s", took)
	}
	if first := got[x.before]; first != after {
		t.Errorf("what follows begins at %d: %v", after, got)
	}
	var dead api.DeadLetters
	s.call(t, http.MethodGet, "/groups/"+group+"/topics/"+x.topic+"/dead", &dead)
	if len(dead.Letters) != 1 || dead.Letters[0].Reason != "oversized" || dead.Letters[0].Offset != bomb || dead.Letters[0].Until != after {
		t.Errorf("letters %+v", dead.Letters)
	}
	var failed api.ErrorBody
	peek := "/topics/" + x.topic + "/partitions/0/messages?offset="
	if s.call(t, http.MethodGet, peek+fmt.Sprint(bomb), &failed); failed.Error == nil || failed.Error.Code != api.CodeCorruptRecord ||
		!strings.Contains(failed.Error.Message, fmt.Sprintf("kafka.max_unpacked_bytes); what follows begins at offset %d", after)) {
		t.Errorf("a peek says %+v", failed.Error)
	}
	var peeked api.Peeked
	if s.call(t, http.MethodGet, peek+fmt.Sprint(after), &peeked); len(peeked.Messages) != 3 {
		t.Errorf("behind it %+v", peeked)
	}
}
