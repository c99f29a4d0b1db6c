package discoverytest_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"pgregory.net/rapid"

	d "sidestream/discovery"
	"sidestream/discovery/discoverytest"
)

// side is one of the two stores, with its own names for the same things.
type side struct {
	name     string
	store    d.Store
	sessions []string          // live, live, dead
	versions map[string]uint64 // of the last commit, by key
}

// world is a state told without the numbers that differ between stores.
func (s *side) world(ctx context.Context, t *rapid.T, prefix string) string {
	es, err := s.store.List(ctx, prefix)
	if err != nil {
		t.Fatalf("%s: %v", s.name, err)
	}
	var b strings.Builder
	now := map[string]uint64{}
	for _, e := range es {
		now[e.Key] = e.Version
		fmt.Fprintf(&b, "%s=%q session %d, moved %t, fresh %t\n", strings.TrimPrefix(e.Key, prefix), e.Value,
			slices.Index(s.sessions, e.Session), e.Version != s.versions[e.Key], e.Version == e.Created)
	}
	s.versions = now
	return b.String()
}

// draft is an operation whose session and version each side names itself.
type draft struct {
	verb    d.Verb
	key     string
	value   string
	session int
	version int // 0: absent, 1: the present one, 2: an old one
}

func (s *side) op(c draft) d.Op {
	op := d.Op{Verb: c.verb, Key: c.key}
	switch c.verb {
	case d.VerbSet, d.VerbCAS, d.VerbAcquire:
		op.Value = []byte(c.value)
	}
	switch c.verb {
	case d.VerbCAS, d.VerbDeleteCAS, d.VerbUnchanged:
		switch present := s.versions[c.key]; {
		case c.version == 1:
			op.Version = present
		case c.version == 2:
			op.Version = present + 1_000_000_000
		}
	case d.VerbAcquire, d.VerbRelease, d.VerbHeld:
		op.Session = s.sessions[c.session]
	}
	return op
}

func outcome(entries []d.Entry, err error) string {
	var conflict *d.ConflictError
	switch {
	case errors.As(err, &conflict):
		return fmt.Sprintf("conflict in operation %d", conflict.Op)
	case errors.Is(err, d.ErrSessionLost):
		return "session lost"
	case err != nil:
		return err.Error()
	}
	keys := "written"
	for _, e := range entries {
		keys += fmt.Sprintf(" %s=%q", e.Key, e.Value)
	}
	return keys
}

// Both stores answer any sequence of commits alike: what is tested against
// memory holds in Consul.
func TestMemoryAgreesWithConsul(t *testing.T) {
	consul := discoverytest.Start(t, "")
	cfg := consul.Config("main")
	cfg.SessionTTL = time.Minute // renewed or not, they outlive the test
	real, err := d.NewConsul(cfg, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer real.Close()
	memory, err := d.NewMemory(d.MemoryOptions{SessionTTL: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	defer memory.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()

	sides := []*side{{name: "consul", store: real}, {name: "memory", store: memory}}
	for _, s := range sides {
		for range 3 {
			sess, err := s.store.NewSession(ctx, "agree")
			if err != nil {
				t.Fatal(err)
			}
			s.sessions = append(s.sessions, sess.ID())
		}
		if err := s.store.DestroySession(ctx, s.sessions[2]); err != nil {
			t.Fatal(err)
		}
	}

	run := 0
	rapid.Check(t, func(t *rapid.T) {
		run++
		prefix := fmt.Sprintf("run%d/", run)
		// Few of each, so that operations meet and often succeed.
		keys := []string{prefix + "a", prefix + "p/1"}
		drafts := rapid.SliceOfN(rapid.Custom(func(t *rapid.T) draft {
			return draft{
				verb:    d.Verb(rapid.IntRange(int(d.VerbSet), int(d.VerbAbsent)).Draw(t, "verb")),
				key:     rapid.SampledFrom(keys).Draw(t, "key"),
				value:   rapid.SampledFrom([]string{"x", "x", "y", ""}).Draw(t, "value"),
				session: rapid.SampledFrom([]int{0, 0, 0, 0, 0, 0, 0, 1, 1, 2}).Draw(t, "session"),
				version: rapid.SampledFrom([]int{0, 1, 1, 1, 1, 2}).Draw(t, "version"),
			}
		}), 1, 3)
		for _, s := range sides {
			s.versions = map[string]uint64{}
		}
		for range rapid.IntRange(5, 30).Draw(t, "commits") {
			commit := drafts.Draw(t, "commit")
			for i, c := range commit {
				if c.verb == d.VerbDeletePrefix {
					commit[i].key = prefix + "p/"
				}
			}
			var outcomes, worlds [2]string
			for i, s := range sides {
				ops := make([]d.Op, len(commit))
				for j, c := range commit {
					ops[j] = s.op(c)
				}
				outcomes[i] = outcome(s.store.Commit(ctx, ops...))
				worlds[i] = s.world(ctx, t, prefix)
			}
			if outcomes[0] != outcomes[1] || worlds[0] != worlds[1] {
				t.Fatalf("after %+v\nconsul: %s\n%s\nmemory: %s\n%s", commit, outcomes[0], worlds[0], outcomes[1], worlds[1])
			}
		}
	})
}
