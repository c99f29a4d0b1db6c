package kafka

import (
	"sync"
	"time"

	"go.uber.org/zap"
)

// logEvery is how often one kind of line about misbehaving clients may be logged. A client decides how often it is to
// be complained about, so a flood of bad requests would otherwise become a flood of lines: a full disk, or the line that
// matters lost among them. The metrics count every case.
const logEvery = 10 * time.Second

// hush counts the lines that are left out. Kinds are written in the code, so there are few.
type hush struct {
	mu    sync.Mutex // guards kinds
	kinds map[string]hushed
}

// hushed is when a kind was last logged and how many lines were left out since.
type hushed struct {
	logged  time.Time
	leftOut int64
}

// pass tells whether a line of that kind is due, and how many were left out before it.
func (h *hush) pass(kind string, now time.Time) (leftOut int64, ok bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	k, known := h.kinds[kind]
	if known && now.Sub(k.logged) < logEvery {
		k.leftOut++
		h.kinds[kind] = k
		return 0, false
	}
	if h.kinds == nil {
		h.kinds = map[string]hushed{}
	}
	h.kinds[kind] = hushed{logged: now}
	return k.leftOut, true
}

// settle returns the kinds that went quiet with lines left out, which nothing else would tell.
func (h *hush) settle(now time.Time) map[string]int64 {
	h.mu.Lock()
	defer h.mu.Unlock()
	var out map[string]int64
	for kind, k := range h.kinds {
		if k.leftOut > 0 && now.Sub(k.logged) >= logEvery {
			if out == nil {
				out = map[string]int64{}
			}
			out[kind] = k.leftOut
			h.kinds[kind] = hushed{logged: now}
		}
	}
	return out
}

// complain logs a line about a client unless one of its kind was logged a moment ago.
func (s *Server) complain(kind, message string, fields ...zap.Field) {
	leftOut, ok := s.hush.pass(kind, time.Now())
	if !ok {
		return
	}
	fields = append(fields, fieldReason(kind))
	if leftOut > 0 {
		fields = append(fields, zap.Int64("left_out", leftOut))
	}
	s.log.Warn(message, fields...)
}

// tellLeftOut says how many lines were left out of what has stopped since.
func (s *Server) tellLeftOut(now time.Time) {
	for kind, n := range s.hush.settle(now) {
		s.log.Warn("lines about clients were left out", fieldReason(kind), zap.Int64("left_out", n))
	}
}
