package discovery

import (
	"bytes"
	"context"
	"maps"
	"slices"
)

// A FollowOption changes how Follow and FollowServices report.
type FollowOption func(*followOptions)

type followOptions struct{ onError func(error) }

// OnError is told of every failed read before it is tried again. While reads
// fail, what was delivered last may be out of date.
func OnError(f func(error)) FollowOption {
	return func(o *followOptions) { o.onError = f }
}

// Follow calls f with everything under prefix, sorted by key: once at first
// and after each change (several changes may come as one). It returns only
// when ctx ends, with its error. Failed reads are tried again with a growing
// pause; a change that no watch reported is seen after [MaxWait] at the latest,
// since each watch then reads all again. f must not change what it is given, and
// nothing is followed while it runs.
//
// A prefix is only text: that of a single key matches longer keys too.
func Follow(ctx context.Context, store Store, prefix string, f func([]Entry), opts ...FollowOption) error {
	watch := func(ctx context.Context, index uint64) ([]Entry, uint64, error) {
		return store.Watch(ctx, prefix, index)
	}
	return follow(ctx, watch, sameEntries, f, opts)
}

// FollowServices is Follow for the instances of a service, passing or not.
func FollowServices(ctx context.Context, store Store, name string, f func([]Instance), opts ...FollowOption) error {
	watch := func(ctx context.Context, index uint64) ([]Instance, uint64, error) {
		return store.WatchServices(ctx, name, index)
	}
	return follow(ctx, watch, sameInstances, f, opts)
}

func follow[T any](ctx context.Context, watch func(context.Context, uint64) ([]T, uint64, error),
	same func(a, b []T) bool, f func([]T), opts []FollowOption) error {
	var o followOptions
	for _, opt := range opts {
		opt(&o)
	}
	var (
		index     uint64
		last      []T
		delivered bool
		pause     backoff
	)
	for ctx.Err() == nil {
		now, next, err := watch(ctx, index)
		if err != nil {
			if ctx.Err() != nil {
				break
			}
			if o.onError != nil {
				o.onError(err)
			}
			// What was missed meanwhile is found by reading all again.
			index = 0
			if pause.wait(ctx) != nil {
				break
			}
			continue
		}
		pause.reset()
		// An index that went backwards belongs to another history (a restored
		// or wiped store): begin again, so that no wait is for an index that
		// will not come for long.
		if next < index {
			next = 0
		}
		index = next
		if delivered && same(last, now) {
			continue
		}
		last, delivered = now, true
		f(now)
	}
	return ctx.Err()
}

func sameEntries(a, b []Entry) bool {
	return slices.EqualFunc(a, b, func(x, y Entry) bool {
		return x.Key == y.Key && x.Version == y.Version && x.Created == y.Created &&
			x.Session == y.Session && bytes.Equal(x.Value, y.Value)
	})
}

func sameInstances(a, b []Instance) bool {
	return slices.EqualFunc(a, b, func(x, y Instance) bool {
		return x.ID == y.ID && x.Name == y.Name && x.Address == y.Address && x.Port == y.Port &&
			x.Node == y.Node && x.Cluster == y.Cluster && x.Passing == y.Passing && x.Beating == y.Beating && maps.Equal(x.Meta, y.Meta)
	})
}
