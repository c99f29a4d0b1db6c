package agent

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

// With one agent of three dead for two minutes no alarm said so, and no metric:
// what is out is decided from the store's picture and nothing else.
func TestWhatIsOut(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	three := []discovery.PartitionState{on(1, 1), on(2, 1), on(3, 1), on(1, 1), on(2, 1), on(3, 1)}
	type step struct {
		after time.Duration
		f     *facts.Facts
	}
	many := func(n int, broker int32) []discovery.PartitionState {
		var all []discovery.PartitionState
		for range n {
			all = append(all, on(broker, 1))
		}
		return all
	}
	manyBrokers := func() *facts.Facts {
		var all []discovery.PartitionState
		for id := range int32(30) {
			all = append(all, on(id+2, 1))
		}
		return register(picture(discovery.PhaseLive, all...), 1)
	}
	well, two := func() *facts.Facts { return register(picture(discovery.PhaseLive, three...), 1, 2, 3) }, func() *facts.Facts { return register(picture(discovery.PhaseLive, three...), 1, 2) }
	silenced := func(f *facts.Facts) *facts.Facts {
		b := f.Brokers[3]
		b.Rack = "silent"
		f.Brokers[3] = b
		return f
	}
	unread := func(f *facts.Facts) *facts.Facts { f.Cluster = facts.Unread; return f }
	for name, c := range map[string]struct {
		steps            []step
		offline, missing int
		alarms           []string // each has one of these
	}{
		"a fresh cluster":      {[]step{{0, register(facts.Empty(), 1)}}, 0, 0, nil},
		"all are there":        {[]step{{0, well()}}, 0, 0, nil},
		"nothing is known yet": {[]step{{0, unread(facts.Empty())}}, 0, 0, nil},
		"one goes": {[]step{{0, well()}, {time.Minute, two()}}, 2, 1,
			[]string{"broker 3 (host:9003) is missing since 12:01:00 UTC: 2 partitions of a without a leader; start its agent"}},
		"one is gone when we start": {[]step{{0, unread(facts.Empty())}, {time.Second, two()}}, 2, 1,
			[]string{"broker 3 is missing since before 12:00:01 UTC, when this agent first looked: 2 partitions"}},
		"it is registered, but not serving": {[]step{{0, well()}, {time.Minute, func() *facts.Facts { f := two(); f.Brokers[3] = discovery.Broker{ID: 3}; return f }()}}, 2, 1,
			[]string{"broker 3 (host:9003) is missing"}},
		"it is silent, and not yet gone": {[]step{{0, well()}, {time.Minute, silenced(well())}}, 2, 1,
			[]string{"broker 3 (host:9003) is missing since 12:01:00 UTC"}},
		"it was silent for a moment": {[]step{{0, well()}, {time.Minute, silenced(well())}, {time.Second, well()}}, 0, 0, nil},
		"it is back":                 {[]step{{0, well()}, {time.Second, two()}, {time.Minute, well()}}, 0, 0, nil},
		"it went again": {[]step{{0, well()}, {time.Second, two()}, {time.Minute, well()}, {time.Minute, two()}}, 2, 1,
			[]string{"since 12:02:01 UTC, for the 2nd time within minutes"}},
		"it comes and goes": {[]step{{0, well()}, {time.Second, two()}, {time.Second, well()}, {time.Second, two()}, {time.Second, well()}, {time.Second, two()}, {time.Second, well()}}, 0, 0,
			[]string{"broker 3 (host:9003) comes and goes: it went 3 times"}},
		"it came and went, and stayed": {[]step{{0, well()}, {time.Second, two()}, {time.Second, well()}, {time.Second, two()}, {time.Second, well()}, {time.Second, two()}, {time.Second, well()}, {time.Minute, well()}}, 0, 0, nil},
		"it went an hour ago as well": {[]step{{0, well()}, {time.Second, two()}, {time.Second, well()}, {time.Hour, well()}, {time.Second, two()}}, 2, 1,
			[]string{"since 13:00:03 UTC: 2"}},
		"drained on purpose":           {[]step{{0, register(picture(discovery.PhaseLive, on(1, 1), on(3, 1)), 1, 2, 3)}, {time.Minute, register(picture(discovery.PhaseLive, on(1, 1), on(3, 1)), 1, 3)}}, 0, 0, nil},
		"moved off while it was away":  {[]step{{0, well()}, {time.Second, two()}, {time.Second, register(picture(discovery.PhaseLive, on(1, 1), on(2, 2)), 1, 2)}}, 0, 0, nil},
		"its topic is being deleted":   {[]step{{0, well()}, {time.Second, register(picture(discovery.PhaseDeleting, three...), 1, 2)}}, 0, 0, nil},
		"the topic is gone":            {[]step{{0, well()}, {time.Second, two()}, {time.Second, register(facts.Empty(), 1, 2)}}, 0, 0, nil},
		"a topic that is being placed": {[]step{{0, register(picture(discovery.PhaseCreating), 1, 2)}, {time.Minute, register(picture(discovery.PhaseCreating), 1, 2)}}, 0, 0, nil},
		"a hole, just now":             {[]step{{0, register(picture(discovery.PhaseLive, on(1, 1), hole), 1)}}, 1, 0, nil},
		"a hole that stays": {[]step{{0, register(picture(discovery.PhaseLive, on(1, 1), hole), 1)}, {leaderWait, register(picture(discovery.PhaseLive, on(1, 1), hole), 1)}}, 1, 0,
			[]string{"1 partition (a) without a leader since 12:00:00 UTC, though no broker that holds them is missing"}},
		"1,000 at once": {[]step{{0, register(picture(discovery.PhaseLive, many(1000, 2)...), 1)}}, 1000, 1, []string{"broker 2 is missing"}},
		"30 brokers":    {[]step{{0, manyBrokers()}}, 30, 30, []string{"20 more brokers", "broker 2 ", "broker 3 ", "broker 4 ", "broker 5 ", "broker 6 ", "broker 7 ", "broker 8 ", "broker 9 ", "broker 10 ", "broker 11 "}},
	} {
		t.Run(name, func(t *testing.T) {
			var o outages
			var out Outage
			now := began
			for _, s := range c.steps {
				now = now.Add(s.after)
				silent := map[int32]bool{}
				for id, b := range s.f.Brokers {
					silent[id] = b.Rack == "silent"
				}
				v := buildView(viewInput{self: broker.Node{ID: 1, Host: "me", Port: 9001}, facts: s.f, led: map[facts.Part]standing{}})
				for name, topic := range v.Topics { // what we hold we lead
					for i, p := range topic.Partitions {
						if len(p.Replicas) == 1 && p.Replicas[0] == 1 {
							v.Topics[name].Partitions[i].Leader = 1
						}
					}
				}
				o, out = o.look(s.f, v, silent, 1, now, now)
			}
			if out.Offline != c.offline || out.brokersMissing() != c.missing {
				t.Errorf("%d partitions offline, %d brokers missing; want %d and %d: %+v", out.Offline, out.brokersMissing(), c.offline, c.missing, out)
			}
			texts := out.alarms(now)
			if len(texts) != len(c.alarms) {
				t.Errorf("alarms %q; want %q", texts, c.alarms)
			}
			for _, want := range c.alarms {
				if !strings.Contains(fmt.Sprint(texts), want) {
					t.Errorf("alarms %q; want one with %q", texts, want)
				}
			}
		})
	}
}

// While the store is away what is known is old, and says so.
func TestAnOldPictureSaysItsAge(t *testing.T) {
	now := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	out := Outage{AsOf: now, Missing: []Absence{{ID: 3, Since: now.Add(-time.Minute), Times: 1, Partitions: 2, Topics: []string{"a", "b", "c"}, MoreTopics: 4}}}
	want := "broker 3 is missing since 11:59:00 UTC: 2 partitions of a, b, c and 4 more topics without a leader; start its agent on the same data folder"
	if got := out.alarms(now.Add(time.Second))[alarmMissing+" 3"]; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
	want += " (as known at 12:00:00 UTC, when the coordination store last answered)"
	if got := out.alarms(now.Add(time.Minute))[alarmMissing+" 3"]; got != want {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}

// Every agent that lives tells of one that does not, in its alarms, its health
// and its metrics, and no more of it when it is back.
func TestAMissingBrokerIsSeenByAll(t *testing.T) {
	c := newTestCluster(t)
	hosts := c.started("one", "two", "three")
	hosts[0].create("t", 6)
	three := hosts[2]
	three.kill()
	metrics := func(h *storageHost) string {
		resp, err := http.Get("http://" + h.HTTPAddr() + "/metrics")
		if err != nil {
			t.Fatal(err)
		}
		defer resp.Body.Close()
		b, _ := io.ReadAll(resp.Body)
		return string(b)
	}
	for _, h := range hosts[:2] {
		h.await("the alarm", func() bool {
			return h.hasAlarm("broker 3 (127.0.0.1:") && h.hasAlarm("2 partitions of t without a leader")
		})
		if code, body := call(t, h, "GET", "/readyz", ""); code != 200 || !strings.Contains(body, "broker 3 ") {
			t.Errorf("readyz: %d %s", code, body)
		}
		for _, want := range []string{"sidestream_agent_offline_partitions 2\n", "sidestream_agent_brokers_missing 1\n", `sidestream_agent_broker_up{broker="3"} 0`, `sidestream_agent_broker_up{broker="1"} 1`} {
			if m := metrics(h); !strings.Contains(m, want) {
				t.Errorf("%s: metrics lack %q", h.name, want)
			}
		}
		if code, body := call(t, h, "GET", "/topics?topic=t", ""); code != 200 || strings.Count(body, `"leader": -1`) != 2 || strings.Count(body, `"bytes"`) != 2 || !strings.Contains(body, `"missing_brokers"`) {
			t.Errorf("topics: %d %s", code, body)
		}
		if s := h.Status(); s.Outage.Offline != 2 || len(s.Outage.Missing) != 1 || s.Outage.AsOf.IsZero() {
			t.Errorf("%s: status has %+v", h.name, s.Outage)
		}
	}
	three.start(c)
	three.ready()
	for _, h := range hosts {
		h.await("no alarm", func() bool { return len(h.Alarms()) == 0 && h.Outage().Offline == 0 })
		if m := metrics(h); !strings.Contains(m, "sidestream_agent_brokers_missing 0\n") || !strings.Contains(m, `sidestream_agent_broker_up{broker="3"} 1`) {
			t.Errorf("%s: the metrics still tell of the outage", h.name)
		}
	}
}

// A check that is critical for a moment is nothing, and who may have been paused
// itself cannot tell that others are silent.
func TestSilentBrokers(t *testing.T) {
	began := time.Date(2026, 3, 1, 12, 0, 0, 0, time.UTC)
	f := register(facts.Empty(), 1, 2, 3)
	for id, b := range f.Brokers {
		b.Service = fmt.Sprint("s", id)
		f.Brokers[id] = b
	}
	in := func(id string, beating bool) discovery.Instance {
		return discovery.Instance{Service: discovery.Service{ID: id}, Beating: beating}
	}
	s := silences{}.observe(began, []discovery.Instance{in("s1", true), in("s2", false), in("s3", false), in("s3", true), in("foreign", false)})
	if got := s.brokers(f, began.Add(silentAfter-1), 0); len(got) != 0 {
		t.Errorf("silent at once: %v", got)
	}
	s = s.observe(began.Add(time.Second/2), []discovery.Instance{in("s1", true), in("s2", false)})
	if got := s.brokers(f, began.Add(silentAfter), 0); fmt.Sprint(got) != "map[2:true]" {
		t.Errorf("silent: %v", got)
	}
	if got := s.brokers(f, began.Add(time.Minute), discovery.GapLimit+1); len(got) != 0 {
		t.Errorf("silent, as one who was paused sees it: %v", got)
	}
	s = s.observe(began.Add(time.Second), []discovery.Instance{in("s1", true), in("s2", true)})
	if got := s.brokers(f, began.Add(time.Minute), 0); len(got) != 0 {
		t.Errorf("silent though it beats again: %v", got)
	}
}
