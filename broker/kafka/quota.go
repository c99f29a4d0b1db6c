package kafka

import (
	"sync"
	"sync/atomic"
	"time"
)

// Quota is how many bytes a client id may send or fetch a second on this broker; 0 is no limit.
type Quota struct {
	Default int64
	Clients map[string]int64 // by client id, instead of the default
}

func (q Quota) rate(client string) int64 {
	if r, ok := q.Clients[client]; ok {
		return r
	}
	return q.Default
}

const (
	// quotaBurst is how long a client may have been silent and then send at once.
	quotaBurst = time.Second
	// maxThrottle bounds how long one answer asks a client to wait; what is left of its debt comes with the next.
	maxThrottle = 10 * time.Second
	// maxBuckets bounds the client ids that are remembered; further ones share one bucket.
	maxBuckets = 10_000
)

// limiter holds the clients of one quota to it: a token bucket for each client id. A client over its quota is not
// refused: what it sent is served, and then it waits for as long as its debt lasts.
type limiter struct {
	quota atomic.Pointer[Quota]

	mu      sync.Mutex // guards everything below
	buckets map[string]bucket
	swept   time.Time
}

// bucket holds tokens (bytes), negative when the client is in debt, as of a moment.
type bucket struct {
	tokens float64
	at     time.Time
}

func newLimiter(q Quota) *limiter {
	l := &limiter{buckets: map[string]bucket{}}
	l.quota.Store(&q)
	return l
}

// SetQuotas puts other quotas in force at once. What a client owes by the old ones it waits for at the new rate.
func (s *Server) SetQuotas(produce, fetch Quota) {
	s.produce.quota.Store(&produce)
	s.fetch.quota.Store(&fetch)
}

// charge takes bytes from a client's bucket and returns how long it must wait.
func (l *limiter) charge(client string, bytes int64, now time.Time) time.Duration {
	rate := l.quota.Load().rate(client)
	if rate <= 0 {
		return 0
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if _, known := l.buckets[client]; !known && len(l.buckets) >= maxBuckets {
		if now.Sub(l.swept) >= quotaBurst { // each sweep looks at all, so made-up ids must not cause one each
			l.sweep(now)
		}
		if len(l.buckets) >= maxBuckets {
			client = "" // a flood of made-up ids
		}
	}
	b, known := l.buckets[client]
	if !known {
		b = bucket{full(rate), now}
	}
	b = b.later(rate, now)
	b.tokens -= float64(bytes)
	l.buckets[client] = b
	if b.tokens >= 0 {
		return 0
	}
	return min(time.Duration(-b.tokens/float64(rate)*float64(time.Second)), maxThrottle)
}

// full is a bucket of a client that has been silent.
func full(rate int64) float64 { return float64(rate) * quotaBurst.Seconds() }

// later is the bucket at a later moment.
func (b bucket) later(rate int64, now time.Time) bucket {
	b.tokens = min(full(rate), b.tokens+max(0, now.Sub(b.at).Seconds())*float64(rate))
	b.at = now
	return b
}

// sweep forgets the clients whose buckets are full: they are like new ones. mu is held.
func (l *limiter) sweep(now time.Time) {
	l.swept = now
	for client, b := range l.buckets {
		rate := l.quota.Load().rate(client)
		if b.later(rate, now).tokens >= full(rate) {
			delete(l.buckets, client)
		}
	}
}

// atOnce is how many bytes one answer may give a client, so that it never waits long for one; 0 is no limit.
func (l *limiter) atOnce(client string) int64 {
	rate := l.quota.Load().rate(client)
	if rate <= 0 {
		return 0
	}
	return max(1, int64(full(rate)))
}

// throttle charges a client and tells it in an answer, in milliseconds. Its connection is not read until the time is
// over, whatever the client makes of it (KIP-219).
func (s *Server) throttle(c *call, l *limiter, name string, bytes int64) int32 {
	wait := l.charge(c.header.clientID, bytes, time.Now())
	if wait <= 0 {
		return 0
	}
	s.metrics.throttled.WithLabelValues(name).Add(wait.Seconds())
	c.mute = wait
	return int32((wait + time.Millisecond - 1) / time.Millisecond)
}
