package broker

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"sidestream/broker/commitlog"
	"sidestream/broker/disk"
	"sidestream/broker/kafka"
)

const (
	// dirFile tells in a log directory whose it is; its name and form are Kafka's.
	dirFile = "meta.properties"
	// dirLock is locked while a broker runs, as Kafka does.
	dirLock = ".lock"
	// knownFile lists in the data folder the log directories that were ever used, one a line, so that a disk that is not
	// mounted is not taken for an empty one.
	knownFile = "log_dirs"
	// measureEvery bounds how often directories are measured for placing new partitions.
	measureEvery = time.Second
	// freshBytes is what a new partition counts for at least, until the next measurement.
	freshBytes = 1 << 20
)

// logDir is a directory that partitions' folders are in.
type logDir struct {
	path  string
	fresh bool       // new partitions may go here
	alone bool       // there is no other
	lock  *dirLocked // held while the broker runs; nil where there is none
	place disk.Place // nil while it is not in use

	full atomic.Bool  // the last append found no room
	slow atomic.Int64 // when an append last took long, Unix nanoseconds; 0: never

	mu     sync.Mutex // guards everything below
	err    error      // why it takes no writes
	unread bool       // what it holds is not known
}

// fail takes the directory offline for writes; it tells whether it was online. Only a restart brings it back: after a
// failed sync nobody knows what the disk has, and of a directory that is gone from its path the next start finds nothing.
func (d *logDir) fail(err error) (first bool) {
	d.mu.Lock()
	defer d.mu.Unlock()
	if d.err != nil {
		return false
	}
	d.err = err
	return true
}

// offline is why the directory takes no writes, nil when it does.
func (d *logDir) offline() error {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.err
}

// took notes how an append ended, and tells whether that changed what is known of the room that is left.
func (d *logDir) took(err error) (changed bool) {
	full := errors.Is(err, commitlog.ErrNoSpace)
	if err != nil && !full {
		return false
	}
	return d.full.Load() != full && d.full.CompareAndSwap(!full, full)
}

const (
	// slowWrite is how long no append into the page cache takes, even on a busy machine, unless the kernel makes it wait
	// for the disk.
	slowWrite = 50 * time.Millisecond
	// slowFor is for how long a directory counts as slow after one.
	slowFor = time.Second
)

// wrote notes how long an append took.
func (d *logDir) wrote(begun time.Time, took time.Duration) {
	if took >= slowWrite {
		d.slow.Store(begun.UnixNano())
	}
}

// quick tells whether appends are likely not to wait for the disk, and whether nobody else would have to wait if they
// did: with several directories a disk that hangs must not keep the others' producers waiting.
func (d *logDir) quick() bool {
	at := d.slow.Load()
	return d.alone && (at == 0 || time.Now().UnixNano()-at >= int64(slowFor))
}

func (d *logDir) unreadable(err error) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.err, d.unread = err, true
}

func (d *logDir) isUnread() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.unread
}

// makeLogDirs lists the directories: the data folder, whose partitions are always served, and those of log_dirs. With
// log_dirs new partitions go there only.
func makeLogDirs(cfg Config) []*logDir {
	dirs := []*logDir{{path: path.Clean(cfg.DataDir), fresh: len(cfg.LogDirs) == 0}}
	for _, p := range cfg.LogDirs {
		p = path.Clean(p)
		if i := slices.IndexFunc(dirs, func(d *logDir) bool { return d.path == p }); i >= 0 {
			dirs[i].fresh = true
			continue
		}
		dirs = append(dirs, &logDir{path: p, fresh: true})
	}
	dirs[0].alone = len(dirs) == 1
	return dirs
}

// openLogDirs takes hold of the directories beyond the data folder. One that cannot be read, or that was used before
// and now looks empty, is left alone and offline; one of another broker is an error.
func (b *Broker) openLogDirs() error {
	known, err := b.knownDirs()
	if err != nil {
		return fmt.Errorf("data_dir: %w", err)
	}
	before := len(known)
	for _, d := range b.logDirs[1:] {
		owner, err := b.enterLogDir(d, known[d.path])
		switch {
		case errors.Is(err, errDirTaken):
			return fmt.Errorf("log_dirs: %w", err)
		case err != nil:
			b.log.Error("a log directory cannot be used", zap.String("directory", d.path), zap.Error(err))
			d.unreadable(err)
		case owner != b.cfg.ID:
			return fmt.Errorf("log_dirs: %s belongs to broker %d: give broker %d a directory of its own", d.path, owner, b.cfg.ID)
		default:
			known[d.path] = true
		}
	}
	for p := range known {
		if !slices.ContainsFunc(b.logDirs, func(d *logDir) bool { return d.path == p }) {
			gone := &logDir{path: p}
			gone.unreadable(fmt.Errorf("it is not in log_dirs any more: put it back, or take its line out of %s/%s when its partitions are to be given up", b.cfg.DataDir, knownFile))
			b.logDirs = append(b.logDirs, gone)
		}
	}
	if len(known) == before {
		return nil
	}
	text := strings.Join(slices.Sorted(maps.Keys(known)), "\n") + "\n"
	if err := disk.WriteFileAtomic(b.fs, b.cfg.DataDir, b.cfg.DataDir+"/"+knownFile, []byte(text)); err != nil {
		return fmt.Errorf("data_dir: writing %s: %w", knownFile, err)
	}
	return nil
}

func (b *Broker) knownDirs() (map[string]bool, error) {
	known := map[string]bool{}
	text, err := disk.ReadFile(b.fs, b.cfg.DataDir+"/"+knownFile)
	if errors.Is(err, fs.ErrNotExist) {
		return known, nil
	}
	if err != nil {
		return nil, fmt.Errorf("reading %s: %w", knownFile, err)
	}
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if p := strings.TrimSpace(lines.Text()); p != "" {
			known[p] = true
		}
	}
	return known, lines.Err()
}

// errDirTaken: another process has the directory.
var errDirTaken = errors.New("log directory is in use")

// enterLogDir locks a directory and returns whose it is; a new one becomes ours.
func (b *Broker) enterLogDir(d *logDir, used bool) (owner int32, err error) {
	text, err := disk.ReadFile(b.fs, d.path+"/"+dirFile)
	switch {
	case errors.Is(err, fs.ErrNotExist) && used:
		return 0, fmt.Errorf("%s has no %s, though it was used before: is the disk mounted?", d.path, dirFile)
	case errors.Is(err, fs.ErrNotExist):
		if err := b.fs.MkdirAll(d.path, 0o755); err != nil {
			return 0, err
		}
		text = fmt.Appendf(nil, "version=0\nbroker.id=%d\n", b.cfg.ID)
		if err := disk.WriteFileAtomic(b.fs, d.path, d.path+"/"+dirFile, text); err != nil {
			return 0, err
		}
		if err := b.fs.SyncDir(path.Dir(d.path)); err != nil {
			return 0, err
		}
	case err != nil:
		return 0, err
	}
	if b.fs == disk.OS {
		if d.lock, err = lockDir(d.path); err != nil {
			return 0, err
		}
	}
	if err := d.hold(b.fs); err != nil {
		return 0, err
	}
	return ownerOf(text)
}

// ownerOf reads the broker's id from a dirFile.
func ownerOf(text []byte) (int32, error) {
	lines := bufio.NewScanner(bytes.NewReader(text))
	for lines.Scan() {
		if v, ok := strings.CutPrefix(strings.TrimSpace(lines.Text()), "broker.id="); ok {
			id, err := strconv.ParseInt(v, 10, 32)
			if err != nil {
				return 0, fmt.Errorf("%s: broker.id is %q: a number is expected", dirFile, v)
			}
			return int32(id), nil
		}
	}
	return 0, fmt.Errorf("%s has no line broker.id=", dirFile)
}

func lockFile(name string) (*os.File, error) {
	f, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	if err := unix.Flock(int(f.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
		_ = f.Close()
		if errors.Is(err, unix.EWOULDBLOCK) {
			return nil, fmt.Errorf("%s is locked by another broker: %w", name, errDirTaken)
		}
		return nil, fmt.Errorf("locking %s: %w", name, err)
	}
	return f, nil
}

// leaveLogDirs gives the locks back.
func (b *Broker) leaveLogDirs() {
	for _, d := range b.logDirs {
		if d.lock != nil {
			d.lock.close()
		}
		if d.place != nil {
			_ = d.place.Close() // nothing was written through it
		}
	}
}

// dirOf is the log directory that a partition's folder lies in.
func (b *Broker) dirOf(folder string) *logDir {
	parent := path.Dir(folder)
	for _, d := range b.logDirs {
		if d.path == parent {
			return d
		}
	}
	return b.logDirs[0]
}

// placement chooses directories for new partitions.
type placement struct {
	mu    sync.Mutex // guards everything below
	taken time.Time
	bytes map[*logDir]int64 // measured, and what was placed since
	each  int64             // bytes of an average partition
}

// choose is the directory with the fewest bytes of those that take new partitions and are online. What was placed since
// the last measurement counts as an average partition each.
func (b *Broker) choose() (*logDir, error) {
	var open []*logDir
	var why error
	for _, d := range b.logDirs {
		b.keepPlace(d) // a folder would be made anew at its path, and not be ours
		if err := d.offline(); err != nil {
			why = errors.Join(why, fmt.Errorf("%s: %w", d.path, err))
		} else if d.fresh {
			open = append(open, d)
		}
	}
	switch len(open) {
	case 0:
		return nil, fmt.Errorf("no log directory takes new partitions: %w: %w", why, kafka.ErrStorage)
	case 1:
		return open[0], nil
	}
	p := &b.placing
	p.mu.Lock()
	defer p.mu.Unlock()
	if now := time.Now(); now.Sub(p.taken) > measureEvery {
		p.taken = now
		p.bytes, p.each = b.measure()
	}
	best := slices.MinFunc(open, func(x, y *logDir) int {
		return int(min(max(p.bytes[x]-p.bytes[y], -1), 1))
	})
	p.bytes[best] += p.each
	return best, nil
}

// measure sums the partitions' bytes by directory.
func (b *Broker) measure() (bytes map[*logDir]int64, average int64) {
	bytes = map[*logDir]int64{}
	var sum, n int64
	for _, h := range b.holdings() {
		if p := h.current(); p != nil {
			bytes[p.dir] += p.log.Size()
			sum += p.log.Size()
			n++
		}
	}
	return bytes, max(freshBytes, sum/max(n, 1))
}

// LogDirs lists the directories that logs are kept in, with what each holds.
func (b *Broker) LogDirs() []kafka.LogDir {
	held := map[*logDir][]kafka.LogDirPartition{}
	for _, h := range b.holdings() {
		if p := h.current(); p != nil {
			held[p.dir] = append(held[p.dir], kafka.LogDirPartition{Topic: p.topic, Partition: p.index, Bytes: p.log.Size()})
		}
	}
	out := make([]kafka.LogDir, 0, len(b.logDirs))
	for _, d := range b.logDirs {
		if !d.fresh && len(held[d]) == 0 && d.offline() == nil {
			continue // the data folder, when logs are elsewhere
		}
		l := kafka.LogDir{Path: d.path, Err: d.offline(), Partitions: held[d]}
		l.TotalBytes, l.UsableBytes = b.space(d.path)
		out = append(out, l)
	}
	return out
}

// space is the size of the file system that a directory lies in and what is free for us there, -1 when unknown.
func (b *Broker) space(dir string) (total, usable int64) {
	var s unix.Statfs_t
	if b.fs != disk.OS || unix.Statfs(dir, &s) != nil {
		return -1, -1
	}
	return int64(s.Blocks) * s.Bsize, int64(s.Bavail) * s.Bsize
}

// logDirPaths lists the directories that new partitions go to.
func (b *Broker) logDirPaths() (paths []string) {
	for _, d := range b.logDirs {
		if d.fresh {
			paths = append(paths, d.path)
		}
	}
	return paths
}
