package main

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	"sidestream/agent"
	"sidestream/sidecar"
	consuming "sidestream/sidecar/consume"
)

// What is wrong is decided from what was told, and one dead broker is one problem
// however many tell of it.
func TestWhatStatusSays(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	part := func(leader int32) partitionRow {
		return partitionRow{Leader: leader, Replicas: []int32{3}, ISR: []int32{3}}
	}
	brokers := func(leaders ...int32) *knowledge {
		k := &knowledge{Source: "brokers a:1", AsOf: now, Brokers: []nodeKnown{{1, "a:1"}, {2, "b:1"}}}
		t := topicKnown{Topic: "orders"}
		for _, l := range leaders {
			t.Partitions = append(t.Partitions, part(l))
		}
		k.Topics = append(k.Topics, t)
		return k
	}
	tells := func(address string, id int32, alarms []string, missing ...agent.Absence) agentAnswer {
		return agentAnswer{address: address, status: &agent.Status{ID: id, Store: "same", Session: "proven", Controller: 1, Brokers: []int32{1, 2}, Alarms: alarms,
			Outage: agent.Outage{AsOf: now, Offline: 2, Missing: missing}, AlarmsSince: map[string]time.Time{"the disk is full": now.Add(-time.Hour)}}}
	}
	gone := agent.Absence{ID: 3, Address: "c:1", Since: now.Add(-2 * time.Minute), Times: 1, Partitions: 2, Topics: []string{"orders"}}
	later := gone
	later.Since, later.Before = now.Add(-time.Minute), true
	alarm := "broker 3 (c:1) is missing since 11:58:00 UTC: 2 partitions of orders without a leader; start its agent on the same data folder"
	side := func(ready bool, causes ...string) *sidecarStatus {
		return &sidecarStatus{Status: sidecar.Status{ID: "side", Ready: ready, Causes: causes, Store: sidecar.StoreStatus{Ownership: "proven"}}, Consume: consuming.Status{Groups: []consuming.GroupStatus{{}}}}
	}
	no := errors.New("connection refused")
	var many []string
	for i := range 1000 {
		many = append(many, fmt.Sprint("alarm ", i))
	}
	for name, c := range map[string]struct {
		in       answers
		state    string
		problems int
		says     []string
	}{
		"nobody":                                 {answers{brokersErr: no, sidecarErr: no, agents: []agentAnswer{{address: "x", err: no}}}, stateUnknown, 0, []string{"nobody answers", "no answer  agent x: connection refused", "no answer  the brokers: connection refused"}},
		"all is well":                            {answers{brokers: brokers(1, 2), agents: []agentAnswer{tells("x", 1, nil)}, sidecar: side(true)}, stateWell, 0, []string{"well (2026-03-01 12:00:00 UTC)", "2 live: 1 a:1, 2 b:1", "1 with 2 partitions, 0 of them without a leader", "side at  is ready; Consul session proven; 1 group here"}},
		"only a sidecar, at the usual addresses": {answers{brokersErr: no, agents: []agentAnswer{{address: "x", err: no}}, sidecar: side(true)}, stateWell, 0, []string{"no answer"}},
		"who was named does not answer":          {answers{brokersErr: no, brokersNamed: true, agentsNamed: true, agents: []agentAnswer{{address: "x", err: no}}, sidecar: side(true)}, stateDegraded, 2, []string{"no broker answers", "agent x does not answer"}},
		"a broker is missing, as three tell": {answers{brokers: brokers(1, -1, -1), agents: []agentAnswer{tells("x", 1, []string{alarm}, gone), tells("y", 2, []string{alarm}, later)}, sidecar: side(true)}, stateDegraded, 1,
			[]string{"degraded: 1 problem", "1. broker 3 (c:1) is missing: 2 partitions of orders without a leader", "since 11:58:00 UTC (2m0s)", "to do: start the agent of broker 3 again", "told by agent x (broker 1)"}},
		"since before anybody looked":     {answers{agents: []agentAnswer{tells("y", 2, nil, later)}}, stateDegraded, 1, []string{"since 11:59:00 UTC (1m0s) at the latest"}},
		"as the brokers alone tell":       {answers{brokers: brokers(1, -1, -1)}, stateDegraded, 1, []string{"2 partitions of orders without a leader: held by brokers [3]", "told by brokers a:1"}},
		"an alarm of another kind":        {answers{agents: []agentAnswer{tells("x", 1, []string{"the disk is full"})}}, stateDegraded, 1, []string{"since 11:00:00 UTC (1h0m0s)", "runbook: The disk is full"}},
		"what a sidecar tells":            {answers{sidecar: side(true, "2 partitions are away since 11:58:00 UTC: orders (2 of 6)")}, stateDegraded, 1, []string{"runbook: A broker is down", "told by sidecar side"}},
		"a sidecar that is not ready":     {answers{sidecar: side(false)}, stateDegraded, 1, []string{"side is not ready"}},
		"a thousand alarms on one screen": {answers{agents: []agentAnswer{tells("x", 1, many)}}, stateDegraded, 20, []string{"degraded: 1000 problems", "and 980 more problems"}},
		"Consul is away": {answers{agents: []agentAnswer{{address: "x", status: &agent.Status{ID: 1, Store: "same", Session: "unproven", Controller: 1,
			Alarms: []string{"the coordination store has not answered since 11:00:00 UTC: serving goes on"}, Outage: agent.Outage{AsOf: now.Add(-time.Hour)}}}}}, stateDegraded, 1,
			[]string{"runbook: Consul is down", "what it knows is 1h0m0s old"}},
	} {
		t.Run(name, func(t *testing.T) {
			st := assess(c.in, now)
			if st.State != c.state || len(st.Problems) != c.problems {
				t.Errorf("%s with %d problems; want %s with %d", st.State, len(st.Problems), c.state, c.problems)
			}
			text := st.text()
			for _, want := range c.says {
				if !strings.Contains(text, want) {
					t.Errorf("no %q in\n%s", want, text)
				}
			}
			if want := map[string]int{stateWell: exitOK, stateDegraded: exitDegraded, stateUnknown: exitNobody}[c.state]; exitCode(statusError(st)) != want {
				t.Errorf("exit code %d; want %d", exitCode(statusError(st)), want)
			}
		})
	}
}

// While no broker answers anybody, a sidecar still knows what its applications
// use, and says how old that is.
func TestASidecarRemembersTopics(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	o := &sidecar.OutageStatus{Since: now.Add(-time.Minute), Topics: []sidecar.AwayTopic{{Topic: "orders", Partitions: 6, Away: 6, First: []int32{0, 1, 2}}, {Topic: "views", Partitions: 2, Away: 1, First: []int32{1}}}}
	k := outageKnows("sidecar x", o, nil)
	if len(k.Topics) != 2 || len(k.Topics[0].offline()) != 6 || fmt.Sprint(k.Topics[1].offline()) != "[0 1]" {
		t.Errorf("%+v", k)
	}
	if got, want := k.said(now), "as sidecar x knew it 1m0s ago, at 11:59:00 UTC: no broker has answered it since; only topics that its applications use are known"; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	if k := outageKnows("sidecar x", o, []string{"views"}); len(k.Topics) != 1 {
		t.Errorf("%+v", k)
	}
	for _, c := range []struct {
		k    knowledge
		want string
	}{
		{knowledge{Source: "brokers a:1", AsOf: now}, "as brokers a:1 knows it now"},
		{knowledge{Source: "agent a:1", AsOf: now.Add(-time.Minute)}, "as agent a:1 knew it 1m0s ago, at 11:59:00 UTC: the coordination store has not answered since"},
		{knowledge{Source: "agent a:1", Note: "no broker answers"}, "as agent a:1 knows it from its own disk: it has not reached the coordination store since its start\n(no broker answers)"},
	} {
		if got := c.k.said(now); got != c.want {
			t.Errorf("got  %q\nwant %q", got, c.want)
		}
	}
}
