package kafka

import (
	"math"
	"runtime/debug"
	"testing"
)

// While requests hold much, the process keeps within what they may hold and
// some more; afterwards all is as it was.
func TestCollectorIsTightWhileRequestsHoldMuch(t *testing.T) {
	t.Setenv("GOMEMLIMIT", "")
	before := debug.SetMemoryLimit(math.MaxInt64)
	defer debug.SetMemoryLimit(before)
	now := func() int64 { return debug.SetMemoryLimit(-1) }
	const most = 100 << 20
	var c collector
	for _, step := range []struct {
		bytes int64
		tight bool
	}{{0, false}, {tightAt - 1, false}, {tightAt, true}, {most, true}, {0, false}, {0, false}} {
		c.adapt(step.bytes, most)
		if tight := now() < math.MaxInt64; tight != step.tight || tight && now() < most+leeway {
			t.Fatalf("at %d bytes: a limit of %d", step.bytes, now())
		}
	}
	t.Setenv("GOMEMLIMIT", "1GiB")
	if c.adapt(tightAt, most); now() != math.MaxInt64 {
		t.Fatalf("the environment's choice was overruled: %d", now())
	}
}

// What others have in use is never squeezed: a broker with very many partitions
// would collect all the time.
func TestMemoryLimitLeavesOthersTheirRoom(t *testing.T) {
	for _, others := range []int64{-5 << 20, 0, 1 << 20, 1 << 30} {
		if got := memoryLimit(others, 100<<20); got < 2*others+100<<20 || others <= 0 && got != 132<<20 {
			t.Errorf("%d of others: %d", others, got)
		}
	}
}
