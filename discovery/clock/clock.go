// Package clock is the time by which a daemon decides what cannot be undone:
// which segments are too old, which tombstones, producers, keys and spooled
// messages may be forgotten.
//
// That time is not the wall clock, which may be wrong and may be set. It is a
// count of the data folder's own, kept in the file clock.json: it begins at what
// the wall clock says in a new folder, and goes on by the time since the start of
// the machine, which counts sleep and which nobody can set. So ages are right
// whatever becomes of the wall clock. What the count cannot know is for how long
// a machine was off. The wall clock tells that, if a second clock agrees with it
// within an hour: a witness.
//
// Nothing is deleted by time ([Clock.Now] returns the zero time)
//
//   - after a start of the machine, until a witness has confirmed its clock;
//   - while the wall clock has moved against the count by more than an hour,
//     until it is back or a witness has confirmed it;
//   - while a witness contradicts it;
//   - in a folder with data but without a count, until a witness has confirmed it.
//
// A process that is started again on a machine that runs needs no witness: the
// count goes on.
package clock

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"hash/crc32"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"

	"sidestream/discovery"
)

// File is the name of the count in the data folder.
const File = "clock.json"

const (
	lookEvery = time.Second
	saveEvery = time.Minute
	askTime   = 5 * time.Second
	askSoon   = 10 * time.Second // while it is not believed
	askRarely = 5 * time.Minute
	heard     = int64(15 * time.Minute / time.Millisecond) // for how long an answer counts
)

// Remote tells the time by the clock of another machine. ok is false when it
// has none to tell, or does not answer.
type Remote struct {
	Name string // whose clock it is, such as "the coordination store's"
	Ask  func(ctx context.Context) (at time.Time, ok bool)

	peer bool // it has the time from others like us
}

// Store tells the time by the coordination store's clock.
func Store(store discovery.Store) Remote {
	return Remote{Name: "the coordination store's", Ask: func(ctx context.Context) (time.Time, bool) {
		at, err := store.Clock(ctx)
		return at, err == nil
	}}
}

// Options are what a Clock needs.
type Options struct {
	Dir string // the data folder, which nobody else may use
	// Fresh says that the folder holds nothing yet whose age could matter. It
	// is asked only where there is no count.
	Fresh   func() bool
	Remotes []Remote // asked in this order when the kernel is no witness
	// Tell is given what to tell an operator whenever that changes, "" when
	// there is nothing; nil: it is logged. It must not call the Clock.
	Tell       func(alarm string)
	Logger     *zap.Logger
	Registerer prometheus.Registerer

	// Kernel says what the kernel's clock is, if it calls that synchronised; nil:
	// it is asked.
	Kernel func() (at time.Time, synchronised bool)

	machine machine // nil: the real one
}

// Clock is a data folder's own time. Its methods may be called from several
// goroutines; Run is called once.
type Clock struct {
	opt Options
	now atomic.Pointer[sample]

	// mu guards what follows; it is not held while anybody is asked or anything
	// is written.
	mu     sync.Mutex
	count  count
	remote *evidence // the last answer
	at     int64     // count.Up when it came
}

// sample is a look at the clocks.
type sample struct {
	at   time.Time // of this process, for its monotonic part
	wall int64
	time int64 // the folder's
	doubt
	first bool // it has a witness that is no peer
}

// Open goes on from what is written down, or begins. It asks nobody but the
// kernel.
func Open(o Options) *Clock {
	if o.Logger == nil {
		o.Logger = zap.NewNop()
	}
	if o.machine == nil {
		o.machine = realMachine{}
	}
	if o.Kernel == nil {
		o.Kernel = Kernel
	}
	c := &Clock{opt: o}
	last, err := load(o.Dir)
	if err != nil {
		o.Logger.Error("the file of this folder's time cannot be read: nothing is deleted by time until a second clock confirms this machine's", zap.Error(err))
	}
	fresh := last == nil && err == nil && (o.Fresh == nil || o.Fresh())
	c.count = begin(last, fresh, o.machine.read())
	c.look()
	if err := c.save(); err != nil {
		o.Logger.Warn("this folder's time cannot be kept", zap.Error(err))
	}
	if o.Registerer != nil {
		o.Registerer.MustRegister(prometheus.NewGaugeFunc(prometheus.GaugeOpts{
			Name: "sidestream_clock_doubted",
			Help: "1 while this machine's clock is not believed and nothing is deleted by time.",
		}, func() float64 {
			if c.Doubt() != "" {
				return 1
			}
			return 0
		}))
	}
	return c
}

// Now is the folder's time, to the millisecond; the zero time while it is not
// to be believed. It asks the system for the time and nothing else.
func (c *Clock) Now() time.Time {
	s := c.now.Load()
	now := time.Now()
	passed := now.Sub(s.at).Milliseconds()
	if d := c.opt.machine.wall(now) - s.wall - passed; s.why != "" || d > tolerance || d < -tolerance {
		return time.Time{}
	}
	return time.UnixMilli(s.time + passed)
}

// Doubt is why the time is not to be believed, "" while it is.
func (c *Clock) Doubt() string { return c.now.Load().why }

// Alarm is what an operator is told, "" when there is nothing to tell.
func (c *Clock) Alarm() string {
	why := c.Doubt()
	if why == "" {
		return ""
	}
	return "nothing is deleted by time: " + why + "; synchronise the machine's clock (NTP), and it goes on by itself"
}

// Run looks at the clocks each second, asks for witnesses, and writes the count
// down each minute, until ctx ends. It returns nil.
func (c *Clock) Run(ctx context.Context) error {
	tick := time.NewTicker(lookEvery)
	defer tick.Stop()
	var asked, saved time.Time
	failing := false
	for {
		s, confirmed := c.look()
		if every := askRarely; !confirmed {
			if s.why != "" {
				every = askSoon
			}
			if time.Since(asked) >= every {
				asked = time.Now()
				c.ask(ctx)
				c.look()
			}
		}
		if time.Since(saved) >= saveEvery {
			saved = time.Now()
			failing = c.tell(c.save(), failing)
		}
		select {
		case <-ctx.Done():
			c.look()
			c.tell(c.save(), failing)
			return nil
		case <-tick.C:
		}
	}
}

// tell logs the first of several failures to write.
func (c *Clock) tell(err error, failing bool) (fails bool) {
	if err != nil && !failing {
		c.opt.Logger.Warn("this folder's time cannot be kept: it goes on from what was kept last", zap.Error(err))
	}
	return err != nil
}

// look reads the clocks and judges them. confirmed says that the kernel was the
// witness, so that nobody else need be asked.
func (c *Clock) look() (s sample, confirmed bool) {
	at := time.Now()
	now := c.opt.machine.read()
	kernel, confirmed := c.opt.Kernel()
	c.mu.Lock()
	c.count = c.count.at(now)
	var w *evidence
	switch {
	case confirmed:
		w = &evidence{name: "the kernel's, which it calls synchronised,", wall: kernel.UnixMilli()}
	case c.remote != nil && now.up-c.at < heard:
		w = &evidence{c.remote.name, c.remote.wall + now.up - c.at, c.remote.peer}
	}
	var d doubt
	c.count, d = c.count.judge(w)
	before := c.now.Load()
	if before == nil {
		before = &sample{}
	}
	news := d.kind != before.kind
	if !news {
		d = before.doubt
	}
	s = sample{at: at, wall: now.wall, time: c.count.Time, doubt: d, first: d.why == "" && w != nil && !w.peer}
	c.now.Store(&s)
	c.mu.Unlock()
	switch {
	case !news:
	case c.opt.Tell != nil:
		c.opt.Tell(c.Alarm())
	case d.why != "":
		c.opt.Logger.Warn(c.Alarm())
	default:
		c.opt.Logger.Info("this machine's clock is believed again: what is old enough is deleted")
	}
	return s, confirmed
}

// ask looks for a witness on other machines.
func (c *Clock) ask(ctx context.Context) {
	for _, r := range c.opt.Remotes {
		ctx, cancel := context.WithTimeout(ctx, askTime)
		at, ok := r.Ask(ctx)
		cancel()
		if !ok {
			continue
		}
		up := c.opt.machine.read().up
		c.mu.Lock()
		c.remote, c.at = &evidence{r.Name, at.UnixMilli(), r.peer}, up
		c.mu.Unlock()
		return
	}
}

func (c *Clock) save() error {
	c.mu.Lock()
	kept := c.count
	c.mu.Unlock()
	b, err := json.MarshalIndent(written{kept, kept.sum()}, "", "  ")
	if err != nil {
		return err
	}
	return discovery.WriteFileDurably(filepath.Join(c.opt.Dir, File), append(b, '\n'))
}

// written is a count as it lies in the file. One digit that flips there would make
// everything years older.
type written struct {
	count
	CRC string `json:"crc32c"`
}

// sum is the checksum of what a count says.
func (c count) sum() string {
	text := fmt.Sprintf("%d %d %d %s %d %t %s", c.Time, c.Wall, c.Up, c.Boot, c.Ahead, c.Confirmed, c.Gap)
	return fmt.Sprintf("%08x", crc32.Checksum([]byte(text), crc32.MakeTable(crc32.Castagnoli)))
}

// load reads what was written down, nil when nothing was.
func load(dir string) (*count, error) {
	b, err := os.ReadFile(filepath.Join(dir, File))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	var w written
	if err := json.Unmarshal(b, &w); err != nil {
		return nil, err
	}
	c := w.count
	if w.CRC != c.sum() {
		return nil, errors.New(File + " is not as it was written: its checksum is wrong")
	}
	if c.Time <= 0 || c.Gap != noGap && c.Gap != begun && c.Gap != away {
		return nil, errors.New(File + " says no time")
	}
	return &c, nil
}
