package kafka

import (
	"math"
	"os"
	"runtime/debug"
	runtimemetrics "runtime/metrics"
)

// collector bounds what the process takes while requests hold much memory. Go lets garbage grow as large as what is in
// use and gives what it has freed back at leisure, so that a broker whose requests hold what max_request_memory allows
// took more than twice of it. Both cost little to do sooner there: a request's memory has no pointers to follow. It
// belongs to the sweep. A GOMEMLIMIT of the environment's is left alone.
type collector struct{ tight bool }

const (
	tightAt = 32 << 20 // bytes that requests hold
	leeway  = 32 << 20 // for garbage
)

// adapt is called now and then with what requests hold, and may hold.
func (c *collector) adapt(bytes, most int64) {
	tight := bytes >= tightAt
	if !tight && !c.tight || os.Getenv("GOMEMLIMIT") != "" {
		return
	}
	c.tight = tight
	if !tight {
		debug.SetMemoryLimit(math.MaxInt64)
		return
	}
	live := []runtimemetrics.Sample{{Name: "/gc/heap/live:bytes"}}
	runtimemetrics.Read(live)
	debug.SetMemoryLimit(memoryLimit(int64(live[0].Value.Uint64())-bytes, most))
}

// memoryLimit is what the process should keep within when so many bytes that no request holds were in use lately: as
// ever twice of them, but not twice of the requests'.
func memoryLimit(others, most int64) int64 { return 2*max(others, 0) + most + leeway }
