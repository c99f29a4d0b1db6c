package discovery

import (
	"strings"
	"testing"

	"pgregory.net/rapid"
)

func TestKeyCommittedHoldsAnyGroup(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		group := rapid.OneOf(rapid.String(), rapid.SampledFrom([]string{"", ".", "..", "a/b", "~", "a.b"})).Draw(t, "group")
		key := KeyCommitted(group, "u", 7)
		parts := strings.Split(key, "/")
		if len(parts) != 4 || parts[1] == "." || parts[1] == ".." || !strings.HasPrefix(key, PrefixCommittedBy(group)) {
			t.Fatalf("%q became %q", group, key)
		}
		back, uuid, shard, ok := SplitCommitted(key)
		if !ok || back != group || uuid != "u" || shard != 7 {
			t.Fatalf("%q became %q and %q, %s, %d, %v", group, key, back, uuid, shard, ok)
		}
	})
	for _, bad := range []string{"committed/g/u", "other/g/u/1", "committed/~zz/u/1", "committed/~a/u/1", "committed/g/u/-1", "committed/g/u/x"} {
		if _, _, _, ok := SplitCommitted(bad); ok {
			t.Errorf("%q was read", bad)
		}
	}
}
