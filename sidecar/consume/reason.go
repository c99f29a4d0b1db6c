package consume

import (
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume/window"
)

// census counts what there is of one topic or of several, to say why a pull is
// empty.
type census struct {
	topics   int // that are there
	untold   int // topics and patterns that the plan does not tell of yet
	assigned int // partitions that the plan gives to this sidecar
	here     int // partitions on their way here, owned, or on their way off
	owned    int
	full     int // owned: what could follow waits for acks, or for a delay to end
	down     int // cannot be read or taken now
	dead     int // owned: a dead letter could not be written
	corrupt  int // stand still at records that nobody can read
	unread   int // owned: no fetch has answered yet
	behind   int // owned: the brokers have more than was fetched
	paused   int // topics that are: nothing of them is counted
}

func (t census) plus(u census) census {
	return census{
		t.topics + u.topics, t.untold + u.untold, t.assigned + u.assigned, t.here + u.here, t.owned + u.owned,
		t.full + u.full, t.down + u.down, t.dead + u.dead, t.corrupt + u.corrupt, t.unread + u.unread, t.behind + u.behind,
		t.paused + u.paused,
	}
}

// reason says why there is nothing to take. coming says that there will be in a
// moment: messages that the brokers have are being fetched. Of several reasons
// the first that somebody can do something about is told. full says that the
// process holds as many bytes as it may.
func (t census) reason(full bool) (reason api.Reason, coming bool) {
	coming = t.behind+t.unread > 0
	switch {
	case t.paused > 0 && t.paused == t.topics:
		return api.ReasonPaused, false
	case t.topics == 0 && t.untold == 0:
		return api.ReasonNoTopic, false
	case t.untold >= t.topics-t.paused && t.untold > 0:
		return api.ReasonRebalancing, false
	case t.owned == 0 && t.down > 0:
		return api.ReasonBrokersDown, false
	case t.owned == 0 && t.untold == 0 && t.assigned+t.here == 0:
		return api.ReasonNoPartition, false
	case t.owned == 0:
		return api.ReasonRebalancing, false
	case t.behind > 0 && full:
		return api.ReasonInFlightFull, false
	case t.full > 0:
		return api.ReasonInFlightFull, coming
	case t.dead > 0:
		return api.ReasonDeadLetterBlocked, coming
	case t.corrupt > 0: // before brokers_down: it does not pass by itself
		return api.ReasonCorruptRecord, coming
	case t.down > 0:
		return api.ReasonBrokersDown, coming
	case coming || t.here > t.owned || t.untold > 0:
		return api.ReasonRebalancing, coming
	case t.paused > 0:
		return api.ReasonPaused, false
	}
	return api.ReasonAtEnd, false
}

// census counts the topic's partitions.
func (s *share) census(now time.Time, a *discovery.Assignment) census {
	t := census{topics: 1}
	if s.g.isPaused(s.topic) {
		t.paused = 1
		return t
	}
	if a == nil {
		t.untold = 1
	} else if assigned, told := a.Partitions[s.topic]; told {
		t.assigned = len(assigned)
	} else {
		t.untold = 1
	}
	for _, o := range s.list() {
		v := o.tick(now)
		t.here++
		switch {
		case v.trouble == "":
		case v.unreadable:
			t.corrupt++
		default:
			t.down++
		}
		if v.state != stateOwned {
			continue
		}
		t.owned++
		switch {
		case v.why == window.InFlightFull && (v.waiting > 0 || v.behind), v.why == window.Delayed:
			t.full++
		case v.why == window.DeadBlocked:
			t.dead++
		case v.trouble != "":
		case !v.started:
			t.unread++
		case v.behind && v.why == window.AtEnd, v.why == window.Ready:
			t.behind++
		}
		if v.open && v.behind && v.trouble == "" && v.why != window.AtEnd && v.why != window.Ready {
			t.behind++ // what comes need not wait for what is held up
		}
	}
	return t
}

// reason says why there is nothing to take, of all topics together and, where
// they differ, of each.
func (sub *subscription) reason(now time.Time) (reason api.Reason, each map[string]api.Reason, coming bool) {
	r := sub.g.m.reader
	full := r.budget.crowded()
	a := sub.g.assigned()
	var sum census
	for _, pattern := range sub.choice.patterns {
		if a == nil {
			sum.untold++
		} else if _, told := a.Partitions[pattern]; !told {
			sum.untold++
		}
	}
	differ := false
	for _, s := range sub.list() {
		if s.goneError() != nil {
			continue // there is nothing to say of it
		}
		t := s.census(now, a)
		sum = sum.plus(t)
		if sub.choice.single() {
			continue
		}
		its, _ := t.reason(full)
		if each == nil {
			each = map[string]api.Reason{}
		}
		for _, other := range each {
			differ = differ || other != its
			break
		}
		each[s.topic] = its
	}
	if !differ {
		each = nil
	}
	reason, coming = sum.reason(full)
	return reason, each, coming
}

// missing is the error of a topic that was named and is not there; nil when all
// are there.
func (sub *subscription) missing() *api.Error {
	for _, s := range sub.list() {
		if e := s.goneError(); e != nil && sub.choice.named(s.topic) {
			return e
		}
	}
	return nil
}
