package consume

import (
	"context"
	"time"
)

// The gauges of lag are told by whoever owns a partition. A group without a
// member has none, and that is when its lag matters most: the keeper tells it.

// idleLooks is how many topics of idle groups one sweep asks for; where there
// are more they take turns.
const idleLooks = 100

// idleTopic is a topic that a group without members has consumed.
type idleTopic struct{ group, topic string }

// idleLags keeps the gauges of groups without members.
type idleLags struct {
	m     *Manager
	shown map[idleTopic]bool
	turn  int
}

// update asks for the lag of some of the topics, and takes away the gauges of
// those that are not among them any more.
func (l *idleLags) update(ctx context.Context, all []idleTopic) {
	still := make(map[idleTopic]bool, len(all))
	for _, t := range all {
		still[t] = true
	}
	for t := range l.shown {
		if !still[t] {
			l.drop(t)
		}
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	for range min(len(all), idleLooks) {
		t := all[l.turn%len(all)]
		l.turn++
		o, err := l.m.Offsets(ctx, t.group, t.topic)
		switch {
		case ctx.Err() != nil:
			return
		case err != nil: // the topic is gone, or cannot be asked for now
			l.drop(t)
		default:
			l.shown[t] = true
			l.m.metrics.idleLag.WithLabelValues(t.group, t.topic).Set(float64(o.Lag))
			l.m.metrics.idleLagSeconds.WithLabelValues(t.group, t.topic).Set(o.LagSeconds)
		}
	}
}

func (l *idleLags) drop(t idleTopic) {
	delete(l.shown, t)
	l.m.metrics.idleLag.DeleteLabelValues(t.group, t.topic)
	l.m.metrics.idleLagSeconds.DeleteLabelValues(t.group, t.topic)
}
