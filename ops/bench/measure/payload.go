package measure

import (
	"fmt"
	"math/rand/v2"
)

// Fill makes b random, which no codec makes smaller.
func Fill(b []byte) {
	for i := range b {
		b[i] = byte(rand.Uint32())
	}
}

// Payloads are many different messages of one size, so that nothing is made
// twice while the clock runs: either random, or text as events are, which snappy
// brings to about a third.
func Payloads(size int, text bool) [][]byte {
	out := make([][]byte, 1024)
	for i := range out {
		b := make([]byte, 0, size+200)
		for text && len(b) < size {
			b = fmt.Appendf(b, `{"event":"view","path":"/articles/%d/comments","visitor":"%08x","ms":%d}`,
				rand.IntN(5000), rand.Uint32(), rand.IntN(3000))
		}
		b = b[:size]
		if !text {
			Fill(b)
		}
		out[i] = b
	}
	return out
}
