package commitlog

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sidestream/broker/disk"
	"sidestream/broker/record"
)

// promise is what a log owes after a power cut at some moment of a workload.
type promise struct {
	step    string
	op      string
	flushed int64              // returned by the last Flush
	start   int64              // the log's start, at least
	started int64              // the log's start, at most
	values  map[int64][]string // what an offset may have
}

// cut is a power cut: the disk as it was left, and what is owed.
type cut struct {
	image *disk.Mem
	owed  promise
	seed  uint64
}

// recorder runs a workload and takes a power cut before every operation that
// changes the disk.
type recorder struct {
	t     *testing.T
	mem   *disk.Mem
	seeds int
	cuts  []cut
	owed  promise
	ops   int
	fail  func(op disk.Op) error
}

func newRecorder(t *testing.T, seeds int) *recorder {
	return &recorder{t: t, mem: newDisk(t), seeds: seeds, owed: promise{values: map[int64][]string{}}}
}

func (r *recorder) rule(op disk.Op) error {
	creates := op.Kind == disk.OpOpen && op.Flag != 0
	if op.Kind.Mutates() || creates {
		r.ops++
		for range r.seeds {
			seed := uint64(len(r.cuts))
			owed := r.owed
			owed.op = fmt.Sprintf("%s %s", op.Kind, op.Name)
			owed.values = map[int64][]string{}
			for o, v := range r.owed.values {
				owed.values[o] = slices.Clone(v)
			}
			r.cuts = append(r.cuts, cut{r.mem.Crash(seed), owed, seed})
		}
	}
	if r.fail != nil {
		return r.fail(op)
	}
	return nil
}

func (r *recorder) open() *Log {
	l, err := Open(disk.WithFaults(r.mem, r.rule), testDir, smallConfig(), Options{})
	must(r.t, err)
	return l
}

// append appends one batch of n records of a producer, after noting what may be
// on the disk from now on.
func (r *recorder) append(l *Log, n int, sizes ...int) {
	var batches [][]byte
	next := l.EndOffset()
	for _, n := range append([]int{n}, sizes...) {
		var values []string
		for range n {
			v := fmt.Sprintf("%s-gen%d", valueAt(next), r.ops)
			r.owed.values[next] = append(r.owed.values[next], v)
			values = append(values, v)
			next++
		}
		h := next - int64(n)
		batches = append(batches, idempotent(9, 0, int32(h), values...))
	}
	_, _, err := l.Append(batches, 1, testStart)
	must(r.t, err)
}

func (r *recorder) flush(l *Log) {
	durable, err := l.Flush()
	must(r.t, err)
	r.owed.flushed = durable
}

// check opens the log after the cut and holds it against what is owed.
func (c cut) check(t *testing.T) {
	t.Helper()
	fatal := func(format string, args ...any) {
		t.Helper()
		t.Fatalf("cut with seed %d before %q in step %q: %s\n%s", c.seed, c.owed.op, c.owed.step,
			fmt.Sprintf(format, args...), strings.Join(c.image.Tree(), "\n"))
	}
	l, err := Open(c.image, testDir, smallConfig(), Options{})
	if err != nil {
		fatal("open: %v", err)
	}
	defer l.Close()
	start, end := l.StartOffset(), l.EndOffset()
	if end < c.owed.flushed {
		fatal("the log ends at %d, flushed was %d", end, c.owed.flushed)
	}
	if start < c.owed.start || start > c.owed.started {
		fatal("the log begins at %d, want %d to %d", start, c.owed.start, c.owed.started)
	}
	if l.FlushedOffset() != end {
		fatal("recovered to %d, flushed to %d: what is kept must be synced", end, l.FlushedOffset())
	}
	if d := l.Damage(); len(d) > 0 {
		fatal("a power cut is no damage: %v", d)
	}
	before, err := readFrom(l, start, 500)
	if err != nil {
		fatal("read: %v", err)
	}
	if int64(len(before)) != end-start {
		fatal("%d records from %d to %d", len(before), start, end)
	}
	for i, g := range before {
		if g.offset != start+int64(i) {
			fatal("record %d has offset %d, offsets must be dense", i, g.offset)
		}
		if !slices.Contains(c.owed.values[g.offset], g.value) {
			fatal("offset %d has %q, want one of %q", g.offset, g.value, c.owed.values[g.offset])
		}
	}
	if end > start {
		c.checkProducer(l, fatal)
	}

	// A second cut, before anything else happens, must take nothing.
	second, err := Open(c.image.Crash(c.seed+1), testDir, smallConfig(), Options{})
	if err != nil {
		fatal("open after a second cut: %v", err)
	}
	defer second.Close()
	if again, err := readFrom(second, start, 5000); err != nil || !slices.Equal(again, before) {
		fatal("after a second cut %d records, %d before (%v)", len(again), len(before), err)
	}

	// And it goes on as a log does.
	for range 5 {
		if _, _, err := l.Append([][]byte{batch("more")}, 1, testStart); err != nil {
			fatal("append: %v", err)
		}
	}
	if err := l.Close(); err != nil {
		fatal("close: %v", err)
	}
	l, err = Open(c.image, testDir, smallConfig(), Options{Clean: true})
	if err != nil {
		fatal("open again: %v", err)
	}
	defer l.Close()
	if after, err := readFrom(l, start, 5000); err != nil || !slices.Equal(after[:len(before)], before) || len(after) != len(before)+5 {
		fatal("after 5 more appends there are %d records, %d before (%v)", len(after), len(before), err)
	}
}

// checkProducer sends the last batch of the log again.
func (c cut) checkProducer(l *Log, fatal func(string, ...any)) {
	s, err := l.Read(l.EndOffset()-1, 1, l.EndOffset())
	if err != nil {
		fatal("read the last batch: %v", err)
	}
	b, err := s.ReadAll()
	s.Release()
	if err != nil {
		fatal("read the last batch: %v", err)
	}
	h, err := record.ParseHeader(b)
	if err != nil {
		fatal("%v", err)
	}
	want := Verdict{Duplicate, h.BaseOffset, h.LastOffset()}
	if v := l.Producers().Check(h); v != want {
		fatal("the last batch again: %v, want %v", v, want)
	}
}

func (r *recorder) checkAll() {
	r.t.Logf("%d operations, %d power cuts", r.ops, len(r.cuts))
	for _, c := range r.cuts {
		c.check(r.t)
	}
}

// Every acknowledged batch is there after a cut at any boundary, offsets are
// dense, no torn batch is seen, no offset has another value.
func TestPowerCutAtEveryBoundary(t *testing.T) {
	r := newRecorder(t, 2)
	step := func(name string) { r.owed.step = name }
	step("create")
	l := r.open()
	step("append and flush")
	for i := range 12 {
		r.append(l, 1+i%3)
		r.flush(l)
	}
	step("append without flush, over rolls")
	for range 15 {
		r.append(l, 1, 2)
	}
	step("flush what was rolled")
	r.flush(l)
	step("retention")
	r.owed.started = 25
	must(t, l.DeleteBefore(25))
	r.owed.start, r.owed.flushed = 25, l.FlushedOffset()
	step("append behind retention")
	for range 6 {
		r.append(l, 2)
	}
	step("checkpoint")
	must(t, l.Checkpoint())
	r.owed.flushed = l.FlushedOffset()
	step("append and close")
	r.append(l, 3)
	must(t, l.Close())
	r.owed.flushed = l.FlushedOffset()
	step("open again")
	l = r.open()
	for range 8 {
		r.append(l, 1)
	}
	r.flush(l)
	r.append(l, 1)
	step("full disk")
	r.fail = func(op disk.Op) error {
		if op.Kind == disk.OpWrite && strings.HasSuffix(op.Name, logSuffix) {
			return disk.ShortWrite(100, errFull)
		}
		return nil
	}
	end := l.EndOffset()
	v := valueAt(end) + "-failed"
	// The producer learned nothing, so the batch may be there or not.
	r.owed.values[end] = append(r.owed.values[end], v)
	if _, _, err := l.Append([][]byte{idempotent(9, 0, int32(end), v), idempotent(9, 0, int32(end)+1, "never")}, 1, testStart); err == nil {
		t.Fatal("the append should have failed")
	}
	r.fail = nil
	step("append when there is room again")
	r.append(l, 4)
	r.flush(l)
	must(t, l.Close())
	r.checkAll()
}

// A truncation in the middle of its work leaves the old history or the new, and
// never a mixture.
func TestPowerCutDuringTruncation(t *testing.T) {
	r := newRecorder(t, 2)
	l := r.open()
	for range 20 {
		r.append(l, 2)
	}
	r.flush(l)
	r.owed.step = "truncate over segments"
	r.owed.flushed = 10 // 11 lies in a batch of 10 and 11, so what is above 10 may be gone from now on
	must(t, l.TruncateTo(11))
	if l.EndOffset() != 10 {
		t.Fatalf("truncated to %d, want 10", l.EndOffset())
	}
	for o := range r.owed.values {
		if o >= 10 {
			delete(r.owed.values, o)
		}
	}
	r.owed.step = "another history"
	for range 10 {
		r.append(l, 1)
	}
	r.flush(l)
	r.owed.step = "truncate again"
	r.owed.flushed = 18
	must(t, l.TruncateTo(18))
	must(t, l.Close())
	r.checkAll()
}

// Whatever the cut leaves of the last batch, it is there whole or not at all.
func TestTornTailAtEveryByte(t *testing.T) {
	m := newDisk(t)
	cfg := DefaultConfig()
	l := open(t, m, cfg)
	appendValues(t, l, 3)
	must(t, l.Checkpoint())
	appendValues(t, l, 3)
	flush(t, l)
	size := l.Size()
	last := l.Size() / 6
	image := m.Crash(0)
	name := l.path(0, logSuffix)
	for n := range last + 1 {
		torn := image.Crash(0)
		edit(t, torn, name, func(b []byte) []byte { return b[:size-n] })
		l := open(t, torn, cfg)
		want := int64(6)
		if n > 0 {
			want = 5
		}
		wantDense(t, readAll(t, l, 0), 0, want)
		appendValues(t, l, 2)
		must(t, l.Close())
		wantDense(t, readAll(t, open(t, torn, cfg), 0), 0, want+2)
	}
	for n := range last { // garbage, zeros included, in place of the rest
		for _, fill := range []byte{0, 0xff, 2} {
			torn := image.Crash(0)
			edit(t, torn, name, func(b []byte) []byte {
				for i := size - n - 1; i < size; i++ {
					b[i] = fill
				}
				return b
			})
			l := open(t, torn, cfg)
			if end := l.EndOffset(); end != 5 && end != 6 { // a byte may have been equal
				t.Fatalf("ends at %d", end)
			}
			wantDense(t, readAll(t, l, 0), 0, l.EndOffset())
		}
	}
}
