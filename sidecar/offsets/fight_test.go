package offsets

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"sidestream/discovery"
)

// TestPropertyTwoFightOverAKey lets two sidecars claim, acknowledge, seek and
// checkpoint one partition in any order while commits fail in every way. In the
// store neither generation nor seek epoch falls and nothing rewinds within an
// epoch; in the end all that was marked of the last epoch is there, and nothing
// that nobody acknowledged.
func TestPropertyTwoFightOverAKey(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		b := newBench(t)
		defer b.close()
		hosts := []*host{b.host("a"), b.host("c")}
		generations := make([]uint64, 2)
		positions := []Position{acked(0), acked(0)}
		all := []map[int64]bool{{}} // acknowledged by anyone, by seek epoch
		start := []int64{0}
		var last Stored
		check := func() {
			e, err := b.mem.Get(b.ctx, discovery.KeyOffset("g", "orders", 0))
			if errors.Is(err, discovery.ErrNotFound) {
				return
			}
			now := must(DecodeStored(e))
			if now.Generation < last.Generation || now.Generation == last.Generation && last.Owner != "" && now.Owner != last.Owner {
				rt.Fatalf("the generation went from %+v to %+v", last, now)
			}
			epoch := now.Position.SeekEpoch
			if epoch < last.Position.SeekEpoch {
				rt.Fatalf("the seek epoch fell: %+v, %+v", last, now)
			}
			for o := start[epoch]; o < span; o++ {
				if epoch == last.Position.SeekEpoch && last.Position.IsAcked(o) && !now.Position.IsAcked(o) {
					rt.Fatalf("offset %d rewound: %+v, %+v", o, last, now)
				}
				if now.Position.IsAcked(o) && !all[epoch][o] {
					rt.Fatalf("offset %d is acked in %+v, and nobody acked it", o, now)
				}
			}
			last = now
		}
		b.store.fail(func([]discovery.Op) fault {
			return rapid.SampledFrom([]fault{none, none, none, unavailable, lostBefore, lostAfter, namelessConflict, falseConflict}).Draw(rt, "fault")
		})
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			i := rapid.IntRange(0, 1).Draw(rt, "host")
			h := hosts[i]
			switch rapid.SampledFrom([]string{"ack", "ack", "flush", "flush", "claim", "seek"}).Draw(rt, "do") {
			case "claim":
				b.lock(p0, h)
				s, err := h.Claim(b.ctx, p0, h.session.ID(), positions[i])
				if err != nil {
					// An attempt may have been applied all the same.
					if !errors.Is(err, discovery.ErrUnavailable) && !errors.Is(err, discovery.ErrConflict) && !errors.Is(err, ErrNotOwner) {
						rt.Fatal(err)
					}
					break
				}
				if s.Generation <= last.Generation {
					rt.Fatalf("claimed generation %d after %d", s.Generation, last.Generation)
				}
				generations[i], positions[i] = s.Generation, s.Position
			case "ack":
				if generations[i] > 0 {
					o := rapid.Int64Range(0, span-1).Draw(rt, "offset")
					all[positions[i].SeekEpoch][o] = true
					positions[i].Ack(o)
					h.Mark(p0, generations[i], positions[i])
				}
			case "seek":
				if generations[i] > 0 && rapid.Bool().Draw(rt, "really") {
					low := rapid.Int64Range(0, span-1).Draw(rt, "target")
					positions[i] = Position{Topic: "A", SeekEpoch: uint64(len(start)), Low: low, HandOut: low}
					start, all = append(start, low), append(all, map[int64]bool{})
					h.Mark(p0, generations[i], positions[i])
				}
			case "flush":
				_ = h.FlushKey(b.ctx, p0)
			}
			check()
		}
		b.store.fail(nil)
		for i, h := range hosts {
			if err := h.FlushKey(b.ctx, p0); err != nil {
				rt.Fatalf("flush without faults: %v", err)
			}
			check()
			if generations[i] > 0 && positions[i].SeekEpoch == last.Position.SeekEpoch {
				for o := range int64(span) {
					if positions[i].IsAcked(o) && !last.Position.IsAcked(o) {
						rt.Fatalf("offset %d, acknowledged by %s, is not in %+v", o, h.opt.Owner, last)
					}
				}
			}
		}
	})
}
