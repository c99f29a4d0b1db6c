package consume

import (
	"cmp"
	"context"
	"errors"
	"slices"

	"sidestream/discovery"
	"sidestream/sdk/api"
	"sidestream/sidecar/consume/plan"
)

// maxHistoryBytes bounds a group's history in the coordination store, which is
// written whole with each plan that moves something.
const maxHistoryBytes = 32 << 10

// historyMoves puts together the partitions that went the same way.
func historyMoves(moves []plan.Move) []discovery.HistoryMove {
	type way struct{ topic, from, to string }
	at := map[way]int{}
	var out []discovery.HistoryMove
	for _, mv := range moves {
		w := way{mv.Topic, mv.From, mv.To}
		i, ok := at[w]
		if !ok {
			i = len(out)
			at[w] = i
			out = append(out, discovery.HistoryMove{Topic: mv.Topic, From: mv.From, To: mv.To})
		}
		out[i].Partitions = append(out[i].Partitions, mv.Partition)
	}
	for _, mv := range out {
		slices.Sort(mv.Partitions)
	}
	slices.SortFunc(out, func(a, b discovery.HistoryMove) int {
		return cmp.Or(cmp.Compare(a.Topic, b.Topic), cmp.Compare(a.From, b.From), cmp.Compare(a.To, b.To))
	})
	return out
}

// withPlan is a history with one more plan, the oldest dropped so that at most
// so many moves and maxHistoryBytes remain. The newest plan always remains, of
// one that is too large only its cause and how many moves it made.
func withPlan(h discovery.History, p discovery.HistoryPlan, most int) discovery.History {
	if n := movesOf(p); n > most || len(discovery.Encode(p)) > maxHistoryBytes/2 {
		p.Moves, p.Omitted = nil, n
	}
	plans := append(slices.Clone(h.Plans), p)
	moves, bytes, first := 0, 0, len(plans)
	for first > 0 {
		q := plans[first-1]
		moves += max(1, movesOf(q))
		bytes += len(discovery.Encode(q)) + 1
		if first < len(plans) && (moves > most || bytes > maxHistoryBytes) {
			break
		}
		first--
	}
	return discovery.History{Plans: plans[first:]}
}

func movesOf(p discovery.HistoryPlan) (n int) {
	for _, mv := range p.Moves {
		n += len(mv.Partitions)
	}
	return n
}

// readHistory reads a group's history; an empty one where there is none. One
// that cannot be read is begun anew: it is for people only.
func (m *Manager) readHistory(ctx context.Context, group string) (discovery.History, error) {
	e, err := m.store.Get(ctx, discovery.KeyHistory(group))
	if errors.Is(err, discovery.ErrNotFound) {
		return discovery.History{}, nil
	}
	if err != nil {
		return discovery.History{}, err
	}
	h, err := discovery.Decode[discovery.History](e)
	if err != nil {
		return discovery.History{}, nil
	}
	return h, nil
}

// showHistory is a history as applications see it, one move a partition. A plan
// whose moves were not kept shows as one without a partition.
func showHistory(h discovery.History) []api.Move {
	out := []api.Move{}
	for _, p := range h.Plans {
		one := api.Move{Plan: p.Plan, At: p.At, Cause: p.Cause}
		if p.Omitted > 0 {
			one.Omitted = p.Omitted
			out = append(out, one)
			continue
		}
		for _, mv := range p.Moves {
			one.Topic, one.From, one.To = mv.Topic, mv.From, mv.To
			for _, n := range mv.Partitions {
				one.Partition = n
				out = append(out, one)
			}
		}
	}
	return out
}

// lastOwners are the sidecars that had partitions after the last plan of a
// history, as far as it goes back.
func lastOwners(h discovery.History) map[string]bool {
	type place struct {
		topic     string
		partition int32
	}
	at := map[place]string{}
	for _, p := range h.Plans {
		for _, mv := range p.Moves {
			for _, n := range mv.Partitions {
				at[place{mv.Topic, n}] = mv.To
			}
		}
	}
	owners := map[string]bool{}
	for _, id := range at {
		if id != "" {
			owners[id] = true
		}
	}
	return owners
}
