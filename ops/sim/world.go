// Package sim drives the state machines of replication (broker/replica and
// agent/controller) through seeded schedules: messages in any order, lost or
// late, one-way cuts, pauses, kills, power cuts that keep any part of what was
// not synced, replaced folders, wrong suspicion, several controllers at once,
// and a store that is away. It checks what must hold whatever happens. The same
// seed is the same run.
package sim

import (
	"fmt"
	"math/rand/v2"
	"time"

	"sidestream/agent/controller"
	"sidestream/broker/replica"
)

// Plan is what a run is made of.
type Plan struct {
	Brokers  int // 3 to 5
	Parts    int // partitions
	Shard    int // partitions in a shard, which conflict in the store
	Replicas int // 0: any number, which may be raised, by the seed
	Steps    int // under faults
	MinISR   int // 0: 1 or 2, by the seed
}

// Small is the plan that mutants are looked for with: one partition on three
// brokers.
var Small = Plan{Brokers: 3, Parts: 1, Shard: 1, Replicas: 3, Steps: 4000}

// Wide has several partitions of different size on more brokers, of which two
// share a key of the store.
var Wide = Plan{Brokers: 4, Parts: 3, Shard: 2, Steps: 6000}

const (
	stepTime  = 125 * time.Millisecond // of virtual time
	lag       = 10 * time.Second
	retry     = 7500 * time.Millisecond
	lateness  = 2 * time.Minute
	storeNode = -1
	healSteps = 6000 // within which work must go on after all was healed, for each partition
)

// record is one record of a log: its offset is its place.
type record struct {
	epoch    int32
	value    int32
	producer int8  // -1: without a sequence
	sequence int32 // rises by one with each record of a producer
}

// stream is a leader's sending side to one follower.
type stream struct {
	number uint64
	epoch  int32
	next   int64
	sent   time.Duration
	under  int // frames on their way
}

// copyOf is one replica: the machine, its log and its connections.
type copyOf struct {
	*replica.State
	log     []record // from offset 0, also of what was deleted
	start   int64    // durable
	flushed int64
	kept    replica.Durable
	streams []stream // by broker
	cached  *picture // of the store, as the folder keeps it
	waiting []int64  // offsets whose publishers wait for acks=all
}

type broker struct {
	id      int
	up      bool
	paused  bool
	folder  string
	folders int // made so far
	boot    int
	copies  []*copyOf
	inbox   []message
	picture *picture // last read as a controller
	session int      // as it knows it
}

type kind uint8

const (
	kindEvent   kind = iota // from broker to broker
	kindRead                // broker asks the store, and is registered by it
	kindLook                // controller asks the store
	kindTxn                 // controller writes
	kindTold                // the store answers a read
	kindLooked              // the store answers a look
	kindDone                // the store answers a transaction
	kindAlter               // leader asks a controller
	kindAltered             // the controller answers
)

type message struct {
	kind     kind
	from, to int
	due      time.Duration // not before
	boot     int           // of the process that waits for the answer
	part     int
	event    replica.Event
	stream   uint64
	records  []record // that a frame carries
	folder   string
	pic      *picture
	index    int // of the shard that a transaction holds for
	session  int // and of the lock's holder
	commits  int // and of its transactions so far
	slot     replica.Slot
	ready    *controller.Ready
	change   replica.Change
	leader   int // who asked for the change, or -1
	leadBoot int
	ok       bool // of a transaction: it was written
}

// world is one run.
type world struct {
	r       *rand.Rand
	plan    Plan
	minISR  int
	cfg     replica.Config
	now     time.Duration
	brokers []*broker
	store   *picture
	earlier [kept]*picture
	puts    int
	storeUp bool
	net     []message
	cut     [][]bool // by from+1 and to+1
	faults  bool
	wiped   bool
	effects []replica.Effect
	carried []record // by the frame that is being taken in

	acked     []map[int64]int32 // by partition: offset to value
	producers [][]producer      // by partition
	trimmed   []int64           // by partition: the furthest log start
	seen      []map[int64]int32 // by partition: what any high watermark has shown
	ackEpoch  []int32           // by partition: epoch of the newest acknowledgement
	readEnd   []int64           // by partition: where consumers have seen the end
	readEpoch []int32
	value     int32
	acks      int
	elections int
	bad       string
	trace     func(format string, args ...any)
}

func newWorld(seed uint64, plan Plan) *world {
	w := &world{r: rand.New(rand.NewPCG(seed, 0x5eed)), plan: plan, storeUp: true, faults: true}
	w.minISR = plan.MinISR
	if w.minISR == 0 {
		w.minISR = 1 + w.r.IntN(2)
	}
	w.cfg = replica.Config{MinISR: w.minISR, Lag: lag, Retry: retry}
	w.cut = make([][]bool, plan.Brokers+1)
	for i := range w.cut {
		w.cut[i] = make([]bool, plan.Brokers+1)
	}
	shards := (plan.Parts + plan.Shard - 1) / plan.Shard
	w.store = &picture{indices: make([]int, shards), folders: make([]string, plan.Brokers), members: make([]string, plan.Brokers), sessions: make([]int, plan.Brokers), commits: make([]int, plan.Brokers), holder: -1}
	for i := range plan.Brokers {
		b := &broker{id: i, up: true}
		b.newFolder()
		w.store.folders[i] = b.folder
		w.brokers = append(w.brokers, b)
	}
	for p := range plan.Parts {
		n := plan.Replicas
		if n == 0 {
			n = 1 + w.r.IntN(plan.Brokers)
		}
		var ids []int32
		for i := range n {
			ids = append(ids, int32((p+i)%plan.Brokers))
		}
		w.store.slots = append(w.store.slots, replica.Slot{Leader: replica.NoBroker, Version: 1, Replicas: ids, ISR: replica.All(n)})
		w.acked = append(w.acked, map[int64]int32{})
		w.seen = append(w.seen, map[int64]int32{})
	}
	w.producers, w.trimmed = make([][]producer, plan.Parts), make([]int64, plan.Parts)
	for p := range w.producers {
		w.producers[p] = make([]producer, producers)
	}
	w.ackEpoch, w.readEnd, w.readEpoch = make([]int32, plan.Parts), make([]int64, plan.Parts), make([]int32, plan.Parts)
	for _, b := range w.brokers {
		for range plan.Parts {
			b.copies = append(b.copies, &copyOf{streams: make([]stream, plan.Brokers), kept: replica.Durable{Promised: replica.NoEpoch, Noted: replica.NoEpoch}})
		}
		w.start(b)
	}
	return w
}

func (w *world) shardOf(part int) int { return part / w.plan.Shard }

// minOf is min.insync.replicas of a partition: never above its copies. One that is
// on its way in is none yet, or its coming would stop the publishers.
func (w *world) minOf(s *replica.Slot) int { return min(w.minISR, len(s.Replicas)-s.Adding.Len()) }

func (b *broker) newFolder() {
	b.folders++
	b.folder = fmt.Sprintf("%d.%d", b.id, b.folders)
}

func (w *world) fail(format string, args ...any) {
	if w.bad == "" {
		w.bad = fmt.Sprintf("at %s: ", w.now) + fmt.Sprintf(format, args...)
	}
}

func (w *world) say(format string, args ...any) {
	if w.trace != nil {
		w.trace("%8s "+format+"\n", append([]any{w.now}, args...)...)
	}
}

// node is a broker's or the store's row in the table of cuts.
func node(id int) int { return id + 1 }

func (w *world) send(m message) {
	if w.faults && w.r.IntN(100) < 2 {
		return
	}
	if w.faults && w.r.IntN(50) == 0 { // it is held up somewhere on its way
		m.due = w.now + time.Duration(w.r.IntN(int(lateness)))
	}
	w.net = append(w.net, m)
}

// start is a process that begins: what its folder holds is recovered and synced.
func (w *world) start(b *broker) {
	b.up, b.paused, b.picture = true, false, nil
	for _, c := range b.copies {
		c.flushed = int64(len(c.log))
		c.State = replica.New(int32(b.id), b.folder, w.cfg, c.kept, c.start, c.flushed, epochsOf(c.log, c.start), uint64(b.boot)<<32)
		clear(c.streams)
		c.waiting = nil
	}
	for part, c := range b.copies {
		if c.cached != nil && b.up && w.faults && w.r.IntN(2) == 0 { // the store may be away
			w.tell(b, part, c.cached, true)
		}
	}
}

func epochsOf(log []record, start int64) (list []replica.Epoch) {
	last := replica.NoEpoch
	for o := start; o < int64(len(log)); o++ {
		if log[o].epoch > last {
			last = log[o].epoch
			list = append(list, replica.Epoch{Epoch: last, Start: o})
		}
	}
	return list
}

// crash ends a process; a power cut keeps any part of what was not synced.
func (w *world) crash(b *broker, power bool) {
	for p, c := range b.copies {
		if power {
			keep := c.flushed + int64(w.r.IntN(len(c.log)-int(c.flushed)+1))
			c.log = c.log[:keep]
		}
		c.flushed = min(c.flushed, int64(len(c.log)))
		w.say("DOWN %d/%d, power cut %v: %d to %d", b.id, p, power, c.start, len(c.log))
	}
	b.up, b.paused, b.inbox = false, false, nil
	b.boot++
}

// wipe is a disk that was replaced under a broker that is down.
func (w *world) wipe(b *broker) {
	b.newFolder()
	for _, c := range b.copies {
		c.log, c.start, c.flushed, c.cached, c.kept = nil, 0, 0, nil, replica.Durable{Promised: replica.NoEpoch, Noted: replica.NoEpoch}
	}
	w.say("WIPE %d: folder %s", b.id, b.folder)
}
