package consume

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"sidestream/discovery"
	"sidestream/sidecar/offsets"
)

// groupKeys are the keys of one group as they are in the store.
type groupKeys struct {
	name    string
	config  *discovery.Entry
	idle    *discovery.Entry
	live    bool // it has members, or owners
	seeks   map[string]discovery.Seek
	begun   map[string]int  // partitions at the beginning, by topic
	written map[string]int  // partitions with a position, by topic
	keys    []offsets.Key   // of the positions
	kinds   map[string]bool // what else there is below the group
}

// readGroupKeys sorts the entries below one group.
func readGroupKeys(name string, es []discovery.Entry) groupKeys {
	g := groupKeys{
		name: name, seeks: map[string]discovery.Seek{}, begun: map[string]int{}, written: map[string]int{}, kinds: map[string]bool{},
	}
	prefix := discovery.PrefixGroups + name + "/"
	for i := range es {
		e := es[i]
		kind, rest, below := strings.Cut(strings.TrimPrefix(e.Key, prefix), "/")
		topic, _, _ := strings.Cut(rest, "/")
		switch kind {
		case "config":
			g.config = &es[i]
			continue
		case "idle":
			g.idle = &es[i]
			continue
		case "members", "owners":
			g.live = g.live || e.Session != ""
		case "offsets":
			if t, p, ok := discovery.SplitTopicPartition(rest); ok {
				g.keys = append(g.keys, offsets.Key{Group: name, Topic: t, Partition: p})
				g.written[t]++
			}
		case "begin":
			if b, err := discovery.Decode[discovery.Begin](e); err == nil {
				g.begun[topic] = len(b.Offsets)
			}
		case "seek":
			if s, err := discovery.Decode[discovery.Seek](e); err == nil && topic != discovery.NameSettings {
				g.seeks[topic] = s
			}
			continue // kept
		}
		if below {
			kind += "/"
		}
		g.kinds[kind] = true
	}
	return g
}

// partitions counts what the group costs: each partition that it has begun to
// consume.
func (g groupKeys) partitions() (n int) {
	topics := maps.Clone(g.begun)
	for t, w := range g.written {
		topics[t] = max(topics[t], w)
	}
	for _, p := range topics {
		n += p
	}
	return n
}

// topics are those of which there may be positions somewhere.
func (g groupKeys) topics() []string {
	all := map[string]bool{}
	for t := range g.seeks {
		all[t] = true
	}
	for t := range g.begun {
		all[t] = true
	}
	for t := range g.written {
		all[t] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// forgetOps are the commits that remove a group, to be made one after the other.
// Each holds only while guard does. What stays is a seek to the beginning for
// each topic: a sidecar that is away may hold a position on its disk, and must
// not skip with it what a new group of the same name has not seen. The seeks
// come before all else, so that a removal that stops half way has lost nothing
// that the next attempt needs; where they fit, all is one commit.
func (g groupKeys) forgetOps(guard []discovery.Op, idle discovery.Op) [][]discovery.Op {
	var seeks []discovery.Op
	for _, topic := range g.topics() {
		last := g.seeks[topic]
		s := discovery.Seek{Epoch: last.Epoch + 1, UUID: last.UUID, To: seekToBegin, Writer: discovery.NewNonce()}
		seeks = append(seeks, discovery.Set(discovery.KeySeek(g.name, topic), discovery.Encode(s)))
	}
	last := append(slices.Clone(guard), idle, discovery.Delete(discovery.KeySettings(g.name)))
	if g.config != nil {
		last = append(last, discovery.DeleteCAS(g.config.Key, g.config.Version))
	}
	prefix := discovery.PrefixGroups + g.name + "/"
	for _, kind := range slices.Sorted(maps.Keys(g.kinds)) {
		switch {
		case kind == "members/": // ephemeral: of members that come meanwhile
		case strings.HasSuffix(kind, "/"):
			last = append(last, discovery.DeletePrefix(prefix+kind))
		default:
			last = append(last, discovery.Delete(prefix+kind))
		}
	}
	var commits [][]discovery.Op
	room := discovery.MaxCommitOps - len(last)
	for len(seeks) > room {
		n := min(len(seeks)-room, discovery.MaxCommitOps-len(guard))
		commits = append(commits, append(slices.Clone(guard), seeks[:n]...))
		seeks = seeks[n:]
	}
	return append(commits, append(last, seeks...))
}

// removedMark is what remains under KeyIdle of a group that was removed.
func removedMark(ephemeral bool, now time.Time) []byte {
	return discovery.Encode(discovery.Idle{
		Since: now.UTC().Truncate(time.Second), Removed: true, Ephemeral: ephemeral, Writer: discovery.NewNonce(),
	})
}

// tidyLocal drops the positions on this host's disk of groups that were removed,
// as the mark in the store says; that a group is not there says nothing.
func (m *Manager) tidyLocal(ctx context.Context) error {
	names, err := m.local.Groups()
	if err != nil {
		return err
	}
	for _, name := range names {
		if m.lookup(name) != nil {
			continue
		}
		e, err := m.store.Get(ctx, discovery.KeyIdle(name))
		if err != nil {
			if isNotFound(err) {
				continue
			}
			return err
		}
		if i, err := discovery.Decode[discovery.Idle](e); err == nil && i.Removed && m.lookup(name) == nil {
			if err := m.local.DeleteGroup(ctx, name); err != nil {
				return err
			}
			m.deleteSeries(name)
		}
	}
	return nil
}
