package agent

import (
	"slices"
	"testing"

	"pgregory.net/rapid"

	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/discovery"
)

// Two topics' UUIDs.
const (
	uuidA = "aaaaaaaa-0000-4000-8000-000000000001"
	uuidB = "bbbbbbbb-0000-4000-8000-000000000002"
)

func mustUUID(s string) broker.UUID {
	id, err := broker.ParseUUID(s)
	if err != nil {
		panic(err)
	}
	return id
}

// picture is a store of our cluster with one topic "a" that has the states.
func picture(phase discovery.Phase, states ...discovery.PartitionState) *facts.Facts {
	f := facts.Empty()
	f.Cluster = facts.Same
	f.Topics["a"] = facts.Topic{Topic: discovery.Topic{Name: "a", UUID: uuidA, Phase: phase, Partitions: int32(len(states)), Replication: 1}}
	f.Shards[uuidA] = map[int]facts.Shard{}
	for i, st := range states {
		n := i / discovery.ShardPartitions
		s := f.Shards[uuidA][n]
		s.Partitions = append(s.Partitions, st)
		f.Shards[uuidA][n] = s
	}
	return f
}

func on(id, epoch int32) discovery.PartitionState {
	return discovery.PartitionState{Replicas: []int32{id}, Leader: id, Epoch: epoch, ISR: []int32{id}}
}

var hole = discovery.PartitionState{Leader: -1}

func heldA(partition, epoch int32) broker.Held {
	return broker.Held{Topic: "a", ID: mustUUID(uuidA), Partition: partition, Count: 1, LeaderEpoch: epoch}
}

func TestDecide(t *testing.T) {
	a0 := facts.Part{UUID: uuidA, Partition: 0}
	held := map[facts.Part]broker.Held{a0: heldA(0, 3)}
	lead := broker.Lead{Topic: "a", ID: mustUUID(uuidA), Count: 1, Epoch: 4, Replicas: []int32{1}, ISR: []int32{1}}
	led := func(session string, failed bool) map[facts.Part]standing {
		return map[facts.Part]standing{a0: {lead: lead, session: session, failed: failed}}
	}
	with := func(f *facts.Facts, c facts.Cluster) *facts.Facts { f.Cluster = c; return f }
	none := facts.Empty()
	type want struct{ take, lead, serve, resign, remove, unknown, elsewhere int }
	for name, c := range map[string]struct {
		s    situation
		want want
	}{
		"placed here: taken":                    {situation{session: "s", facts: picture(discovery.PhaseLive, on(1, 0))}, want{take: 1}},
		"placed here, held since long":          {situation{session: "s", facts: picture(discovery.PhaseLive, on(1, 3)), held: held}, want{take: 1}},
		"led in this session: nothing":          {situation{session: "s", facts: picture(discovery.PhaseLive, on(1, 4)), held: held, led: led("s", false)}, want{}},
		"the picture lags behind: nothing":      {situation{session: "s", facts: picture(discovery.PhaseLive, on(1, 3)), held: held, led: led("s", false)}, want{}},
		"a new session: taken again":            {situation{session: "s2", facts: picture(discovery.PhaseLive, on(1, 4)), held: held, led: led("s", false)}, want{take: 1}},
		"served from the folder before: taken":  {situation{session: "s", facts: picture(discovery.PhaseLive, on(1, 4)), held: held, led: led("", false)}, want{take: 1}},
		"somebody raised the epoch: taken":      {situation{session: "s", facts: picture(discovery.PhaseLive, on(1, 9)), held: held, led: led("s", false)}, want{take: 1}},
		"no session: what is led goes on":       {situation{facts: picture(discovery.PhaseLive, on(1, 4)), held: held, led: led("s", false)}, want{}},
		"the broker refused: again":             {situation{session: "s", facts: picture(discovery.PhaseLive, on(1, 4)), held: held, led: led("s", true)}, want{lead: 1}},
		"the topic grew: described again":       {situation{session: "s", facts: picture(discovery.PhaseLive, on(1, 4), on(2, 1)), held: held, led: led("s", false)}, want{lead: 1}},
		"placed on another, led: resigned":      {situation{session: "s", facts: picture(discovery.PhaseLive, on(2, 5)), held: held, led: led("s", false)}, want{resign: 1, elsewhere: 1}},
		"placed on another: alarm only":         {situation{session: "s", facts: picture(discovery.PhaseLive, on(2, 5)), held: held}, want{elsewhere: 1}},
		"two replicas: left alone":              {situation{session: "s", facts: picture(discovery.PhaseLive, discovery.PartitionState{Replicas: []int32{1, 2}}), held: held}, want{}},
		"deleting: removed":                     {situation{session: "s", facts: picture(discovery.PhaseDeleting, on(1, 4)), held: held, led: led("s", false)}, want{remove: 1}},
		"deleting, nothing on disk: taken out":  {situation{session: "s", facts: picture(discovery.PhaseDeleting, on(1, 4))}, want{remove: 1}},
		"deleting, on disk but not listed":      {situation{session: "s", facts: picture(discovery.PhaseDeleting, hole), held: held}, want{remove: 1}},
		"deleting, on others":                   {situation{session: "s", facts: picture(discovery.PhaseDeleting, on(2, 4))}, want{}},
		"deleting in a foreign store":           {situation{session: "s", facts: with(picture(discovery.PhaseDeleting, on(1, 4)), facts.Foreign), held: held}, want{}},
		"deleting in a wiped store":             {situation{session: "s", facts: with(picture(discovery.PhaseDeleting, on(1, 4)), facts.Missing), held: held}, want{}},
		"not in the store: alarm only":          {situation{session: "s", facts: with(facts.Empty(), facts.Same), held: held}, want{unknown: 1}},
		"not in the store, led: goes on":        {situation{session: "s", facts: with(facts.Empty(), facts.Same), held: held, led: led("s", false)}, want{unknown: 1}},
		"a gap of a rebuild: served":            {situation{session: "s", facts: picture(discovery.PhaseLive, hole), held: held}, want{unknown: 1, serve: 1}},
		"a gap of a rebuild, led: goes on":      {situation{session: "s", facts: picture(discovery.PhaseLive, hole), held: held, led: led("s", false)}, want{unknown: 1}},
		"a number beyond the store's":           {situation{session: "s", facts: picture(discovery.PhaseLive), held: held}, want{unknown: 1}},
		"wiped before the start: served":        {situation{session: "s", facts: with(facts.Empty(), facts.Missing), held: held}, want{serve: 1}},
		"wiped while running: goes on":          {situation{session: "s", facts: with(picture(discovery.PhaseLive, on(1, 4)), facts.Missing), held: held, led: led("s", false)}, want{}},
		"wiped, had been placed elsewhere":      {situation{session: "s", facts: with(picture(discovery.PhaseLive, on(2, 4)), facts.Missing), held: held}, want{}},
		"a foreign store: nothing":              {situation{facts: with(picture(discovery.PhaseLive, on(1, 4)), facts.Foreign), held: held}, want{}},
		"a foreign store, led: goes on":         {situation{facts: with(picture(discovery.PhaseLive, on(2, 4)), facts.Foreign), held: held, led: led("s", false)}, want{}},
		"the store not read yet: wait":          {situation{facts: none, held: held}, want{}},
		"the store away for long: served":       {situation{facts: none, held: held, alone: true}, want{serve: 1}},
		"the store away, served already":        {situation{facts: none, held: held, alone: true, led: led("", false)}, want{}},
		"the store away, the broker had failed": {situation{facts: none, held: held, alone: true, led: led("", true)}, want{serve: 1}},
	} {
		t.Run(name, func(t *testing.T) {
			c.s.self = 1
			d := decide(c.s)
			got := want{len(d.take), len(d.lead), len(d.serve), len(d.resign), len(d.remove), len(d.unknown), len(d.elsewhere)}
			if got != c.want {
				t.Errorf("got %+v; want %+v", got, c.want)
			}
			for _, l := range d.serve {
				if l.Epoch != 3 || !slices.Equal(l.Replicas, []int32{1}) {
					t.Errorf("served as %+v; want the folder's epoch 3", l)
				}
			}
			for _, l := range d.lead {
				if l.Epoch != 4 {
					t.Errorf("led again at epoch %d; want 4, as agreed", l.Epoch)
				}
			}
		})
	}
}

// situations are arbitrary, also those that should not happen.
func situations(t *rapid.T) situation {
	f := facts.Empty()
	f.Cluster = rapid.SampledFrom([]facts.Cluster{facts.Unread, facts.Same, facts.Missing, facts.Foreign}).Draw(t, "cluster")
	s := situation{self: 1, session: rapid.SampledFrom([]string{"", "s", "s2"}).Draw(t, "session"),
		alone: rapid.Bool().Draw(t, "alone"), facts: f, led: map[facts.Part]standing{}, held: map[facts.Part]broker.Held{}}
	for name, uuid := range map[string]string{"a": uuidA, "b": uuidB} {
		if rapid.Bool().Draw(t, name+" known") {
			phase := rapid.SampledFrom([]discovery.Phase{discovery.PhaseCreating, discovery.PhaseLive, discovery.PhaseDeleting}).Draw(t, "phase")
			f.Topics[name] = facts.Topic{Topic: discovery.Topic{Name: name, UUID: uuid, Phase: phase, Partitions: 3}}
		}
		var shard discovery.Shard
		for i := range int32(rapid.IntRange(0, 3).Draw(t, "listed")) {
			st := rapid.SampledFrom([]discovery.PartitionState{hole, on(1, 0), on(1, 5), on(2, 5)}).Draw(t, "state")
			shard.Partitions = append(shard.Partitions, st)
			_ = i
		}
		f.Shards[uuid] = map[int]facts.Shard{0: {Shard: shard}}
		for i := range int32(3) {
			part := facts.Part{UUID: uuid, Partition: i}
			if rapid.Bool().Draw(t, "held") {
				s.held[part] = broker.Held{Topic: name, ID: mustUUID(uuid), Partition: i, LeaderEpoch: 4}
			}
			if rapid.Bool().Draw(t, "led") {
				s.led[part] = standing{lead: broker.Lead{Topic: name, ID: mustUUID(uuid), Partition: i, Epoch: 5, Count: 3},
					session: rapid.SampledFrom([]string{"", "s"}).Draw(t, "under"), failed: rapid.Bool().Draw(t, "failed")}
			}
		}
	}
	return s
}

func TestFilesGoOnlyWithTheirTopic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := situations(t)
		known := s.facts.ByUUID()
		for _, part := range decide(s).remove {
			if s.facts.Cluster != facts.Same || known[part.UUID].Phase != discovery.PhaseDeleting {
				t.Fatalf("%v is removed with cluster %v, topic %+v", part, s.facts.Cluster, known[part.UUID])
			}
		}
	})
}

func TestWhatIsLedGoesOnUnlessTheStoreSaysOtherwise(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := situations(t)
		d := decide(s)
		for _, part := range d.resign {
			st, listed := s.facts.State(part)
			if s.facts.Cluster != facts.Same || !listed || facts.Hole(st) || slices.Contains(st.Replicas, s.self) {
				t.Fatalf("%v is resigned with cluster %v, state %+v", part, s.facts.Cluster, st)
			}
		}
	})
}

func TestNothingIsTakenWithoutTheStoresWord(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := situations(t)
		d := decide(s)
		for _, l := range d.take {
			st, listed := s.facts.State(facts.Part{UUID: l.ID.String(), Partition: l.Partition})
			if s.session == "" || s.facts.Cluster != facts.Same || !listed || !slices.Equal(st.Replicas, []int32{s.self}) {
				t.Fatalf("%+v is taken with session %q, cluster %v, state %+v", l, s.session, s.facts.Cluster, st)
			}
		}
		for _, l := range d.serve {
			st, listed := s.facts.State(facts.Part{UUID: l.ID.String(), Partition: l.Partition})
			if s.facts.Cluster == facts.Foreign || listed && !facts.Hole(st) && !slices.Equal(st.Replicas, []int32{s.self}) {
				t.Fatalf("%+v is served with cluster %v, state %+v", l, s.facts.Cluster, st)
			}
			if l.Epoch != s.held[facts.Part{UUID: l.ID.String(), Partition: l.Partition}].LeaderEpoch {
				t.Fatalf("%+v is served at another epoch than the folder's", l)
			}
		}
	})
}

// Raising the epoch goes above the store's, the folder's and what is led.
func TestRaiseGoesAboveEverything(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		s := situations(t)
		for _, l := range decide(s).take {
			part := facts.Part{UUID: l.ID.String(), Partition: l.Partition}
			_, raised := raise(s, []broker.Lead{l})
			st, _ := s.facts.State(part)
			if e := raised[0].Epoch; e <= st.Epoch || e <= s.held[part].LeaderEpoch || e <= s.led[part].lead.Epoch {
				t.Fatalf("epoch %d after store %d, folder %d, led %d", e, st.Epoch, s.held[part].LeaderEpoch, s.led[part].lead.Epoch)
			}
		}
	})
}
