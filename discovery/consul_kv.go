package discovery

import (
	"context"
	"fmt"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
)

// Get implements Store.
func (c *consul) Get(ctx context.Context, key string) (Entry, error) {
	if err := checkKey(key); err != nil {
		return Entry{}, err
	}
	ctx, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	pair, _, err := c.calls.KV().Get(c.root+key, consistent(ctx))
	if err != nil {
		return Entry{}, readError(ctx, err)
	}
	if pair == nil {
		return Entry{}, fmt.Errorf("%w: %q", ErrNotFound, key)
	}
	return c.entry(pair), nil
}

// List implements Store.
func (c *consul) List(ctx context.Context, prefix string) ([]Entry, error) {
	ctx, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	pairs, _, err := c.calls.KV().List(c.root+prefix, consistent(ctx))
	if err != nil {
		return nil, readError(ctx, err)
	}
	return c.entries(pairs), nil
}

func (c *consul) entries(pairs capi.KVPairs) []Entry {
	if len(pairs) == 0 {
		return nil
	}
	entries := make([]Entry, len(pairs))
	for i, p := range pairs {
		entries[i] = c.entry(p)
	}
	return entries
}

// Watch implements Store.
func (c *consul) Watch(ctx context.Context, prefix string, index uint64) ([]Entry, uint64, error) {
	ctx, cancel := c.bound(ctx, pollTimeout)
	defer cancel()
	pairs, meta, err := c.polls.KV().List(c.root+prefix, poll(ctx, index))
	if err != nil {
		return nil, 0, readError(ctx, err)
	}
	return c.entries(pairs), nextIndex(index, meta.LastIndex), nil
}

// poll asks for a consistent long poll. By default a leader answers from what
// it has, and one that has just been elected may not have replayed its log:
// after a restart of Consul all keys would be missing for a moment, and be
// taken for deleted.
func poll(ctx context.Context, index uint64) *capi.QueryOptions {
	return (&capi.QueryOptions{RequireConsistent: true, WaitIndex: index, WaitTime: pollWait}).WithContext(ctx)
}

// nextIndex follows Consul's rules for blocking queries: an index that went
// backwards starts again at 0, and one of 0 would not block at all.
func nextIndex(asked, got uint64) uint64 {
	if got < asked {
		return 0
	}
	return max(got, 1)
}

// Rounds of one commit. A lock delay is 1 ms in our sessions; a contender woken
// by the end of a session can be that quick, and nothing would wake it again.
const (
	lockDelayTries = 50
	lockDelayPause = 2 * time.Millisecond
	releaseTries   = 5
)

// Commit implements Store.
func (c *consul) Commit(ctx context.Context, ops ...Op) ([]Entry, error) {
	if err := checkOps(ops); err != nil {
		return nil, err
	}
	if len(ops) == 0 || ctx.Err() != nil {
		return nil, ctx.Err()
	}
	ctx, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	delays, moved := 0, 0
	for {
		t, err := c.translate(ctx, ops)
		if err != nil {
			return nil, err
		}
		call, sent := traceSent(ctx)
		ok, resp, _, err := c.calls.Txn().Txn(t.ops, consistent(call))
		if err != nil {
			return nil, commitError(ctx, sent.Load(), err)
		}
		if ok {
			return c.written(ops, t, resp.Results), nil
		}
		v := judge(resp.Errors, t.opOf)
		switch {
		case v.delayed && delays < lockDelayTries:
			delays++
			if err := sleep(ctx, lockDelayPause); err != nil {
				return nil, err
			}
		case t.guarded(resp.Errors) && moved < releaseTries:
			moved++ // a value changed between our reading and its release
		default:
			return nil, v.err
		}
	}
}

// translation is a commit in Consul's words.
type translation struct {
	ops  capi.TxnOps
	opOf []int        // index of our op by that of Consul's
	own  map[int]bool // which of Consul's are guards that we added
}

// translate writes the ops as a transaction. Consul's unlock also writes the
// value, so a release reads it first and guards it by its version.
func (c *consul) translate(ctx context.Context, ops []Op) (translation, error) {
	t := translation{own: map[int]bool{}}
	add := func(i int, op capi.KVTxnOp) {
		op.Key = c.root + ops[i].Key
		t.ops = append(t.ops, &capi.TxnOp{KV: &op})
		t.opOf = append(t.opOf, i)
	}
	values := map[string][]byte{} // set by this very commit
	for i, op := range ops {
		switch op.Verb {
		case VerbSet:
			add(i, capi.KVTxnOp{Verb: capi.KVSet, Value: op.Value})
		case VerbCAS:
			add(i, capi.KVTxnOp{Verb: capi.KVCAS, Value: op.Value, Index: op.Version})
		case VerbDelete:
			add(i, capi.KVTxnOp{Verb: capi.KVDelete})
		case VerbDeleteCAS:
			add(i, capi.KVTxnOp{Verb: capi.KVDeleteCAS, Index: op.Version})
		case VerbDeletePrefix:
			add(i, capi.KVTxnOp{Verb: capi.KVDeleteTree})
		case VerbAcquire:
			add(i, capi.KVTxnOp{Verb: capi.KVLock, Value: op.Value, Session: op.Session})
		case VerbHeld:
			add(i, capi.KVTxnOp{Verb: capi.KVCheckSession, Session: op.Session})
		case VerbUnchanged:
			add(i, capi.KVTxnOp{Verb: capi.KVCheckIndex, Index: op.Version})
		case VerbAbsent:
			add(i, capi.KVTxnOp{Verb: capi.KVCheckNotExists})
		case VerbRelease:
			value, ours := values[op.Key]
			if !ours {
				pair, _, err := c.calls.KV().Get(c.root+op.Key, consistent(ctx))
				if err != nil {
					return t, readError(ctx, err)
				}
				if pair != nil {
					value = pair.Value
					t.own[len(t.ops)] = true
					add(i, capi.KVTxnOp{Verb: capi.KVCheckIndex, Index: pair.ModifyIndex})
				}
			}
			add(i, capi.KVTxnOp{Verb: capi.KVUnlock, Value: value, Session: op.Session})
		}
		switch op.Verb {
		case VerbSet, VerbCAS, VerbAcquire:
			values[op.Key] = op.Value
		}
	}
	return t, nil
}

// guarded reports whether one of our own guards failed.
func (t translation) guarded(errs capi.TxnErrors) bool {
	for _, e := range errs {
		if t.own[e.OpIndex] {
			return true
		}
	}
	return false
}

// written picks from Consul's results those of the ops that set a value. There
// is one for every operation but deletions and checks of absence, in order; it
// leaves the value out.
func (c *consul) written(ops []Op, t translation, results capi.TxnResults) []Entry {
	var entries []Entry
	next := 0
	for i, cop := range t.ops {
		switch cop.KV.Verb {
		case capi.KVDelete, capi.KVDeleteCAS, capi.KVDeleteTree, capi.KVCheckNotExists:
			continue
		}
		if next == len(results) {
			break
		}
		kv := results[next].KV
		next++
		switch op := ops[t.opOf[i]]; op.Verb {
		case VerbSet, VerbCAS, VerbAcquire:
			entries = append(entries, Entry{
				Key: strings.TrimPrefix(kv.Key, c.root), Value: op.Value,
				Version: kv.ModifyIndex, Created: kv.CreateIndex, Session: kv.Session,
			})
		}
	}
	return entries
}
