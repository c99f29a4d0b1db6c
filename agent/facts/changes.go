package facts

import (
	"slices"
	"strconv"
	"strings"

	"sidestream/discovery"
)

// maxChanged is how many changes a versions key remembers.
const maxChanged = 64

// changedSince lists the keys that the writers changed since the counters in
// seen. All is true when a writer did more than its key remembers, or when its
// counter went back (the store was restored): then everything must be read.
// The second map is what seen must be afterwards.
func changedSince(seen map[string]uint64, now map[string]discovery.Versions) (keys []string, all bool, next map[string]uint64) {
	next = make(map[string]uint64, len(now))
	for writer, v := range now {
		next[writer] = v.Counter
		before := seen[writer]
		if v.Counter < before || v.Counter-before > uint64(len(v.Changed)) {
			all = true
			continue
		}
		missed := int(v.Counter - before)
		keys = append(keys, v.Changed[len(v.Changed)-missed:]...)
	}
	for writer := range seen {
		if _, ok := now[writer]; !ok {
			all = true // a versions key is never deleted: the store was wiped
		}
	}
	slices.Sort(keys)
	return slices.Compact(keys), all, next
}

// appendChanges is v after the keys changed.
func appendChanges(v discovery.Versions, keys []string) discovery.Versions {
	changed := slices.Concat(v.Changed, keys)
	if len(changed) > maxChanged {
		changed = changed[len(changed)-maxChanged:]
	}
	return discovery.Versions{Counter: v.Counter + uint64(len(keys)), Changed: changed}
}

// ParseShardKey reads "state/<uuid>/<shard>".
func ParseShardKey(key string) (uuid string, shard int, ok bool) {
	rest, ok := strings.CutPrefix(key, discovery.PrefixState)
	if !ok {
		return "", 0, false
	}
	uuid, number, ok := strings.Cut(rest, "/")
	if !ok || uuid == "" {
		return "", 0, false
	}
	n, err := strconv.Atoi(number)
	if err != nil || n < 0 {
		return "", 0, false
	}
	return uuid, n, true
}
