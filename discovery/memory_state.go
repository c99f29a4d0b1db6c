package discovery

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
)

// item is what the memory store keeps under one key.
type item struct {
	value            []byte
	version, created uint64
	session          string
	// locks counts as Consul's LockIndex does: up with each new holder, back to
	// 0 with a plain write. Being part of what a write is compared with, it
	// makes the first plain write of the same value to a held key move the
	// version.
	locks uint64
}

func (it item) entry(key string) Entry {
	return Entry{Key: key, Value: bytes.Clone(it.value), Version: it.version, Created: it.created, Session: it.session}
}

// kv is the key space of the memory store: one index for all of it, raised by
// each commit that changes something, as Consul's raft index. Not locked.
type kv struct {
	index uint64
	items map[string]item
	keys  []string // sorted
}

func newKV() *kv { return &kv{index: 1, items: map[string]item{}} }

// under lists what is under prefix, sorted by key.
func (s *kv) under(prefix string) []Entry {
	keys := s.keysUnder(prefix)
	if len(keys) == 0 {
		return nil
	}
	entries := make([]Entry, len(keys))
	for i, key := range keys {
		entries[i] = s.items[key].entry(key)
	}
	return entries
}

func (s *kv) keysUnder(prefix string) []string {
	from, _ := slices.BinarySearch(s.keys, prefix)
	to := from
	for to < len(s.keys) && strings.HasPrefix(s.keys[to], prefix) {
		to++
	}
	return s.keys[from:to]
}

// put and remove change one key and leave the index alone.
func (s *kv) put(key string, it item) {
	if _, had := s.items[key]; !had {
		at, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Insert(s.keys, at, key)
	}
	s.items[key] = it
}

func (s *kv) remove(key string) {
	if _, had := s.items[key]; had {
		delete(s.items, key)
		at, _ := slices.BinarySearch(s.keys, key)
		s.keys = slices.Delete(s.keys, at, at+1)
	}
}

// heldBy lists the keys that a session holds, sorted.
func (s *kv) heldBy(session string) []string {
	var held []string
	for _, key := range s.keys {
		if s.items[key].session == session {
			held = append(held, key)
		}
	}
	return held
}

// change is what a commit does to one key: before and after, nil when absent.
type change struct{ before, after *item }

// durable reports whether the change shows in a snapshot, which keeps only
// keys that no session holds.
func (c change) durable() bool {
	return c.before != nil && c.before.session == "" || c.after != nil && c.after.session == ""
}

// apply does all ops or none, in their order, each seeing those before it. It
// returns what they wrote and which keys are now unlike before. live tells
// whether a session exists.
func (s *kv) apply(ops []Op, live func(session string) bool) ([]Entry, map[string]change, error) {
	t := txn{kv: s, index: s.index + 1, over: map[string]*item{}}
	var written []Entry
	for i, op := range ops {
		if op.Verb == VerbAcquire && !live(op.Session) {
			return nil, nil, fmt.Errorf("%w: operation %d acquires key %q with session %q", ErrSessionLost, i, op.Key, op.Session)
		}
		it, what := t.do(op)
		if what != "" {
			return nil, nil, &ConflictError{Op: i, What: what}
		}
		if it != nil {
			written = append(written, it.entry(op.Key))
		}
	}
	changes := map[string]change{}
	for key, after := range t.over {
		var before *item
		if it, had := s.items[key]; had {
			before = &it
		}
		switch {
		case after == nil && before == nil:
		case after != nil && before != nil && after.version == before.version:
		case after == nil:
			s.remove(key)
			changes[key] = change{before: before}
		default:
			s.put(key, *after)
			changes[key] = change{before: before, after: after}
		}
	}
	if len(changes) > 0 {
		s.index = t.index
	}
	return written, changes, nil
}

// txn is a commit being made: over hides what is below, nil means deleted.
type txn struct {
	kv    *kv
	index uint64
	over  map[string]*item
}

func (t *txn) get(key string) *item {
	if it, ok := t.over[key]; ok {
		return it
	}
	if it, ok := t.kv.items[key]; ok {
		return &it
	}
	return nil
}

// do carries out one op. It returns what the op wrote, if it is one that sets
// a value, or what did not hold.
func (t *txn) do(op Op) (written *item, conflict string) {
	it := t.get(op.Key)
	switch op.Verb {
	case VerbSet:
		return t.write(op.Key, it, item{value: op.Value, session: sessionOf(it)}), ""
	case VerbCAS:
		if versionOf(it) != op.Version {
			return nil, stale(op, it)
		}
		return t.write(op.Key, it, item{value: op.Value, session: sessionOf(it)}), ""
	case VerbDelete:
		t.over[op.Key] = nil
	case VerbDeleteCAS:
		// As in Consul, deleting what is gone already is a success.
		if it != nil && it.version != op.Version {
			return nil, stale(op, it)
		}
		t.over[op.Key] = nil
	case VerbDeletePrefix:
		for key := range t.over {
			if strings.HasPrefix(key, op.Key) {
				t.over[key] = nil
			}
		}
		for _, key := range t.kv.keysUnder(op.Key) {
			t.over[key] = nil
		}
	case VerbAcquire:
		if it != nil && it.session != "" && it.session != op.Session {
			return nil, fmt.Sprintf("key %q is held by session %q", op.Key, it.session)
		}
		locks := uint64(1)
		if it != nil {
			locks = it.locks
			if it.session == "" {
				locks++
			}
		}
		return t.write(op.Key, it, item{value: op.Value, session: op.Session, locks: locks}), ""
	case VerbRelease:
		if sessionOf(it) != op.Session {
			return nil, fmt.Sprintf("key %q is held by session %q, not by %q", op.Key, sessionOf(it), op.Session)
		}
		t.write(op.Key, it, item{value: it.value, locks: it.locks})
	case VerbHeld:
		if sessionOf(it) != op.Session {
			return nil, fmt.Sprintf("key %q is held by session %q, not by %q", op.Key, sessionOf(it), op.Session)
		}
	case VerbUnchanged:
		if it == nil || it.version != op.Version {
			return nil, stale(op, it)
		}
	case VerbAbsent:
		if it != nil {
			return nil, fmt.Sprintf("key %q exists", op.Key)
		}
	}
	return nil, ""
}

// write puts an item under the key, unless exactly that is there.
func (t *txn) write(key string, old *item, it item) *item {
	if old != nil && old.session == it.session && old.locks == it.locks && bytes.Equal(old.value, it.value) {
		return old
	}
	it.value = bytes.Clone(it.value)
	it.version, it.created = t.index, t.index
	if old != nil {
		it.created = old.created
	}
	t.over[key] = &it
	return &it
}

func versionOf(it *item) uint64 {
	if it == nil {
		return 0
	}
	return it.version
}

func sessionOf(it *item) string {
	if it == nil {
		return ""
	}
	return it.session
}

func stale(op Op, it *item) string {
	return fmt.Sprintf("key %q has version %d, not %d", op.Key, versionOf(it), op.Version)
}
