package spool

import "time"

// unknownTime is an entry's first timestamp when nobody knew the time as it was
// accepted.
const unknownTime = -1

// acceptedAt reads an entry's first timestamp: the zero time is not known.
func acceptedAt(ms int64) time.Time {
	if ms == unknownTime {
		return time.Time{}
	}
	return time.UnixMilli(ms)
}

// stampOf is the reverse.
func stampOf(at time.Time) int64 {
	if at.IsZero() {
		return unknownTime
	}
	return at.UnixMilli()
}

// time is the data folder's own, zero while it is not to be believed.
func (s *Spool) time() time.Time {
	now := s.now()
	if !now.IsZero() {
		s.knownSince.CompareAndSwap(0, now.UnixMilli())
	}
	return now
}

// dated is when something was accepted, at the latest: what has no date is as
// young as the first look of this process by a time that is known.
func (s *Spool) dated(accepted time.Time) time.Time {
	if !accepted.IsZero() {
		return accepted
	}
	if since := s.knownSince.Load(); since != 0 {
		return time.UnixMilli(since)
	}
	return time.Now() // no age at all
}

// age is for how long something waits. Whatever is decided by it waits as well
// while it is not known.
func (s *Spool) age(accepted time.Time) (age time.Duration, known bool) {
	now := s.time()
	if now.IsZero() {
		return 0, false
	}
	return now.Sub(s.dated(accepted)), true
}
