package facts

import (
	"slices"
	"strconv"
	"testing"

	"pgregory.net/rapid"

	"sidestream/discovery"
)

func TestChangedSince(t *testing.T) {
	versions := func(counter uint64, changed ...string) discovery.Versions {
		return discovery.Versions{Counter: counter, Changed: changed}
	}
	for name, c := range map[string]struct {
		seen map[string]uint64
		now  map[string]discovery.Versions
		keys []string
		all  bool
	}{
		"nothing new":           {map[string]uint64{"1": 2}, map[string]discovery.Versions{"1": versions(2, "a", "b")}, nil, false},
		"the newest only":       {map[string]uint64{"1": 1}, map[string]discovery.Versions{"1": versions(2, "a", "b")}, []string{"b"}, false},
		"two writers, one key":  {map[string]uint64{"1": 1, "2": 4}, map[string]discovery.Versions{"1": versions(2, "a", "b"), "2": versions(5, "x", "b")}, []string{"b"}, false},
		"a new writer":          {nil, map[string]discovery.Versions{"1": versions(2, "a", "b")}, []string{"a", "b"}, false},
		"a new writer, too old": {nil, map[string]discovery.Versions{"1": versions(3, "a", "b")}, nil, true},
		"a gap":                 {map[string]uint64{"1": 1}, map[string]discovery.Versions{"1": versions(9, "a", "b")}, nil, true},
		"a counter went back":   {map[string]uint64{"1": 9}, map[string]discovery.Versions{"1": versions(2, "a", "b")}, nil, true},
		"a writer vanished":     {map[string]uint64{"1": 9}, map[string]discovery.Versions{}, nil, true},
	} {
		t.Run(name, func(t *testing.T) {
			keys, all, next := changedSince(c.seen, c.now)
			if !slices.Equal(keys, c.keys) || all != c.all {
				t.Errorf("got %v, all %v; want %v, %v", keys, all, c.keys, c.all)
			}
			for w, v := range c.now {
				if next[w] != v.Counter {
					t.Errorf("seen of writer %s is %d; want %d", w, next[w], v.Counter)
				}
			}
		})
	}
}

// Whoever looks after any number of commits either hears of every key changed
// since, or is told to read all.
func TestNoChangeIsMissed(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var v discovery.Versions
		seen := map[string]uint64{}
		var since []string
		n := 0
		for range rapid.IntRange(1, 40).Draw(t, "commits") {
			var keys []string
			for range rapid.IntRange(0, 9).Draw(t, "keys") {
				keys = append(keys, "topics/"+strconv.Itoa(n))
				n++
			}
			v = appendChanges(v, keys)
			since = append(since, keys...)
			if len(v.Changed) > maxChanged {
				t.Fatalf("%d changes remembered", len(v.Changed))
			}
			if !rapid.Bool().Draw(t, "look") {
				continue
			}
			got, all, next := changedSince(seen, map[string]discovery.Versions{"w": v})
			slices.Sort(since)
			if !all && !slices.Equal(got, since) {
				t.Fatalf("heard of %v; changed were %v", got, since)
			}
			if all && len(since) <= maxChanged {
				t.Fatalf("told to read all after %d changes", len(since))
			}
			seen, since = next, nil
		}
	})
}

func TestParseShardKey(t *testing.T) {
	if id, n, ok := ParseShardKey(discovery.KeyShard("u-u", 12)); !ok || id != "u-u" || n != 12 {
		t.Errorf("got %q %d %v", id, n, ok)
	}
	for _, key := range []string{"topics/a", "state/", "state/u", "state/u/", "state/u/x", "state/u/-1", "state//1"} {
		if _, _, ok := ParseShardKey(key); ok {
			t.Errorf("%q was read as a shard's key", key)
		}
	}
}
