package agent

import (
	"cmp"
	"fmt"
	"maps"
	"net"
	"slices"
	"strconv"
	"strings"
	"time"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

const (
	flapWindow = 10 * time.Minute // in which absences of a broker are counted together
	flapTimes  = 3                // absences in it from which a broker comes and goes
	flapSteady = time.Minute      // that such a one must serve before its alarm ends
	// leaderWait is how long a partition may lack a leader while its broker is
	// there: one that was just placed is taken within it.
	leaderWait = 5 * time.Second
	// Bounds of what is told: a cluster may lose 1,000 partitions at once.
	mostMissing = 10
	mostNames   = 3
)

// Outage is what of the cluster has no leader, as this agent sees it.
type Outage struct {
	// AsOf is when the coordination store last answered; without an age to
	// mention it is now. Zero: it has never answered in this process.
	AsOf    time.Time `json:"as_of,omitzero"`
	Offline int       `json:"offline_partitions"` // that have no leader
	Missing []Absence `json:"missing_brokers"`    // that hold partitions and do not serve; the first 10
	More    int       `json:"more_missing,omitempty"`
	// Leaderless are the partitions among the offline ones whose broker is there,
	// or that no broker is known to hold.
	Leaderless int       `json:"leaderless_partitions,omitempty"`
	Topics     []string  `json:"leaderless_topics,omitempty"` // of those, the first 3
	Since      time.Time `json:"leaderless_since,omitzero"`
}

// Absence is a broker that holds partitions and does not serve, or that comes
// and goes.
type Absence struct {
	ID         int32     `json:"id"`
	Address    string    `json:"address,omitempty"` // that it had; "" when this agent never saw it
	Since      time.Time `json:"since"`
	Before     bool      `json:"since_before,omitempty"` // it was missing when this agent first looked
	Times      int       `json:"times"`                  // that it went within 10 minutes, this one included
	Back       bool      `json:"back,omitempty"`         // it serves, and went too often to be called well
	Partitions int       `json:"partitions"`             // that only it holds
	Topics     []string  `json:"topics"`                 // of those, the first 3
	MoreTopics int       `json:"more_topics,omitempty"`
}

// absence is what is remembered of a broker that went.
type absence struct {
	since  time.Time
	back   time.Time // zero: it is still missing
	before bool
	times  int
}

// outages is what the decision remembers from one look to the next. Nothing in
// it is changed; a look makes another.
type outages struct {
	known      bool // the store was read at some time
	gone       map[int32]absence
	addresses  map[int32]string
	leaderless time.Time // since when there have been such partitions; zero: there are none
}

// look says what is out now, and what to remember. It is pure.
//
// Which brokers should be there is what the partitions' states say: one that
// holds none may come and go as it likes (it was drained on purpose, or is new),
// and topics that are being deleted count as none. A silent broker is as good as
// gone: it is registered, and its check is critical.
func (o outages) look(f *facts.Facts, v *broker.View, silent map[int32]bool, self int32, now, asOf time.Time) (outages, Outage) {
	next := outages{known: o.known || f.Cluster == facts.Same, gone: map[int32]absence{}, addresses: map[int32]string{}, leaderless: o.leaderless}
	out := Outage{AsOf: asOf, Missing: []Absence{}}
	held := holders(f)
	delete(held, self)
	for id, b := range f.Brokers {
		if b.Port != 0 {
			next.addresses[id] = net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		}
	}
	for id, tally := range held {
		if a, ok := o.addresses[id]; ok && next.addresses[id] == "" {
			next.addresses[id] = a
		}
		a, was := o.gone[id]
		switch serving := f.Serving(id) && !silent[id]; {
		case !serving && !was:
			a = absence{since: now, before: !o.known, times: 1}
		case !serving && !a.back.IsZero():
			a = absence{since: now, times: a.times + 1}
		case serving && !was:
			continue
		case serving && a.back.IsZero():
			a.back = now
		case serving && now.Sub(a.back) > flapWindow:
			continue
		}
		next.gone[id] = a
		if !a.back.IsZero() && (a.times < flapTimes || now.Sub(a.back) >= flapSteady) {
			continue
		}
		names := slices.Sorted(maps.Keys(tally.topics))
		out.Missing = append(out.Missing, Absence{ID: id, Address: next.addresses[id], Since: a.since, Before: a.before, Times: a.times, Back: !a.back.IsZero(),
			Partitions: tally.partitions, Topics: names[:min(len(names), mostNames)], MoreTopics: max(0, len(names)-mostNames)})
	}
	slices.SortFunc(out.Missing, func(a, b Absence) int { return cmp.Compare(a.ID, b.ID) })
	if n := len(out.Missing); n > mostMissing {
		out.Missing, out.More = out.Missing[:mostMissing], n-mostMissing
	}
	next.leaderless = out.count(f, v, silent, self, o.leaderless, now)
	return next, out
}

// count counts the partitions without a leader, and returns since when there
// have been some whose broker is there.
func (out *Outage) count(f *facts.Facts, v *broker.View, silent map[int32]bool, self int32, since, now time.Time) time.Time {
	topics := map[string]bool{}
	for name, t := range v.Topics {
		if f.Topics[name].Phase == discovery.PhaseCreating && f.Topics[name].UUID == t.ID.String() {
			continue // nobody has had it yet
		}
		for _, p := range t.Partitions {
			if p.Leader >= 0 && !silent[p.Leader] {
				continue
			}
			out.Offline++
			if p.Leader < 0 && !slices.ContainsFunc(p.Replicas, func(id int32) bool { return id != self && !f.Serving(id) }) {
				out.Leaderless++
				topics[name] = true
			}
		}
	}
	if out.Leaderless == 0 {
		return time.Time{}
	}
	if since.IsZero() {
		since = now
	}
	out.Topics, out.Since = slices.Sorted(maps.Keys(topics)), since
	out.Topics = out.Topics[:min(len(out.Topics), mostNames)]
	return since
}

type tally struct {
	partitions int
	topics     map[string]bool
}

// holders are the brokers that the store places partitions on, with those that
// no other broker holds.
func holders(f *facts.Facts) map[int32]tally {
	held := map[int32]tally{}
	for _, t := range f.Topics {
		if t.Phase == discovery.PhaseDeleting {
			continue
		}
		for _, s := range f.Shards[t.UUID] {
			for _, p := range s.Partitions {
				for _, id := range p.Replicas {
					of, ok := held[id]
					if !ok {
						of.topics = map[string]bool{}
					}
					if len(p.Replicas) == 1 {
						of.partitions++
						of.topics[t.Name] = true
					}
					held[id] = of
				}
			}
		}
	}
	return held
}

// brokersMissing is how many brokers do not serve, without those that are back.
func (out Outage) brokersMissing() int {
	n := out.More
	for _, a := range out.Missing {
		if !a.Back {
			n++
		}
	}
	return n
}

// alarms are the texts by kind. stale is said of knowledge that is old.
func (out Outage) alarms(now time.Time) map[string]string {
	texts, stale := map[string]string{}, ""
	if age := now.Sub(out.AsOf); !out.AsOf.IsZero() && age > staleAfter {
		stale = fmt.Sprintf(" (as known at %s, when the coordination store last answered)", timeOfDay(out.AsOf))
	}
	for _, a := range out.Missing {
		texts[fmt.Sprintf("%s %d", alarmMissing, a.ID)] = a.text() + stale
	}
	if out.More > 0 {
		texts[alarmMissing] = fmt.Sprintf("%d more brokers that hold partitions are missing%s", out.More, stale)
	}
	if out.Leaderless > 0 && now.Sub(out.Since) >= leaderWait {
		texts[alarmLeaderless] = fmt.Sprintf("%s (%s) without a leader since %s, though no broker that holds them is missing%s: look at the other alarms, of all agents; after a rebuild of the store, name the agent too whose folder has them",
			counted(out.Leaderless, "partition"), listed(out.Topics, 0), timeOfDay(out.Since), stale)
	}
	return texts
}

// staleAfter is the age from which knowledge is called old: sessions are renewed
// well within it.
const staleAfter = 10 * time.Second

// Describe says who is missing and what with it, without since when.
func (a Absence) Describe() string {
	who := fmt.Sprintf("broker %d", a.ID)
	if a.Address != "" {
		who += " (" + a.Address + ")"
	}
	what := fmt.Sprintf("%s of %s", counted(a.Partitions, "partition"), listed(a.Topics, a.MoreTopics))
	if a.Partitions == 0 {
		what = "no partition that it alone holds"
	}
	if a.Back {
		return fmt.Sprintf("%s comes and goes: it went %d times within minutes, and with it %s", who, a.Times, what)
	}
	return fmt.Sprintf("%s is missing: %s without a leader", who, what)
}

func (a Absence) text() string {
	if a.Back {
		return a.Describe()
	}
	since := "since " + timeOfDay(a.Since)
	if a.Before {
		since = "since before " + timeOfDay(a.Since) + ", when this agent first looked"
	}
	switch a.Times {
	case 1:
	case 2:
		since += ", for the 2nd time within minutes"
	case 3:
		since += ", for the 3rd time within minutes"
	default:
		since += fmt.Sprintf(", for the %dth time within minutes", a.Times)
	}
	return strings.Replace(a.Describe(), " is missing:", " is missing "+since+":", 1) + "; start its agent on the same data folder"
}

// listed is some names for people, with how many more there are.
func listed(names []string, more int) string {
	text := strings.Join(names, ", ")
	if more > 0 {
		text += fmt.Sprintf(" and %d more topics", more)
	}
	return text
}

func counted(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

func timeOfDay(t time.Time) string { return t.UTC().Format("15:04:05 UTC") }
