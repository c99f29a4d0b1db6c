package consumer

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// byKey is the lane of a message in a group with order=key.
func byKey(m api.Message) string {
	if m.Key == nil {
		return m.ID
	}
	return fmt.Sprint(m.Partition, " ", *m.Key)
}

// Keys go on beside each other whatever fails and whoever restarts, each in its
// order; a slow key that more messages have than may be held delays nobody.
func TestKeysAreHandledBesideEachOther(t *testing.T) {
	r := newRig(t)
	h := r.host()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := h.client.ConfigureGroup(ctx, "g", api.GroupConfig{Order: "key"}); err != nil {
		t.Fatal(err)
	}
	const n, slow = 300, 60
	messages := make([]sdk.Message, 0, n)
	for i := range n {
		m := sdk.Message{Value: fmt.Append(nil, i), Key: fmt.Append(nil, "k", i%20), Partition: new(int32(i % 4))}
		switch {
		case i < slow:
			m.Key, m.Partition = []byte("slow"), new(int32(0))
		case i%10 == 0:
			m.Key = nil
		}
		messages = append(messages, m)
	}
	if result, err := h.client.PublishBatch(ctx, "t", messages); err != nil || result.Failed > 0 {
		t.Fatalf("%+v, %v", result, err)
	}
	w := newWitness(t, byKey)
	var mu sync.Mutex // guards random
	random := rand.New(rand.NewPCG(3, 4))
	var others atomic.Int32
	early := make(chan struct{}) // closed when all the others are handled
	done := make(chan error, 1)
	go func() {
		done <- h.client.Consume(ctx, "g", "t", sdk.ConsumeOptions{
			Concurrency: 4, Max: 20, RetryDelay: 20 * time.Millisecond, MaxRetryDelay: 50 * time.Millisecond,
			OnError: func(err error) { t.Log(err) },
		}, w.handler(func(ctx context.Context, m api.Message) error {
			if m.Key != nil && *m.Key == "slow" {
				select { // the first of them waits for all others
				case <-early:
				case <-ctx.Done():
				}
				return nil
			}
			mu.Lock()
			fails := random.IntN(20) == 0
			mu.Unlock()
			if fails {
				return errors.New("not today")
			}
			if others.Add(1) == n-slow {
				close(early)
			}
			return nil
		}))
	}()
	h.settled(ctx, "g")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.check(n, 1)
}

// Stops cost what nobody began no attempt, so they never make dead letters.
func TestStopsSpendNoAttempts(t *testing.T) {
	r := newRig(t)
	h := r.host()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := h.client.ConfigureGroup(ctx, "g", api.GroupConfig{MaxAttempts: new(2)}); err != nil {
		t.Fatal(err)
	}
	h.publish(100, 10)
	w := newWitness(t, byPartition)
	for range 5 { // each handles a few and has taken more
		first, stop := context.WithCancel(ctx)
		var handled atomic.Int32
		if err := h.client.Consume(first, "g", "t", sdk.ConsumeOptions{}, w.handler(func(_ context.Context, m api.Message) error {
			if m.Attempt != 1 {
				t.Errorf("%s comes at attempt %d", m.ID, m.Attempt)
			}
			if handled.Add(1) == 3 {
				stop()
			}
			return nil
		})); err != nil {
			t.Error(err)
		}
	}
	w.check(15, 1)
}

// A message that no handler can do becomes a dead letter, with what the last
// handler said, and the rest goes on.
func TestPoisonBecomesADeadLetter(t *testing.T) {
	r := newRig(t)
	h := r.host()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if _, err := h.client.ConfigureGroup(ctx, "g", api.GroupConfig{Order: "key", MaxAttempts: new(3)}); err != nil {
		t.Fatal(err)
	}
	h.publish(40, 4)
	var tries atomic.Int32
	w := newWitness(t, byKey)
	done := make(chan error, 1)
	go func() {
		done <- h.client.Consume(ctx, "g", "t", sdk.ConsumeOptions{Concurrency: 2, RetryDelay: 10 * time.Millisecond}, w.handler(func(_ context.Context, m api.Message) error {
			if *m.Value == "17" {
				tries.Add(1)
				return errors.New("no handler can do it")
			}
			return nil
		}))
	}()
	h.settled(ctx, "g")
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.check(39, 1)
	if n := tries.Load(); n != 3 {
		t.Errorf("%d tries", n)
	}
	topic, err := h.client.Topic(t.Context(), "dead.g")
	if err != nil {
		t.Fatal(err)
	}
	letters := 0
	for _, p := range topic.Partitions {
		peeked, err := h.client.Peek(t.Context(), "dead.g", p.Partition, 0, 10)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range peeked.Messages {
			letters++
			if *m.Value != "17" {
				t.Errorf("dead letter %q", *m.Value)
			}
		}
	}
	if letters != 1 {
		t.Errorf("%d dead letters", letters)
	}
}
