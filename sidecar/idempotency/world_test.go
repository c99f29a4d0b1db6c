package idempotency

import (
	"context"
	"fmt"
	"sync"
	"testing"
	"time"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// world is brokers and what lies before them, in memory: it does with messages
// what a plan says, and forgets nothing.
type world struct {
	t testing.TB

	// mu guards what follows.
	mu     sync.Mutex
	uuid   string
	logs   [][]string // ids, by partition and offset
	starts []int64
	flaky  int            // so many looks fail from now on
	bad    map[int32]bool // partitions whose leader is away
	away   bool           // the brokers cannot be asked
	gone   bool           // the topic is not there
	turns  int32          // of messages without a key
	plan   []plan         // for the next requests; none: they are written
	passed int            // requests that were passed on
	flying []func()       // what is still on its way: each lands, or is lost, when called
	dead   bool           // the process was killed: what it still does has no effect
	held   map[string]api.BatchResult
	silent bool // the spool tells nothing

	before, after func() // called when a request is passed on, and when it is done; nil: not
}

// plan is what becomes of a request.
type plan int

const (
	written200 plan = iota
	absent503
	landsWritten // 504, and then written
	landsAbsent  // 504, and then it turns out not to be
	lostWritten  // 504 for ever, but written
	lostAbsent   // 504 for ever, and not written
	refused422   // as a whole
	intoSpool    // 202
	plans

	stalls      plan = 100 + iota // 504 for ever, and written when nobody believes in it any more
	lostSpooled                   // 504 for ever, but in the spool
)

func newWorld(t testing.TB) *world {
	return &world{t: t, uuid: "u", logs: make([][]string, 3), starts: make([]int64, 3), held: map[string]api.BatchResult{}}
}

func (w *world) topic() (upstream.Topic, error) {
	switch {
	case w.away:
		return upstream.Topic{}, api.NewError(api.CodeBrokersUnavailable, "away")
	case w.gone:
		return upstream.Topic{}, api.NewError(api.CodeTopicNotFound, "gone")
	}
	t := upstream.Topic{Name: "t", UUID: w.uuid}
	for i := range w.logs {
		t.Partitions = append(t.Partitions, upstream.Partition{ID: int32(i)})
	}
	return t, nil
}

func (w *world) Topic(context.Context, string) (upstream.Topic, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.topic()
}

func (w *world) Refresh(ctx context.Context, name string) (upstream.Topic, error) {
	return w.Topic(ctx, name)
}

func (w *world) CreateTopic(context.Context, string, api.TopicSpec) (upstream.Topic, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.gone = false
	return w.topic()
}

func (w *world) offsets(of func(p int) int64) (map[int32]int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away {
		return nil, api.NewError(api.CodeBrokersUnavailable, "away")
	}
	m := map[int32]int64{}
	for i := range w.logs {
		m[int32(i)] = of(i)
	}
	return m, nil
}

func (w *world) StartOffsets(context.Context, string) (map[int32]int64, error) {
	return w.offsets(func(p int) int64 { return w.starts[p] })
}

func (w *world) EndOffsets(context.Context, string) (map[int32]int64, error) {
	return w.offsets(func(p int) int64 { return int64(len(w.logs[p])) })
}

func (w *world) OffsetsAt(context.Context, string, time.Time) (map[int32]int64, error) {
	return w.offsets(func(p int) int64 { return w.starts[p] })
}

func (w *world) Find(_ context.Context, _ string, partition int32, from int64, ids map[string]struct{}) (map[string]int64, int64, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.away || w.bad[partition] {
		return nil, from, api.NewError(api.CodeBrokersUnavailable, "away")
	}
	if w.flaky > 0 {
		w.flaky--
		return nil, from, api.NewError(api.CodeBrokersUnavailable, "flaky")
	}
	found := map[string]int64{}
	log := w.logs[partition]
	for o := max(from, w.starts[partition]); o < int64(len(log)); o++ {
		if _, ok := ids[log[o]]; ok {
			found[log[o]] = o
		}
	}
	return found, int64(len(log)), nil
}

func (w *world) Held(ids map[string]struct{}) (map[string]api.BatchResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.silent {
		return nil, errAway
	}
	held := map[string]api.BatchResult{}
	for id := range ids {
		if r, ok := w.held[id]; ok {
			held[id] = r
		}
	}
	return held, nil
}

// append writes messages; mu is held.
func (w *world) append(ms []publish.Message) []api.BatchResult {
	results := make([]api.BatchResult, len(ms))
	for i, m := range ms {
		p := w.turns % int32(len(w.logs))
		if m.Partition != nil {
			p = *m.Partition
		} else {
			w.turns++
		}
		results[i] = api.BatchResult{Partition: p, Offset: int64(len(w.logs[p]))}
		w.logs[p] = append(w.logs[p], idIn(m))
	}
	return results
}

func idIn(m publish.Message) string {
	for _, h := range m.Headers {
		if h.Key == headerID {
			return string(h.Value)
		}
	}
	return ""
}

func all(n int, e *api.Error) []api.BatchResult {
	results := make([]api.BatchResult, n)
	for i := range results {
		results[i] = api.BatchResult{Offset: -1, Error: e}
	}
	return results
}

var (
	errUnheard = api.NewError(api.CodeUnknownOutcome, "unheard")
	errAway    = api.NewError(api.CodeBrokersUnavailable, "away")
)

func (w *world) PublishBatch(_ context.Context, _ string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.before != nil {
		w.before()
	}
	if w.after != nil {
		defer func(after func()) { after() }(w.after)
	}
	copies := append([]publish.Message(nil), ms...)
	w.passed++
	next := written200
	if len(w.plan) > 0 {
		next, w.plan = w.plan[0], w.plan[1:]
	}
	if o.Entered != nil {
		o.Entered()
	}
	lands := func(land func() []api.BatchResult) ([]api.BatchResult, error) {
		w.flying = append(w.flying, func() {
			w.mu.Lock()
			dead := w.dead
			results := land()
			w.mu.Unlock()
			if !dead {
				o.Landed(results)
			}
		})
		return all(len(ms), errUnheard), nil
	}
	switch next {
	case landsWritten:
		return lands(func() []api.BatchResult { return w.append(copies) })
	case landsAbsent:
		return lands(func() []api.BatchResult { return all(len(copies), errAway) })
	}
	defer o.Landed(nil)
	switch next {
	case absent503:
		return all(len(ms), errAway), nil
	case lostWritten:
		w.append(ms)
		return all(len(ms), errUnheard), nil
	case lostAbsent:
		return all(len(ms), errUnheard), nil
	case stalls:
		w.flying = append(w.flying, func() {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.append(copies)
		})
		return all(len(ms), errUnheard), nil
	case refused422:
		e := api.NewError(api.CodeBadRecord, "bad")
		e.Line = 1
		return nil, e
	case intoSpool, lostSpooled:
		results := make([]api.BatchResult, len(ms))
		for i, m := range ms {
			results[i] = api.BatchResult{Partition: 1, Offset: -1, SpoolID: fmt.Sprintf("spool-%d", len(w.held))}
			w.held[idIn(m)] = results[i]
		}
		if next == lostSpooled {
			results = all(len(ms), errUnheard)
		}
		return results, nil
	}
	return w.append(ms), nil
}

func (w *world) Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error) {
	results, err := w.PublishBatch(ctx, topic, []publish.Message{m}, o)
	if err != nil {
		return api.Published{}, err
	}
	r := results[0]
	if r.Error != nil {
		return api.Published{}, r.Error
	}
	return api.Published{Topic: topic, Partition: r.Partition, Offset: r.Offset, Timestamp: m.Timestamp.UnixMilli(), SpoolID: r.SpoolID}, nil
}

// land lets everything on its way land.
func (w *world) land() {
	w.mu.Lock()
	flying := w.flying
	w.flying = nil
	w.mu.Unlock()
	for _, f := range flying {
		f()
	}
}

// next sets what becomes of the next requests.
func (w *world) next(plans ...plan) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.plan = plans
}

// copies counts the records by id, those of the spool too.
func (w *world) copies() map[string]int {
	w.mu.Lock()
	defer w.mu.Unlock()
	n := map[string]int{}
	for _, log := range w.logs {
		for _, id := range log {
			n[id]++
		}
	}
	for id := range w.held {
		n[id]++
	}
	return n
}

func (w *world) total() (n int) {
	for _, c := range w.copies() {
		n += c
	}
	return n
}

func (w *world) requests() int {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.passed
}

// rig is Keys over a world and a disk.
type rig struct {
	*Keys
	t     *testing.T
	world *world
	fs    *disk.Mem
	deps  Deps
	cfg   Config
}

func newRig(t *testing.T, change func(*Config, *Deps)) *rig {
	t.Helper()
	r := &rig{t: t, world: newWorld(t), fs: disk.NewMem(), cfg: DefaultConfig()}
	r.deps = Deps{Dir: "/keys", Nonce: "n", Brokers: r.world, Spool: r.world, Timeout: 10 * time.Second, MaxTimeout: time.Minute, quiet: time.Millisecond}
	if change != nil {
		change(&r.cfg, &r.deps)
	}
	if r.deps.FS == nil {
		r.deps.FS = r.fs
	}
	r.open()
	t.Cleanup(func() {
		if err := r.Keys.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

func (r *rig) open() {
	r.t.Helper()
	k, err := New(r.world, r.cfg, r.deps)
	if err != nil {
		r.t.Fatal(err)
	}
	r.Keys = k
}

// restart stops and starts the process.
func (r *rig) restart() {
	r.t.Helper()
	if err := r.Keys.Close(); err != nil {
		r.t.Fatal(err)
	}
	r.open()
}

// crash kills the process, and the power with it; what was on its way in it is
// written or lost.
func (r *rig) crash(seed uint64) {
	r.t.Helper()
	r.crashTo(r.fs.Crash(seed))
}

// crashTo goes on with a disk as it was when the process was killed.
func (r *rig) crashTo(fs *disk.Mem) {
	r.t.Helper()
	r.world.mu.Lock()
	r.world.dead = true
	r.world.mu.Unlock()
	r.world.land()
	_ = r.Keys.Close() // into the disk of a life that is over
	r.world.mu.Lock()
	r.world.dead = false
	r.world.mu.Unlock()
	r.fs, r.deps.FS = fs, fs
	r.open()
}

// post publishes one message; its value is its key.
func (r *rig) post(key string, change ...func(*publish.Message, *publish.Options)) (api.Published, bool, error) {
	m := publish.Message{Value: []byte(key)}
	again := false
	o := publish.Options{IdempotencyKey: key, Timeout: 5 * time.Second, Replayed: func() { again = true }}
	for _, c := range change {
		c(&m, &o)
	}
	done, err := r.Publish(context.Background(), "t", m, o)
	return done, again, err
}

func (r *rig) batch(key string, n int, change ...func(*publish.Options)) ([]api.BatchResult, bool, error) {
	ms := make([]publish.Message, n)
	for i := range ms {
		ms[i].Value = fmt.Appendf(nil, "%s %d", key, i)
		if i%2 == 0 {
			ms[i].Key = fmt.Appendf(nil, "k%d", i)
		}
	}
	again := false
	o := publish.Options{IdempotencyKey: key, Timeout: 5 * time.Second, Replayed: func() { again = true }}
	for _, c := range change {
		c(&o)
	}
	results, err := r.PublishBatch(context.Background(), "t", ms, o)
	return results, again, err
}
