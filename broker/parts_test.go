package broker

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"
	"pgregory.net/rapid"

	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
	"sidestream/broker/kafka"
	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

func TestUUID(t *testing.T) {
	const text = "0190c5f2-8f5e-7d3a-9c41-2b6f0e7a1d58"
	id, err := ParseUUID(text)
	if err != nil || id.String() != text {
		t.Fatalf("%v, %v", id, err)
	}
	for _, bad := range []string{"", "0190c5f28f5e7d3a9c412b6f0e7a1d58", text + "0", "g190c5f2-8f5e-7d3a-9c41-2b6f0e7a1d58", strings.ReplaceAll(text, "-", "_")} {
		if _, err := ParseUUID(bad); err == nil {
			t.Errorf("%q was taken", bad)
		}
	}
}

func TestDescriptionReadsAsWritten(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		d := description{
			Topic:     rapid.StringMatching(`[a-zA-Z0-9_-]{1,20}`).Draw(t, "topic"),
			Partition: rapid.Int32Min(0).Draw(t, "partition"), Count: rapid.Int32Min(0).Draw(t, "count"), Epoch: rapid.Int32Min(0).Draw(t, "epoch"),
			Configs: rapid.MapOf(rapid.StringMatching(`[a-z.]{1,12}`), rapid.String()).Draw(t, "configs"),
		}
		copy(d.ID[:], rapid.SliceOfN(rapid.Byte(), 16, 16).Draw(t, "id"))
		got, err := parseDescription(d.encode())
		if err != nil || !got.equal(d) || !maps.Equal(got.Configs, d.Configs) {
			t.Fatalf("%v:\n%s\ngot %+v", err, d.encode(), got)
		}
	})
}

func TestDescriptionRefusesWhatItDoesNotKnow(t *testing.T) {
	good := string(description{Topic: "t", Count: 1}.encode())
	for name, c := range map[string]struct{ text, want string }{
		"newer":      {strings.Replace(good, "version: 0", "version: 1", 1), "only 0"},
		"unknown":    {good + "colour: red\n", "unknown key"},
		"cut":        {good[:strings.Index(good, "uuid")], "missing"},
		"empty":      {"", "missing"},
		"path":       {strings.Replace(good, "topic: t", "topic: ../etc", 1), "contains '/'"},
		"no number":  {strings.Replace(good, "count: 1", "count: one", 1), "count"},
		"no colon":   {good + "x\n", "key: value"},
		"no base 64": {strings.Replace(good, "topic_id: ", "topic_id: !", 1), "base64"},
	} {
		if _, err := parseDescription([]byte(c.text)); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want a text with %q", name, err, c.want)
		}
	}
}

func TestConfigErrorsNameTheKeyAndTheRightForm(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatalf("the defaults: %v", err)
	}
	for want, change := range map[string]func(*Config){
		"listen: got \"x\": use host:port":                   func(c *Config) { c.Listen = "x" },
		"advertise: got port \"0\"":                          func(c *Config) { c.Advertise = "h:0" },
		"loops: got 0: use a number from 1 to 64":            func(c *Config) { c.Loops = 0 },
		"max_request_memory: got 5":                          func(c *Config) { c.MaxRequestMemory = 5 },
		"idle_timeout: got \"1ms\": use a dur":               func(c *Config) { c.IdleTimeout = time.Millisecond },
		"log_dirs: got \"here\": use absolute":               func(c *Config) { c.LogDirs = []string{"here"} },
		"scrub_interval: got \"1ms\": use a":                 func(c *Config) { c.ScrubInterval = time.Millisecond },
		"quota.fetch_clients: got \"1 MB\" for client \"x\"": func(c *Config) { c.Quota.FetchClients = map[string]string{"x": "1 MB"} },
		"quota.produce_bytes_per_second: got -1":             func(c *Config) { c.Quota.ProduceBytesPerSecond = -1 },
		"id: got -1":                                         func(c *Config) { c.ID = -1 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("got %v, want %q", err, want)
		}
	}
}

func TestTopicDefaultsAreTheKeysThatTheLogKnows(t *testing.T) {
	var have []string
	configs := map[string]string{}
	for _, d := range topicDefaults() {
		have = append(have, d.name)
		configs[d.name] = d.value
	}
	if want := commitlog.TopicKeys(); fmt.Sprint(have) != fmt.Sprint(want) {
		t.Errorf("shown %v, known %v", have, want)
	}
	cfg, policy, err := commitlog.ConfigFromTopic(configs)
	if err != nil || !policy.EveryAppend() {
		t.Fatalf("%v, %+v", err, policy)
	}
	if def, _, _ := commitlog.ConfigFromTopic(nil); cfg != def {
		t.Errorf("the defaults shown are %+v, in force are %+v", cfg, def)
	}
}

func TestProducerIDsAreHandedOutOnceEach(t *testing.T) {
	var mu sync.Mutex
	next, asks := int64(5), 0
	ids := newProducerIDs(func(context.Context) (int64, int64, error) {
		mu.Lock()
		defer mu.Unlock()
		next += 10
		asks++
		return next - 10, 10, nil
	})
	if _, ok := ids.take(); ok {
		t.Error("an id before any block")
	}
	seen := map[int64]bool{}
	var wg sync.WaitGroup
	for range 50 {
		wg.Add(1)
		go func() {
			defer wg.Done()
			id, err := ids.get(context.Background())
			mu.Lock()
			defer mu.Unlock()
			if err != nil || seen[id] {
				t.Errorf("id %d, %v", id, err)
			}
			seen[id] = true
		}()
	}
	wg.Wait()
	if asks != 5 {
		t.Errorf("asked %d times for 50 ids in blocks of 10", asks)
	}
	broken := newProducerIDs(func(context.Context) (int64, int64, error) { return 0, 0, nil })
	if _, err := broken.get(t.Context()); !errors.Is(err, ErrUnavailable) {
		t.Errorf("an empty block: %v", err)
	}
}

// verdicts answers the sequence check from a list.
type verdicts []commitlog.Verdict

func (v *verdicts) Check(record.Header) commitlog.Verdict {
	out := (*v)[0]
	*v = (*v)[1:]
	return out
}

func appends(sizes ...int) (out []kafka.Append) {
	for i, n := range sizes {
		out = append(out, kafka.Append{Batch: make([]byte, n), Header: record.Header{LastOffsetDelta: int32(i)}})
	}
	return out
}

func TestStageGivesOffsetsAndVerdicts(t *testing.T) {
	v := verdicts{{Kind: commitlog.New}, {Kind: commitlog.Duplicate, First: 4, Last: 6}, {Kind: commitlog.UnknownProducer},
		{Kind: commitlog.OldDuplicate}, {Kind: commitlog.OutOfOrder}, {Kind: commitlog.StaleEpoch}}
	g := stage(appends(1, 1, 1, 1, 1, 1), &v)
	if g.taken != 6 || len(g.batches) != 2 {
		t.Fatalf("%+v", g)
	}
	g.settle(100, 100, nil)
	want := []outcome{{100, 101, nil}, {4, 7, nil}, {101, 104, nil}, {-1, -1, kafka.ErrDuplicateSequence}, {-1, -1, kafka.ErrOutOfOrder}, {-1, -1, kafka.ErrStaleProducer}}
	for i := range want {
		if g.outcomes[i] != want[i] {
			t.Errorf("number %d: %+v, want %+v", i, g.outcomes[i], want[i])
		}
	}
}

func TestStageBoundsAWriteAndTakesAtLeastOne(t *testing.T) {
	fresh := func(n int) *verdicts { v := make(verdicts, n); return &v }
	if g := stage(appends(maxGroupBytes/2, maxGroupBytes/2, 1), fresh(3)); g.taken != 2 {
		t.Errorf("took %d", g.taken)
	}
	if g := stage(appends(2*maxGroupBytes, 1), fresh(2)); g.taken != 1 {
		t.Errorf("took %d", g.taken)
	}
}

func TestStageFailsTheDuplicatesOfWhatWasNotWritten(t *testing.T) {
	v := verdicts{{Kind: commitlog.New}, {Kind: commitlog.Duplicate, First: 100, Last: 100}, {Kind: commitlog.Duplicate, First: 7, Last: 7}}
	g := stage(appends(1, 1, 1), &v)
	g.settle(0, 100, commitlog.ErrNoSpace)
	for i, want := range []error{commitlog.ErrNoSpace, commitlog.ErrNoSpace, nil} {
		if g.outcomes[i].err != want {
			t.Errorf("number %d: %+v", i, g.outcomes[i])
		}
	}
}

// One fdatasync covers everything that came while the last one ran.
func TestGroupCommit(t *testing.T) {
	gate := make(chan struct{})
	var mu sync.Mutex
	blocking, syncs := false, 0
	fs := disk.WithFaults(disk.NewMem(), func(op disk.Op) error {
		if op.Kind != disk.OpDatasync || !strings.HasSuffix(op.Name, ".log") {
			return nil
		}
		mu.Lock()
		b := blocking
		syncs++
		mu.Unlock()
		if b {
			<-gate
		}
		return nil
	})
	cfg := DefaultConfig()
	cfg.DataDir = "/data"
	b, err := Open(cfg, nowhere{}, Options{FS: fs})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := b.Close(context.Background()); err != nil {
			t.Error(err)
		}
	}()
	if err := b.Lead(Lead{Topic: "t", ID: UUID{1}, Count: 1}); err != nil {
		t.Fatal(err)
	}
	p, err := b.Partition("t", 0)
	if err != nil {
		t.Fatal(err)
	}
	mu.Lock()
	blocking, syncs = true, 0
	mu.Unlock()
	const n = 100
	var order []int64
	answered := make(chan kafka.Appended, n)
	put := func(acks int16) {
		batch := recordtest.Batch(recordtest.Spec{})
		h, err := record.Check(batch, 0)
		if err != nil {
			t.Fatal(err)
		}
		p.Append(kafka.Append{Batch: batch, Header: h, Acks: acks, Done: func(a kafka.Appended) { answered <- a }})
	}
	for range n {
		put(-1)
	}
	// acks=1 is answered although nothing is durable, and nothing is visible.
	put(1)
	if a := <-answered; a.Err != nil || a.Base != n {
		t.Fatalf("acks=1: %+v", a)
	}
	if at := p.Offsets(); at.HighWatermark != 0 || at.End != n+1 {
		t.Errorf("before the first sync: %+v", at)
	}
	mu.Lock()
	blocking = false
	mu.Unlock()
	close(gate)
	for range n {
		a := <-answered
		if a.Err != nil {
			t.Fatal(a.Err)
		}
		order = append(order, a.Base)
	}
	for i, base := range order {
		if base != int64(i) {
			t.Fatalf("answer %d has offset %d", i, base)
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if syncs > 3 {
		t.Errorf("%d syncs for %d appends that queued during the first", syncs, n)
	}
}

// nowhere is a cluster that can do nothing.
type nowhere struct{}

func (nowhere) View() *View { return &View{Topics: map[string]*TopicView{}} }
func (nowhere) CreateTopic(context.Context, TopicSpec) (TopicView, error) {
	return TopicView{}, ErrUnavailable
}
func (nowhere) DeleteTopic(context.Context, string) error { return ErrUnavailable }
func (nowhere) CreatePartitions(context.Context, string, int32, ...[]int32) error {
	return ErrUnavailable
}
func (nowhere) AlterTopic(context.Context, string, func(map[string]string) (map[string]string, error)) error {
	return ErrUnavailable
}
func (nowhere) CommitOffsets(context.Context, string, map[PartitionID]CommittedOffset) error {
	return ErrUnavailable
}
func (nowhere) CommittedOffsets(context.Context, string) (map[PartitionID]CommittedOffset, error) {
	return nil, ErrUnavailable
}
func (nowhere) CommittedGroups(context.Context) ([]string, error)        { return nil, ErrUnavailable }
func (nowhere) DropOffsets(context.Context, string, []PartitionID) error { return ErrUnavailable }
func (nowhere) NextProducerIDs(context.Context) (int64, int64, error)    { return 0, 0, ErrUnavailable }

func compressed(t *testing.T, codec record.Codec, data []byte) []byte {
	t.Helper()
	var out bytes.Buffer
	var err error
	switch codec {
	case record.Gzip:
		w := gzip.NewWriter(&out)
		_, err = w.Write(data)
		err = errors.Join(err, w.Close())
	case record.Snappy:
		out.Write(s2.EncodeSnappy(nil, data))
	case record.LZ4:
		w := lz4.NewWriter(&out)
		_, err = w.Write(data)
		err = errors.Join(err, w.Close())
	case record.Zstd:
		w, werr := zstd.NewWriter(&out)
		if werr != nil {
			t.Fatal(werr)
		}
		_, err = w.Write(data)
		err = errors.Join(err, w.Close())
	}
	if err != nil {
		t.Fatal(err)
	}
	return out.Bytes()
}

func TestDecompressIsBounded(t *testing.T) {
	small := []byte(strings.Repeat("hello ", 1000))
	u := newUnpacking(1 << 20)
	bomb := make([]byte, 1<<20+1)
	for _, codec := range []record.Codec{record.Gzip, record.Snappy, record.LZ4, record.Zstd} {
		packed, err := compress(codec, small)
		if err != nil || len(packed) >= len(small) {
			t.Errorf("%v: packed to %d bytes, %v", codec, len(packed), err)
		}
		for _, b := range [][]byte{packed, compressed(t, codec, small)} {
			got, done, err := u.decompress(codec, b)
			if err != nil || !bytes.Equal(got, small) {
				t.Fatalf("%v: %d bytes, %v", codec, len(got), err)
			}
			done()
		}
		if _, _, err := u.decompress(codec, compressed(t, codec, bomb)); !errors.Is(err, record.ErrTooLarge) {
			t.Errorf("%v: a batch that unpacks to %d bytes: %v", codec, len(bomb), err)
		}
		if _, _, err := u.decompress(codec, []byte("no such thing")); err == nil {
			t.Errorf("%v: garbage was unpacked", codec)
		}
	}
	if u.memory.Claim().Take(t.Context(), 2<<20) != nil {
		t.Error("not all of the memory came back")
	}
}
