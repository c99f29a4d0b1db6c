package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"time"

	"sidestream/agent"
)

// States of a cluster, as far as somebody told.
const (
	stateWell     = "well"
	stateDegraded = "degraded"
	stateUnknown  = "unknown" // nobody answers
)

// mostProblems bounds the screen.
const mostProblems = 20

// clusterStatus is what `status` shows.
type clusterStatus struct {
	State    string       `json:"state"` // well, degraded or unknown
	At       time.Time    `json:"at"`
	Problems []problem    `json:"problems"` // the first 20
	More     int          `json:"more_problems,omitempty"`
	Brokers  *brokersSeen `json:"brokers"` // null: none answers
	Agents   []agentSeen  `json:"agents"`
	Sidecar  *sidecarSeen `json:"sidecar"` // null: it does not answer
	Missed   []string     `json:"no_answer"`
}

// problem is one thing that is wrong.
type problem struct {
	What   string     `json:"what"`
	Since  *time.Time `json:"since"` // null: not known
	Before bool       `json:"since_before,omitempty"`
	Do     string     `json:"do"`
	Source string     `json:"source"` // who told
}

type brokersSeen struct {
	Live       []nodeKnown `json:"live"`
	Topics     int         `json:"topics"`
	Partitions int         `json:"partitions"`
	Offline    int         `json:"offline_partitions"`
}

type agentSeen struct {
	Address    string    `json:"address"`
	ID         int32     `json:"broker"`
	Live       int       `json:"live_brokers"`
	Controller int32     `json:"controller"`
	Session    string    `json:"session"`
	AsOf       time.Time `json:"as_of"` // when it last heard of Consul
	Offline    int       `json:"offline_partitions"`
}

type sidecarSeen struct {
	Address string `json:"address"`
	ID      string `json:"id"`
	Ready   bool   `json:"ready"`
	Session string `json:"session"`
	Groups  int    `json:"groups"`
}

// assess says what is wrong. It is pure.
func assess(a answers, now time.Time) clusterStatus {
	st := clusterStatus{At: now, Agents: []agentSeen{}, Problems: []problem{}, Missed: []string{}}
	seen := map[string]bool{}
	say := func(p problem) {
		if key := p.What; !seen[key] {
			seen[key] = true
			if p.Do == "" {
				p.Do = advice(p.What)
			}
			st.Problems = append(st.Problems, p)
		}
	}
	missing := missingBrokers(a.agents)
	for _, p := range missing {
		say(p)
	}
	for _, x := range a.agents {
		if x.status == nil {
			st.miss(say, a.agentsNamed, "agent "+x.address, x.err)
			continue
		}
		st.Agents = append(st.Agents, agentSeen{Address: x.address, ID: x.status.ID, Live: len(x.status.Brokers), Controller: x.status.Controller,
			Session: x.status.Session, AsOf: x.status.Outage.AsOf, Offline: x.status.Outage.Offline})
		for _, p := range alarmsOf(x) {
			say(p)
		}
	}
	if a.brokers == nil {
		st.miss(say, a.brokersNamed, "the brokers", a.brokersErr)
	} else {
		st.Brokers = &brokersSeen{Live: a.brokers.Brokers, Topics: len(a.brokers.Topics)}
		for _, p := range partitionsAmiss(a.brokers, st.Brokers, len(missing) > 0) {
			say(p)
		}
	}
	if a.sidecar == nil {
		st.miss(say, a.sidecarNamed, "the sidecar at "+a.sidecarAt, a.sidecarErr)
	} else {
		s := a.sidecar
		st.Sidecar = &sidecarSeen{Address: a.sidecarAt, ID: s.ID, Ready: s.Ready, Session: s.Store.Ownership, Groups: len(s.Consume.Groups)}
		for _, cause := range s.Causes {
			p := problem{What: cause, Source: "sidecar " + s.ID}
			if s.Outage != nil && strings.Contains(cause, "away since") {
				p.Since = &s.Outage.Since
			}
			say(p)
		}
		if !s.Ready && len(s.Causes) == 0 {
			say(problem{What: "sidecar " + s.ID + " is not ready", Source: "sidecar " + s.ID})
		}
	}
	switch {
	case st.Brokers == nil && st.Sidecar == nil && len(st.Agents) == 0:
		st.State = stateUnknown
	case len(st.Problems) > 0:
		st.State = stateDegraded
	default:
		st.State = stateWell
	}
	if n := len(st.Problems); n > mostProblems {
		st.Problems, st.More = st.Problems[:mostProblems], n-mostProblems
	}
	return st
}

// miss notes who did not answer. It is a problem where the user said that it
// should be there.
func (st *clusterStatus) miss(say func(problem), named bool, who string, err error) {
	text := who + " does not answer"
	if who == "the brokers" {
		text = "no broker answers"
	}
	if err != nil {
		st.Missed = append(st.Missed, fmt.Sprintf("%s: %v", who, err))
	}
	if named {
		say(problem{What: text, Do: "see whether the process runs and whether the address is right: " + firstLine(err), Source: ""})
	}
}

func firstLine(err error) string {
	if err == nil {
		return "it gave no reason"
	}
	line, _, _ := strings.Cut(err.Error(), "\n")
	return line
}

// missingBrokers are the brokers that the agents miss, each once, with the
// earliest time that one of them tells.
func missingBrokers(agents []agentAnswer) []problem {
	type sight struct {
		agent.Absence
		who string
	}
	first := map[int32]sight{}
	more := 0
	for _, x := range agents {
		if x.status == nil {
			continue
		}
		for _, m := range x.status.Outage.Missing {
			if was, ok := first[m.ID]; !ok || was.Before && !m.Before || was.Before == m.Before && m.Since.Before(was.Since) {
				first[m.ID] = sight{m, fmt.Sprintf("agent %s (broker %d)", x.address, x.status.ID)}
			}
		}
		more = max(more, x.status.Outage.More)
	}
	var all []problem
	for _, m := range first {
		all = append(all, problem{What: m.Describe(), Since: &m.Since, Before: m.Before, Source: m.who,
			Do: fmt.Sprintf("start the agent of broker %d again, on the same data folder (runbook: A broker is down)", m.ID)})
	}
	slices.SortFunc(all, func(a, b problem) int { return strings.Compare(a.What, b.What) })
	if more > 0 {
		all = append(all, problem{What: fmt.Sprintf("%d more brokers are missing", more)})
	}
	return all
}

// ofAbsence is an agent's alarm about a missing broker, which is told by what
// the agent knows of it in numbers.
var ofAbsence = regexp.MustCompile(`^broker \d+ (\([^)]*\) )?(is missing|comes and goes)|^\d+ more brokers that hold`)

func alarmsOf(x agentAnswer) []problem {
	var all []problem
	for _, text := range x.status.Alarms {
		if ofAbsence.MatchString(text) {
			continue
		}
		p := problem{What: text, Source: fmt.Sprintf("agent %s (broker %d)", x.address, x.status.ID)}
		if at, ok := x.status.AlarmsSince[text]; ok {
			p.Since = &at
		}
		all = append(all, p)
	}
	if x.status.Controller < 0 && x.status.Store == "same" {
		all = append(all, problem{What: "no controller is elected: topics cannot be created, changed or deleted", Source: fmt.Sprintf("agent %s (broker %d)", x.address, x.status.ID),
			Do: "wait some seconds; if it stays, look at the agents' logs and at Consul"})
	}
	return all
}

// partitionsAmiss counts what the brokers tell of, into seen.
func partitionsAmiss(k *knowledge, seen *brokersSeen, missingToldAlready bool) []problem {
	var topics, thin []string
	var holders []int32
	thinParts := 0
	for _, t := range k.Topics {
		seen.Partitions += len(t.Partitions)
		if n := len(t.offline()); n > 0 {
			seen.Offline += n
			topics = append(topics, t.Topic)
		}
		before := thinParts
		for _, p := range t.Partitions {
			if p.Leader < 0 {
				holders = append(holders, p.Replicas...)
			} else if len(p.ISR) < len(p.Replicas) {
				thinParts++
			}
		}
		if thinParts > before {
			thin = append(thin, t.Topic)
		}
	}
	slices.Sort(holders)
	holders = slices.Compact(holders)
	var all []problem
	if seen.Offline > 0 && !missingToldAlready {
		all = append(all, problem{What: fmt.Sprintf("%s of %s without a leader: held by brokers %v", plural(seen.Offline, "partition"), someOf(topics), holders),
			Source: k.Source, Do: "start the agents of those brokers again, on the same data folders (runbook: A broker is down); --agent shows since when"})
	}
	if thinParts > 0 {
		all = append(all, problem{What: fmt.Sprintf("%s of %s with fewer copies in sync than they should have", plural(thinParts, "partition"), someOf(thin)),
			Source: k.Source, Do: "see that all brokers run and are not overloaded; they catch up by themselves"})
	}
	return all
}

func someOf(names []string) string {
	const most = 3
	text := strings.Join(names[:min(len(names), most)], ", ")
	if more := len(names) - most; more > 0 {
		text += fmt.Sprintf(" and %s", plural(more, "more topic"))
	}
	return text
}

// advice is what to do about a problem that a process told in words.
func advice(what string) string {
	for _, x := range []struct{ words, do string }{
		{"cluster-id missing", `do not delete data folders; run "sidestream metadata rebuild" (runbook: Consul was wiped, or restored from an old copy)`},
		{"another cluster", "see that the store is this cluster's, with --consul-cluster and the address of Consul (runbook: Consul was wiped, or restored from an old copy)"},
		{"not registered in the coordination store", "bring Consul back (runbook: Consul is down)"},
		{"coordination store", "bring Consul back; what runs goes on meanwhile (runbook: Consul is down)"},
		{"Consul", "bring Consul back; what runs goes on meanwhile (runbook: Consul is down)"},
		{"is full", "make room (runbook: The disk is full)"},
		{"is offline", "look at the disk, then restart the agent (runbook: A log directory is offline)"},
		{"copy of", "stop one of the two (runbook: A data folder was copied)"},
		{"in use twice", "stop one of the two (runbook: A data folder was copied)"},
		{"away since", "bring the brokers back that have them; agents name them (runbook: A broker is down)"},
		{"brokers:", "see whether the brokers run and can be reached from here (runbook: A broker is down)"},
		{"spool", "see the runbook: The spool grows, or is full"},
		{"damage", "see the runbook: A disk is failing"},
		{"draining", "it stops as it was asked to; start it again when that is wanted"},
	} {
		if strings.Contains(what, x.words) {
			return x.do
		}
	}
	return "look at the log of the process that told it, and at the runbooks"
}
