package main

import (
	"context"
	"fmt"
	"strings"
	"time"
)

// The servers, as the table names them.
const (
	sidestream  = "sidestream"
	kafka       = "kafka"
	bareProduce = "bare produce loop"
	bareSend    = "bare sendfile loop"
	bareDiskly  = "bare write+fdatasync loop"
)

// step is one load, measured on several servers.
type step struct {
	group string
	name  string
	peers []string // beside ours, which comes first
	disk  diskPeer // what the bare disk loop does beside it

	run func(ctx context.Context, b *bench, m *meter, window time.Duration) error
}

// diskPeer is how the bare disk loop is run beside a step: with so many bytes a
// sync as our broker had on average, or with fixed ones.
type diskPeer struct {
	files int
	bytes int // of a write; 0: as our broker had
}

func (l produceLoad) step(group, name string, peers ...string) step {
	st := step{group: group, name: name, peers: peers, run: func(ctx context.Context, _ *bench, m *meter, window time.Duration) error {
		return l.run(ctx, m, window)
	}}
	if l.synced {
		st.disk.files = l.partitions
	}
	return st
}

// The groups of the table, in order.
const (
	groupCache    = "Produce into the page cache (`flush.messages` off, as Kafka's default)"
	groupSync     = "Produce with a sync before the answer (`flush.messages=1`, our default)"
	groupSingle   = "One record a request, the next after the answer"
	groupConsume  = "Consume 1 KiB records"
	groupFetch    = "Fetch answers of 1 MiB, thrown away by the client"
	groupTogether = "Produce and consume at once, 1 KiB records; latency from producer to consumer"
	groupMany     = "1,000 partitions"
)

// allSteps are the steps in the order in which they are measured.
func allSteps() (all []step) {
	for _, synced := range []bool{false, true} {
		for _, plain := range []bool{false, true} {
			for _, size := range []int{100, 1024} {
				for _, producers := range []int{1, 8, 64} {
					l := produceLoad{producers: producers, partitions: min(producers, 8), size: size, plain: plain, synced: synced}
					group, peers := groupCache, []string{kafka, bareProduce}
					if synced {
						group, peers = groupSync, []string{kafka, bareDiskly}
					}
					all = append(all, l.step(group, l.name(), peers...))
				}
			}
		}
	}
	for _, synced := range []bool{true, false} {
		for _, producers := range []int{1, 64} {
			l := produceLoad{producers: producers, partitions: 1, size: 1024, plain: true, synced: synced, oneByOne: true}
			st := l.step(groupSingle, l.name(), kafka, bareProduce)
			if synced {
				st.peers = []string{kafka, bareDiskly}
				st.disk.bytes = 4096
			}
			all = append(all, st)
		}
	}
	for _, cold := range []bool{true, false} {
		for _, consumers := range []int{1, 8} {
			l := consumeLoad{consumers: consumers, cold: cold}
			name := fmt.Sprintf("consume %s %dc", map[bool]string{true: "cold", false: "warm"}[cold], consumers)
			all = append(all, step{group: groupConsume, name: name, peers: []string{kafka}, run: func(ctx context.Context, b *bench, m *meter, _ time.Duration) error {
				st, err := b.stock(ctx, m.s)
				if err != nil {
					return err
				}
				return l.run(ctx, m, st)
			}})
		}
	}
	for _, consumers := range []int{1, 8} {
		l := fetchLoad{consumers}
		all = append(all, step{group: groupFetch, name: fmt.Sprintf("fetch %dc", consumers), peers: []string{kafka, bareSend},
			run: func(ctx context.Context, b *bench, m *meter, window time.Duration) error {
				plan, err := b.plan(ctx, m.s)
				if err != nil {
					return err
				}
				return l.run(ctx, m, plan, window)
			}})
	}
	for _, l := range []togetherLoad{{size: 1024}, {size: 1024, rate: 5000}, {size: 1024, rate: 5000, synced: true}} {
		all = append(all, step{group: groupTogether, name: l.name(), peers: []string{kafka}, run: func(ctx context.Context, _ *bench, m *meter, window time.Duration) error {
			return l.run(ctx, m, window)
		}})
	}
	for _, synced := range []bool{false, true} {
		l := produceLoad{producers: 8, partitions: 1000, size: 100, keys: true, synced: synced}
		st := l.step(groupMany, l.name()+" 1000 partitions", kafka)
		if !synced {
			st.peers = append(st.peers, bareProduce)
		}
		all = append(all, st)
	}
	return all
}

func sizeName(bytes int) string {
	if bytes%1024 == 0 {
		return fmt.Sprintf("%dKiB", bytes/1024)
	}
	return fmt.Sprintf("%dB", bytes)
}

func (l produceLoad) name() string {
	words := []string{"produce"}
	switch {
	case l.oneByOne:
		words = []string{"single"}
	case l.plain:
		words = append(words, "plain")
	default:
		words = append(words, "default")
	}
	words = append(words, sizeName(l.size), fmt.Sprintf("%dp", l.producers))
	if l.synced {
		words = append(words, "fsync")
	}
	return strings.Join(words, " ")
}

func (l togetherLoad) name() string {
	name := "together " + sizeName(l.size)
	if l.rate > 0 {
		name += fmt.Sprintf(" at %d/s", l.rate)
	}
	if l.synced {
		name += " fsync"
	}
	return name
}
