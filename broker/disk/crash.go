package disk

import (
	"fmt"
	"math/rand/v2"
	"sort"
)

// sector is the unit in which a disk loses unsynced bytes out of order.
const sector = 512

// Crash returns the file system that a power cut at this moment leaves, chosen
// among the possible ones by the seed. What was synced is there. An unsynced
// change of a file may be there, be cut at any byte, or be missing, and later
// ones may have reached the disk before it, which leaves zeros; an unsynced
// creation, removal or rename may or may not have happened. m itself is left as
// it is. Files that are open stay with m.
func (m *Mem) Crash(seed uint64) *Mem {
	m.mu.RLock()
	defer m.mu.RUnlock()
	c := &crash{rng: rand.New(rand.NewPCG(seed, 0x5eed)), nodes: map[*memNode]*memNode{}}

	// Names first, on copies of the durable ones.
	c.names = map[*memNode]map[string]*memNode{}
	keep := c.fate()
	for _, change := range m.pending {
		if !keep() {
			continue
		}
		for _, e := range change {
			e.apply(c.namesOf(e.dir))
		}
	}
	return &Mem{root: c.copy(m.root)}
}

type crash struct {
	rng   *rand.Rand
	names map[*memNode]map[string]*memNode // folders' names after the cut
	nodes map[*memNode]*memNode            // copies already made
}

// fate decides for a run of changes: all of them, none, or each by itself.
func (c *crash) fate() func() bool {
	switch c.rng.IntN(4) {
	case 0:
		return func() bool { return true }
	case 1:
		return func() bool { return false }
	default:
		return func() bool { return c.rng.IntN(2) == 0 }
	}
}

func (c *crash) namesOf(dir *memNode) map[string]*memNode {
	if names, ok := c.names[dir]; ok {
		return names
	}
	names := make(map[string]*memNode, len(dir.durable))
	for name, n := range dir.durable {
		names[name] = n
	}
	c.names[dir] = names
	return names
}

// copy makes the node as it is after the cut, and what is below it.
func (c *crash) copy(n *memNode) *memNode {
	if made, ok := c.nodes[n]; ok {
		return made
	}
	made := &memNode{modTime: n.modTime, mode: n.mode}
	c.nodes[n] = made
	if !n.isDir() {
		made.data = c.contents(n)
		made.synced = append([]byte{}, made.data...)
		return made
	}
	made.entries, made.durable = map[string]*memNode{}, map[string]*memNode{}
	names := c.namesOf(n)
	for _, name := range sortedNames(names) { // in order, so that a seed always means the same
		child := c.copy(names[name])
		made.entries[name], made.durable[name] = child, child
	}
	return made
}

// contents is what is left of a file.
func (c *crash) contents(n *memNode) []byte {
	b := append([]byte{}, n.synced...)
	if len(n.changes) == 0 {
		return b
	}
	switch c.rng.IntN(4) {
	case 0: // everything had reached the disk
		return append(b[:0], n.data...)
	case 1: // nothing had
		return b
	case 2: // the changes up to some byte of one of them
		kept := c.rng.IntN(len(n.changes) + 1)
		for _, change := range n.changes[:kept] {
			b = change.apply(b)
		}
		if kept < len(n.changes) && !n.changes[kept].truncate {
			last := n.changes[kept]
			last.data = last.data[:c.rng.IntN(len(last.data)+1)]
			b = last.apply(b)
		}
		return b
	default: // the size had, and of the contents some sectors
		return c.holes(b, n.data)
	}
}

// holes returns the contents now with some of the sectors that differ from
// before as they were before, or zero where there was nothing.
func (c *crash) holes(before, now []byte) []byte {
	b := append([]byte{}, now...)
	for at := 0; at < len(b); at += sector {
		end := min(at+sector, len(b))
		if c.rng.IntN(2) == 0 {
			continue
		}
		for i := at; i < end; i++ {
			b[i] = 0
			if i < len(before) {
				b[i] = before[i]
			}
		}
	}
	return b
}

// Tree lists every file with its size, for a test that wants to say what it saw.
func (m *Mem) Tree() []string {
	m.mu.RLock()
	defer m.mu.RUnlock()
	var list []string
	var walk func(prefix string, n *memNode)
	walk = func(prefix string, n *memNode) {
		for name, child := range n.entries {
			if child.isDir() {
				walk(prefix+name+"/", child)
				continue
			}
			list = append(list, fmt.Sprintf("%s%s %d", prefix, name, len(child.data)))
		}
	}
	walk("/", m.root)
	sort.Strings(list)
	return list
}
