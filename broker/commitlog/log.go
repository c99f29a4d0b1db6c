// Package commitlog is one partition's append-only log on disk: record batches
// as producers sent them, in Kafka's segment files, found by offset and by time,
// recovered after a crash, bounded by retention. FORMAT.md describes every file
// byte by byte.
//
// # Who does what when
//
// An open log has no goroutine. Appends come one after another (the writer's
// turn); flushes come one after another beside them (the flusher's turn), so
// that all that was appended during one sync is covered by the next. What
// rewrites history (truncation, removal, repair, closing) takes both turns, in
// that order. Compaction has a turn of its own and takes both others only to put
// what it wrote in its place. A small mutex guards the fields and is never held during I/O.
//
// # What survives a power cut
//
// Everything up to the last returned Flush is there, with its offsets. Of what
// was appended after it, a beginning is there: recovery walks from the recovery
// point, checks every batch, cuts at the first that is not whole, and syncs what
// it keeps before anything is served.
package commitlog

import (
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"syscall"

	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// Options are what a log needs from its surroundings. The zero value works.
type Options struct {
	// Logger gets what an operator should know; nil: nothing is logged.
	Logger *zap.Logger
	// Metrics are shared by the logs of a process; nil: nothing is counted.
	Metrics *Metrics
	// Clean says that the process which had the log before stopped cleanly.
	// What is there beyond the recovery point is then a surprise and is
	// logged as one; it is checked all the same.
	Clean bool
	// Begun says that the folder is that of a log that was begun before. With
	// no file of a log in it, it has lost them; else it is a new one.
	Begun bool
	// Decompress gives the records of a compressed batch (what follows its
	// header), so that searches by time are exact to the record. Without it
	// they are exact to the batch when that is compressed. They are the log's
	// until it calls done, which it gets when there is no error.
	Decompress func(codec record.Codec, b []byte) (plain []byte, done func(), err error)
	// Compress is the reverse, for batches that compaction has thinned out.
	Compress func(codec record.Codec, b []byte) ([]byte, error)
}

// Log is an open partition log. Its methods may be called at the same time.
type Log struct {
	fs      disk.FS
	dir     string
	logger  *zap.Logger
	metrics *Metrics
	unpack  func(codec record.Codec, b []byte) (plain []byte, done func(), err error)
	pack    func(codec record.Codec, b []byte) ([]byte, error)

	cleaner turn // who compacts; taken before the others
	writer  turn // who may append, roll or change the list of segments
	flusher turn // who may sync and write checkpoints

	producers Producers

	checked atomic.Int64 // when Check last looked, Unix nanoseconds

	mu          sync.Mutex // guards what follows
	cfg         Config
	segments    []*segment // by base offset; the last one is active; never empty while open
	start       int64      // log start offset
	end         int64      // log end offset: the next one to be given
	flushed     mark       // up to where everything is synced
	saved       mark       // the recovery point on disk
	savedStart  int64      // the log start offset on disk
	epochs      epochs
	hints       hints
	open        []*segment // closed segments whose files are open, oldest first
	snapshot    int64      // offset of the snapshot that the checkpoint names, or noProducers
	offline     error      // why the log takes no more writes; nil while it does
	dirDirty    bool       // names in the folder are not synced
	rolled      bool       // a segment was closed since the last checkpoint
	cuts        int        // truncations so far: what was read before one says nothing after it
	recut       bool       // files from flushed.base on were cut: sync them without an append, too
	epochsDirty bool       // the epoch file is behind
	torn        bool       // the active file may be longer than it should: cut it before writing
	closed      bool

	timesEnd   int64 // offset up to which the file of append times dates what is there
	timesDirty bool  // it does not say what is known by now

	lost *CorruptError // at the start all segments were gone; nil if not

	clean       cleanPoint // how far the log is compacted
	closing     bool       // no compaction begins any more
	stopCleaner func()     // ends the compaction that runs, or has run
}

// mark is an offset with its place: the batch that begins with the offset begins
// at pos of the segment.
type mark struct {
	offset int64
	base   int64 // of the segment
	pos    int64
}

// turn is held by one at a time. It is no mutex because it is held during I/O.
type turn chan struct{}

func newTurn() turn   { return make(turn, 1) }
func (t turn) take()  { t <- struct{}{} }
func (t turn) leave() { <-t }
func (t turn) try() bool {
	select {
	case t <- struct{}{}:
		return true
	default:
		return false
	}
}

// takeBoth is for what nothing may run beside.
func (l *Log) takeBoth() {
	l.writer.take()
	l.flusher.take()
}

func (l *Log) leaveBoth() {
	l.flusher.leave()
	l.writer.leave()
}

// Open opens the log in the folder dir, making it when it is not there, and
// recovers what a crash has left unfinished. cfg must be valid.
func Open(fsys disk.FS, dir string, cfg Config, opt Options) (*Log, error) {
	if err := cfg.Validate(); err != nil {
		return nil, fmt.Errorf("commitlog: %s: %w", dir, err)
	}
	l := &Log{
		fs: fsys, dir: dir, cfg: cfg, unpack: opt.Decompress, pack: opt.Compress,
		logger: opt.Logger, metrics: opt.Metrics,
		cleaner: newTurn(), writer: newTurn(), flusher: newTurn(),
		snapshot: noProducers,
	}
	if l.logger == nil {
		l.logger = zap.NewNop()
	}
	if l.metrics == nil {
		l.metrics = unregistered()
	}
	if err := l.recover(opt.Clean, opt.Begun); err != nil {
		l.closeFiles()
		return nil, fmt.Errorf("commitlog: open %s: %w", dir, err)
	}
	return l, nil
}

var unregistered = sync.OnceValue(func() *Metrics { return NewMetrics(nil) })

// Dir is the folder of the log.
func (l *Log) Dir() string { return l.dir }

// StartOffset is the lowest offset that can be read.
func (l *Log) StartOffset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.start
}

// EndOffset is the offset that the next record will have.
func (l *Log) EndOffset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.end
}

// FlushedOffset is the offset below which everything is synced.
func (l *Log) FlushedOffset() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.flushed.offset
}

// Size is the bytes of all batches.
func (l *Log) Size() int64 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sizeLocked()
}

func (l *Log) sizeLocked() (sum int64) {
	for _, s := range l.segments {
		sum += s.size
	}
	return sum
}

// Offline is why the log takes no more writes, nil while it does.
func (l *Log) Offline() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.offline
}

// Damage lists the damaged stretches that are known so far. When all segments
// were gone at the start, that is one of them, until the next start.
func (l *Log) Damage() []*CorruptError {
	l.mu.Lock()
	defer l.mu.Unlock()
	var list []*CorruptError
	if l.lost != nil {
		list = append(list, l.lost)
	}
	for _, s := range l.segments {
		list = append(list, s.damage...)
	}
	return list
}

// Producers is the sequence state of the idempotent producers.
func (l *Log) Producers() *Producers { return &l.producers }

// EpochEnd tells where a leader epoch ended, for followers and clients that look
// for the point where histories part: the newest epoch of this log that is not
// above the asked one, and the offset after its last record. Both are -1 when
// the log knows nothing of the epoch.
func (l *Log) EpochEnd(epoch int32) (epochFound int32, endOffset int64) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epochs.end(epoch, l.end)
}

// LastEpoch is the newest leader epoch in the log, -1 when there is none.
func (l *Log) LastEpoch() int32 {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.epochs.last()
}

// SetConfig changes the configuration of the open log. Limits hold from the next
// append or retention on.
func (l *Log) SetConfig(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	l.cfg = cfg
	return nil
}

// active is the segment that is appended to. Call with mu held.
func (l *Log) active() *segment { return l.segments[len(l.segments)-1] }

// writable is why nothing can be written. Call with mu held.
func (l *Log) writable() error {
	if l.closed {
		return ErrClosed
	}
	if l.offline != nil {
		return fmt.Errorf("%w: %w", ErrOffline, l.offline)
	}
	return nil
}

// goOffline stops writing for good.
func (l *Log) goOffline(cause error) error {
	l.mu.Lock()
	first := l.offline == nil
	if first {
		l.offline = cause
	}
	l.mu.Unlock()
	if first {
		l.metrics.offline.Inc()
		l.logger.Error(offlineText(cause),
			zap.String("log", l.dir), zap.Error(cause))
		if errors.Is(cause, disk.ErrGone) {
			l.noteEnd()
		}
	}
	return fmt.Errorf("%w: %w", ErrOffline, cause)
}

// diskError names a full disk as such.
func diskError(err error) error {
	if errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT) {
		return fmt.Errorf("%w: %w", ErrNoSpace, err)
	}
	return err
}

// Close flushes, notes where everything ends so that the next Open has nothing
// to look for, and closes the files. Slices that are held stay readable until
// they are released. A second Close does nothing.
func (l *Log) Close() error {
	l.endCompaction()
	defer l.cleaner.leave()
	l.takeBoth()
	defer l.leaveBoth()
	l.mu.Lock()
	if l.closed {
		l.mu.Unlock()
		return nil
	}
	offline, idle := l.offline, l.idle()
	if offline == nil && !idle {
		l.active().endTimes()
	}
	l.mu.Unlock()

	var err error
	switch {
	case offline != nil:
		err = fmt.Errorf("%w: %w", ErrOffline, offline)
	case !idle:
		err = l.syncAndSave()
	}
	l.closeFiles()
	if err != nil {
		return fmt.Errorf("commitlog: close %s: %w", l.dir, err)
	}
	return nil
}

// closeFiles marks the log closed and closes what nobody reads from.
func (l *Log) closeFiles() {
	l.mu.Lock()
	l.closed = true
	var files []disk.File
	for _, s := range l.segments {
		s.gone = true
		if s.refs == 0 {
			files = append(files, s.takeFiles()...)
		}
	}
	l.open = nil
	l.mu.Unlock()
	closeAll(files)
}
