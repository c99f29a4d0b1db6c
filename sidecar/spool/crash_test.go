package spool

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	"go.uber.org/zap"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// lifetime is one process: its disk and its way to the brokers end together, at a
// step that the test names. Steps are changes of the disk and records that arrive
// at a broker.
type lifetime struct {
	steps atomic.Int64
	dies  int64
}

var errDead = errors.New("the process is dead")

// step counts one; false when the process does not live to do it.
func (l *lifetime) step() bool { return l.steps.Add(1) < l.dies }

func (l *lifetime) rule(op disk.Op) error {
	if op.Kind.Mutates() && !l.step() || l.steps.Load() >= l.dies {
		if op.Kind == disk.OpWrite && op.Size > 1 {
			return disk.ShortWrite(op.Size/2, errDead)
		}
		return errDead
	}
	return nil
}

// told is what callers were told, by partition.
type told struct {
	acked   [2][]string // in the order of their answers
	unknown map[string]bool
	refused map[string]bool
	ids     map[string]string // value by id
}

// live runs a process over a disk until it dies or has done its work.
func (l *lifetime) live(t *testing.T, mem *disk.Mem, b *brokers, first, last int, to *told) (died bool) {
	away := b.topics["t"].parts[0].away
	cfg := DefaultConfig()
	cfg.Outcomes, cfg.SendWait = 1000, time.Minute
	cfg.LookAgain = time.Millisecond
	cfg.SegmentBytes, cfg.ParkAbove, cfg.KeepEvery, cfg.ReclaimEvery = 1024, 1, 500*time.Microsecond, 500*time.Microsecond
	snd := b.sender()
	snd.sent = l.step
	s, err := Open(cfg, Deps{FS: disk.WithFaults(mem, l.rule), Dir: "spool", Next: &live{b: b}, Brokers: b, Sender: snd, Logger: zap.NewNop()})
	if err != nil {
		if l.steps.Load() < l.dies {
			t.Fatalf("dies at %d: %v", l.dies, err)
		}
		return true
	}
	s.Start()
	defer func() {
		ended, cancel := context.WithTimeout(context.Background(), time.Millisecond)
		defer cancel()
		_ = s.Close(ended) // a dead one complains
	}()
	for i := first; i < last; i += 2 {
		p := int32(i / 2 % 2)
		if away {
			p = int32(min(i/2%4, 1)) // most of it is for the other
		}
		values := []string{fmt.Sprint(i), fmt.Sprint(i + 1)}
		var ms []publish.Message
		for _, v := range values {
			ms = append(ms, publish.Message{Value: []byte(v), Partition: &p})
		}
		results, err := s.PublishBatch(context.Background(), "t", ms, publish.Options{Ack: publish.AckSpool})
		for k, v := range values {
			switch {
			case err == nil:
				to.acked[p] = append(to.acked[p], v)
				to.ids[results[k].SpoolID] = v
			case codeOf(err) == api.CodeUnknownOutcome:
				to.unknown[v] = true
			default:
				to.refused[v] = true
			}
		}
		if i == (first+last)/2/2*2 {
			for range 20 { // let some of it be sent
				if s.Status().Pending == 0 || l.steps.Load() >= l.dies {
					break
				}
				time.Sleep(time.Millisecond)
			}
		}
	}
	if away && l.dies < 1<<40 {
		for range 30 {
			time.Sleep(500 * time.Microsecond)
		}
		return l.steps.Load() >= l.dies
	}
	b.set(func() { b.topics["t"].parts[0].away = false })
	for end := time.Now().Add(30 * time.Second); s.Status().Pending > 0; time.Sleep(time.Millisecond) {
		if l.steps.Load() >= l.dies {
			return true
		}
		if time.Now().After(end) {
			t.Fatalf("dies at %d, step %d: %+v", l.dies, l.steps.Load(), s.Status())
		}
	}
	if l.steps.Load() < l.dies { // an id tells where its message is
		for id, v := range to.ids {
			ev, err := s.Event(id)
			switch {
			case codeOf(err) == api.CodeNotFound: // a power cut may take it along
			case err != nil || ev.State != api.SpoolWritten || b.values("t", int(ev.Partition))[ev.Offset] != v:
				t.Fatalf("dies at %d: %s: %+v, %v", l.dies, v, ev, err)
			}
		}
	}
	return l.steps.Load() >= l.dies
}

func (to *told) check(t *testing.T, what string, b *brokers) {
	t.Helper()
	for p := range to.acked {
		values := b.values("t", p)
		count := map[string]int{}
		for _, v := range values {
			if count[v]++; count[v] > 1 || to.refused[v] {
				t.Fatalf("%s: partition %d has %s %d times, refused %v: %v", what, p, v, count[v], to.refused[v], values)
			}
		}
		at := -1
		for _, v := range to.acked[p] {
			i := slices.Index(values, v)
			if i < 0 || i < at {
				t.Fatalf("%s: partition %d: %s is at %d, the one before it at %d: %v, acknowledged %v", what, p, v, i, at, values, to.acked[p])
			}
			at = i
		}
	}
}

// A process is killed at every step, another one goes on and is killed as well, a
// third one brings it to its end: what was acknowledged is there once and in
// order, what was refused is not there.
func TestKilledAtEveryStep(t *testing.T) { crashes(t, false, false) }

// The same, and the machine loses its power: what was not synced may be gone.
func TestPowerCutAtEveryStep(t *testing.T) { crashes(t, true, false) }

// The same while one partition is away until the last process, so that its
// messages are moved out of the others' way.
func TestPowerCutWithAPartitionAway(t *testing.T) {
	crashes(t, false, true)
	crashes(t, true, true)
}

func crashes(t *testing.T, power, away bool) {
	at, stride := int64(1), int64(2)
	if away {
		stride = 5 // which steps these are differs from run to run
	}
	for ; ; at += stride {
		mem, b := disk.NewMem(), newBrokers(2)
		b.topics["t"].parts[0].away = away
		requests := 0
		b.lose = func() bool { requests++; return requests%5 == 0 }
		to := &told{unknown: map[string]bool{}, refused: map[string]bool{}, ids: map[string]string{}}
		what := fmt.Sprintf("power %v, away %v, killed at step %d", power, away, at)
		died := (&lifetime{dies: at}).live(t, mem, b, 0, 24, to)
		if !died && at < 20 {
			t.Fatalf("%s: it did not die", what)
		}
		if power {
			mem = mem.Crash(uint64(at))
		}
		(&lifetime{dies: at*7%60 + 1}).live(t, mem, b, 24, 32, to)
		if power {
			mem = mem.Crash(uint64(at) + 1000)
		}
		if (&lifetime{dies: 1 << 40}).live(t, mem, b, 32, 36, to) {
			t.Fatalf("%s: the last one died", what)
		}
		to.check(t, what, b)
		if !died {
			break
		}
	}
	t.Logf("killed at %d steps", at/stride)
}
