package consume

import "go.uber.org/zap"

// corrupt implements sink.
func (o *owner) corrupt(offset, end int64, why string) {
	o.mu.Lock()
	if o.win == nil || o.win.Next() != offset {
		o.mu.Unlock()
		return // sought past it meanwhile
	}
	o.end = max(o.end, end)
	news := o.standStill(why)
	o.mu.Unlock()
	if news {
		o.stoodStill(why)
	}
}

// standStill remembers why the log cannot be read here, under mu. It reports
// whether that is news: the reader finds it again and again.
func (o *owner) standStill(why string) (news bool) {
	news = o.why != why
	o.why, o.unreadable = why, true
	return news
}

func (o *owner) stoodStill(why string) {
	o.s.g.m.outage.works(o.key.String()) // it is no outage: it does not pass by itself
	o.log.Error("partition stands still", zap.String("why", why))
	o.s.wake()
}
