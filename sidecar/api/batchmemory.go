package api

import (
	"bytes"
	"context"
	"time"
	"unsafe"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// messageCost is about what a message of a batch takes beside its bytes, until
// it is answered: itself, its line, its fate, its place on its way, and its part
// of the answer. A line of two bytes takes a hundred times of itself.
const messageCost = int64(unsafe.Sizeof(publish.Message{})+unsafe.Sizeof(api.BatchResult{})+unsafe.Sizeof(int(0))+unsafe.Sizeof(int32(0))) + 64

// batchCost is about what the messages of a body take when they are read. Of
// more than most of them nothing is read.
func batchCost(body []byte, lines bool, most int) int64 {
	if lines {
		return messageCost * int64(min(bytes.Count(body, []byte{'\n'})+1, most))
	}
	// Each is a JSON object, on a line or in an array; what they hold may be
	// unescaped into as much again.
	return messageCost*int64(min(bytes.Count(body, []byte{'{'}), most)) + int64(len(body))
}

// takeBatch takes what the messages of a whole batch cost. What costs little is
// free, as the first bytes of a body are.
func (m *bodyMemory) takeBatch(ctx context.Context, body []byte, lines bool, most int) (taken int64, err error) {
	if m == nil {
		return 0, nil
	}
	taken = m.share(batchCost(body, lines, most)) - firstBody
	if taken <= 0 {
		return 0, nil
	}
	return taken, m.take(ctx, taken)
}

// pieceWait is how often an upload looks whether there is memory.
const pieceWait = 20 * time.Millisecond

// awaitMemory waits until there is memory for a piece, while others of the same
// upload are under way, which give theirs back: its client is slowed down rather
// than refused. It queues up for nothing, so that others are not held up.
func (u *upload) awaitMemory() {
	m := u.s.memory
	if m == nil {
		return
	}
	size := min(2*pieceBytes+pieceLines*messageCost, m.all/2)
	for len(u.slots) > 1 {
		if m.free.TryAcquire(size) {
			m.free.Release(size) // it is taken as it is needed
			return
		}
		wait := time.NewTimer(pieceWait)
		select {
		case <-wait.C:
			continue
		case <-u.ctx.Done():
		case <-u.s.ctx.Done():
		}
		wait.Stop()
		return
	}
}

// takePiece takes what so many messages in so many bytes cost.
func (u *upload) takePiece(p *piece, messages, size int) error {
	cost := int64(messages) * messageCost
	if !u.lines {
		cost += int64(size) // what is unescaped
	}
	cost = u.s.memory.share(cost)
	if err := u.s.memory.take(u.ctx, cost); err != nil {
		return err
	}
	p.taken = cost
	return nil
}
