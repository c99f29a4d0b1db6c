package consumer

import (
	"context"
	"fmt"
	"testing"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// One consumer of a pattern: topics that appear join by themselves, and each is
// handled in its order.
func TestTopicsOfAPattern(t *testing.T) {
	r := newRig(t)
	h := r.host()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	fill := func(topic string, n int) {
		t.Helper()
		if _, err := h.client.CreateTopic(ctx, topic, api.TopicSpec{Partitions: 2}); err != nil {
			t.Fatal(err)
		}
		messages := make([]sdk.Message, n)
		for i := range messages {
			messages[i] = sdk.Message{Key: fmt.Append(nil, i%7), Value: fmt.Append(nil, i)}
		}
		if result, err := h.client.PublishBatch(ctx, topic, messages); err != nil || result.Failed > 0 {
			t.Fatalf("%+v, %v", result, err)
		}
	}
	fill("orders.eu", 50)
	w := newWitness(t, func(m api.Message) string { return fmt.Sprint(m.Topic, " ", m.Partition) })
	handled := make(chan string, 200)
	done := make(chan error, 1)
	go func() {
		done <- h.client.Consume(ctx, "g", "orders.*", sdk.ConsumeOptions{Concurrency: 4}, w.handler(func(_ context.Context, m api.Message) error {
			handled <- m.Topic
			return nil
		}))
	}()
	await := func(topic string, n int) {
		t.Helper()
		for range n {
			select {
			case got := <-handled:
				if got != topic {
					t.Fatalf("a message of %s, want %s", got, topic)
				}
			case <-ctx.Done():
				t.Fatalf("%s is not handled", topic)
			}
		}
	}
	await("orders.eu", 50)
	fill("returns", 5)
	fill("orders.us", 50)
	await("orders.us", 50)
	for lag := int64(-1); lag != 0 && ctx.Err() == nil; time.Sleep(50 * time.Millisecond) {
		if o, err := h.client.Offsets(ctx, "g", "orders.*"); err == nil && !o.Partial {
			lag = o.Lag
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	w.check(100, 1)
}
