// Package spool keeps events on this host's disk until the brokers have them:
// events whose caller asked for no more, and, where that is wished, events that
// would have been refused while brokers are away. They are answered when they are
// synced, are sent in the order of their partitions, survive kill -9, and are
// never dropped: what can never be written is in a file of rejected messages.
//
// # How an event goes
//
// It is appended to the journal, a commit log of its own, and synced, with many
// others in one sync. A loader reads the journal once for all partitions and
// hands entries to the lanes; each partition that has events to send is a lane
// with a goroutine, which sends them in order. Before the first may be sent, a
// mark is synced: from which offset on the partition must be looked through, and
// for which events. After a crash a lane looks there first, settles what it
// finds, and sends the rest.
package spool

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"path"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// Brokers is what the spool asks the brokers: *upstream.Upstream.
type Brokers interface {
	Topic(ctx context.Context, name string) (upstream.Topic, error)
	Refresh(ctx context.Context, name string) (upstream.Topic, error)
	CreateTopic(ctx context.Context, name string, spec api.TopicSpec) (upstream.Topic, error)
	TopicConfigs(ctx context.Context, topic string) (upstream.Configs, error)
	WrittenEnd(ctx context.Context, topic string, partition int32) (int64, error)
	Find(ctx context.Context, topic string, partition int32, from int64, ids map[string]struct{}) (map[string]int64, int64, error)
}

// Sender sends records to their partitions, in order, and waits until the fate of
// each is known. A nil error is a record that is written at its Offset.
type Sender interface {
	Send(recs []*kgo.Record) []error
	// Said is what a broker last said of a partition under way, nil when it took
	// what it got, or said nothing.
	Said(topic, uuid string, partition int32) error
	// Close makes every Send end.
	Close()
}

// Publisher is what the spool stands before.
type Publisher interface {
	Publish(ctx context.Context, topic string, m publish.Message, o publish.Options) (api.Published, error)
	PublishBatch(ctx context.Context, topic string, ms []publish.Message, o publish.Options) ([]api.BatchResult, error)
	// Ahead are closed when what has its place in a partition's order now is not
	// on its way any more.
	Ahead(topic, uuid string, partition int32) []<-chan struct{}
}

// Deps are what a Spool works with beside its Config.
type Deps struct {
	FS         disk.FS // nil: the machine's
	Dir        string  // of the spool's files; made when it is not there
	Next       Publisher
	Brokers    Brokers
	Sender     Sender // closed by the spool
	Logger     *zap.Logger
	Registerer prometheus.Registerer
	// Now is the time by which messages grow old, to the millisecond; the zero
	// time while it is not known. nil: the system's clock, which is believed.
	Now func() time.Time
}

// Spool is safe for concurrent use. It is a Publisher, which takes ack=spool and
// passes everything else on to the next one in its order.
type Spool struct {
	cfg     Config
	fsys    disk.FS
	dir     string
	nonce   nonces // of the ids
	next    Publisher
	brokers Brokers
	sender  Sender
	log     *zap.Logger
	metrics *metrics
	now     func() time.Time // see Deps.Now

	journal   *commitlog.Log
	outcomes  *outcomes
	rejects   *rejects
	marks     *marksFile
	memory    *memory
	rate      pace
	looking   chan struct{} // who looks at what is in partitions, some at a time: it takes memory
	keeping   turn          // gives room back and moves entries
	accepting turn          // appends to the journal and the lanes' order are one step
	nonceKept bool          // the nonces are synced; of whose turn it is to append

	reserved    atomic.Int64           // bytes that are being accepted
	parkedBytes atomic.Int64           // of files of parked messages
	parkedFiles int                    // the last one's number; of the keeper
	anyBusy     atomic.Bool            // something is to be sent
	full        atomic.Bool            // messages were refused for want of room
	parkedGone  atomic.Pointer[error]  // a file of parked messages is not at its path; nil: all are
	stale       atomic.Pointer[string] // why messages are refused for the age of others; nil: they are not
	knownSince  atomic.Int64           // when time was first known to this process, ms; 0: not yet
	turns       atomic.Uint32          // whose turn it is among partitions, for events without a key

	ctx    context.Context // ends when sending is to end
	cancel context.CancelFunc
	wg     sync.WaitGroup
	wake   chan struct{} // for the loader: there is something to read, or room
	keep   chan struct{} // for the keeper: a mark is wanted now

	// mu guards what follows, and the lanes' fields.
	mu         sync.Mutex
	started    bool
	closed     bool
	lanes      map[laneKey]*lane
	busy       map[string]int // topics with lanes that have something to send
	registered int64          // number after the last event that the lanes know of
	loaded     int64          // bytes that are in memory to be sent
	marked     chan struct{}  // closed when marks were written or not, and renewed
	markErr    error          // of the last try
	dirty      bool           // marks are behind
	still      standstill
}

// turn is held by one at a time. It is no mutex because it is held during I/O.
type turn chan struct{}

func (t turn) take()  { t <- struct{}{} }
func (t turn) leave() { <-t }

const journalName = "journal"

// Open opens the spool's files and finds what is to be sent; Start begins to.
func Open(cfg Config, deps Deps) (*Spool, error) {
	if err := cfg.Validate(); err != nil {
		return nil, err
	}
	if deps.FS == nil {
		deps.FS = disk.OS
	}
	if deps.Now == nil {
		deps.Now = time.Now
	}
	if deps.Logger == nil {
		deps.Logger = zap.NewNop()
	}
	s := &Spool{
		cfg: cfg, fsys: deps.FS, dir: deps.Dir, next: deps.Next, brokers: deps.Brokers, sender: deps.Sender, log: deps.Logger, now: deps.Now,
		rejects:   &rejects{fsys: deps.FS, dir: deps.Dir, limit: cfg.RejectBytes, turn: make(turn, 1)},
		accepting: make(turn, 1),
		looking:   make(chan struct{}, 16),
		keeping:   make(turn, 1),
		rate:      pace{perSecond: cfg.DrainBytes},
		wake:      make(chan struct{}, 1), keep: make(chan struct{}, 1),
		lanes: map[laneKey]*lane{}, busy: map[string]int{},
		marked: make(chan struct{}),
	}
	s.ctx, s.cancel = context.WithCancel(context.Background())
	if err := s.open(); err != nil {
		s.cancel()
		return nil, fmt.Errorf("spool in %s: %w", deps.Dir, errors.Join(err, s.closeFiles()))
	}
	var err error
	if s.metrics, err = newMetrics(deps.Registerer, s); err != nil {
		s.cancel()
		return nil, fmt.Errorf("metrics of the spool: %w", errors.Join(err, s.closeFiles()))
	}
	return s, nil
}

func (s *Spool) open() (err error) {
	// The folders themselves must outlive a power cut.
	journal := s.dir + "/" + journalName
	if err := s.fsys.MkdirAll(journal, 0o700); err != nil {
		return err
	}
	for _, dir := range []string{path.Dir(s.dir), s.dir} {
		if err := s.fsys.SyncDir(dir); err != nil {
			return err
		}
	}
	if s.nonce, err = readNonces(s.fsys, s.dir); err != nil {
		return err
	}
	if s.memory, err = openMemory(s.fsys, s.dir); errors.Is(err, errMemoryLost) {
		// The outcomes have the topics' numbers, which are given anew.
		s.log.Error("the spool's file of topics cannot be read and is begun anew; what became of earlier messages is forgotten", zap.Error(err))
		err = ignoreMissing(s.fsys.Remove(s.dir + "/" + outcomesName))
	}
	if err != nil {
		return err
	}
	if s.outcomes, err = openOutcomes(s.fsys, s.dir, s.cfg.Outcomes); err != nil {
		return err
	}
	var marks []mark
	s.marks, marks, err = openMarks(s.fsys, s.dir)
	lost := errors.Is(err, errMarksLost)
	if err != nil && !lost {
		return err
	}
	why := err
	s.journal, err = commitlog.Open(s.fsys, journal, journalConfig(s.cfg), commitlog.Options{Logger: s.log})
	if err != nil {
		return err
	}
	s.marks.gone, s.rejects.gone = s.gone, s.gone
	if lost = lost && s.journal.EndOffset() > 0; lost {
		s.log.Error("the spool's marks are lost: what may have been sent is looked for in whole partitions", zap.Error(why))
	}
	if err := s.recover(marks, lost); err != nil {
		return err
	}
	return s.beginNonce()
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// journalConfig keeps everything until it is settled, in segments that are
// removed as it is.
func journalConfig(cfg Config) commitlog.Config {
	c := commitlog.DefaultConfig()
	c.SegmentBytes = cfg.segmentBytes()
	c.SegmentAge = 100 * 365 * 24 * time.Hour
	c.Retention, c.RetentionBytes = -1, -1
	c.MaxBatchBytes = 1<<31 - 1
	return c
}

// Start begins to send.
func (s *Spool) Start() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.started || s.closed {
		return
	}
	s.started = true
	s.wg.Go(s.load)
	s.wg.Go(s.keepMarks)
	for _, l := range s.lanes {
		if l.isPending() {
			s.run(l)
		}
	}
}

const closeWait = time.Second

// Close takes nothing more, lets what is on its way arrive for a moment or until
// ctx ends, notes how far it came, and closes. What is left is sent by the next Open.
func (s *Spool) Close(ctx context.Context) error {
	s.mu.Lock()
	if s.closed {
		s.mu.Unlock()
		return nil
	}
	s.closed = true
	s.mu.Unlock()
	s.cancel() // lanes begin nothing more
	done := make(chan struct{})
	go func() {
		s.wg.Wait()
		close(done)
	}()
	// What has no answer by then may take for ever; the next start finds out.
	moment := time.NewTimer(closeWait)
	defer moment.Stop()
	select {
	case <-done:
	case <-moment.C:
	case <-ctx.Done():
	}
	s.sender.Close() // ends what is left
	<-done
	s.accepting.take() // who has begun to append ends; nobody begins any more
	s.accepting.leave()
	err := s.saveMarks()
	return errors.Join(err, s.closeFiles())
}

func (s *Spool) closeFiles() error {
	var errs []error
	if s.journal != nil {
		errs = append(errs, s.journal.Close())
	}
	for _, l := range s.lanes { // nothing runs any more
		if l.parked != nil && l.parked.f != nil {
			errs = append(errs, l.parked.f.Close())
		}
	}
	if s.marks != nil {
		errs = append(errs, s.marks.close())
	}
	if s.outcomes != nil {
		errs = append(errs, s.outcomes.f.Close())
	}
	return errors.Join(errs...)
}

// poke wakes who waits on a channel of one.
func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}
