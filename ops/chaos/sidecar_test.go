package chaos

import (
	"fmt"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// fill publishes n messages over the partitions of a topic.
func fill(t *testing.T, l *Ledger, p *Process, topic string, from, n int) {
	t.Helper()
	for i := from; i < from+n; i++ {
		value := fmt.Sprintf("%s message %d", topic, i)
		a, err := publish(p.HTTP, topic, fmt.Sprintf("key-%d", i%17), value, "")
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Published(topic, a.Partition, a.Offset, value); err != nil {
			t.Fatal(err)
		}
	}
}

// consumeSome pulls until at least want messages were acknowledged and some
// more are leased but not acknowledged. It returns the latter.
func consumeSome(t *testing.T, l *Ledger, p *Process, group, topic string, want int) (leased []api.Message) {
	t.Helper()
	eventually(t, 60*time.Second, func() error {
		got, err := pull(p.HTTP, group, topic, "max=20&wait=300ms&lease=10m")
		if err != nil {
			return err
		}
		if len(got.Messages) == 0 {
			return fmt.Errorf("no messages: %v", *got.Reason)
		}
		l.Delivered(p.Name, time.Now(), got.Messages)
		if _, _, acked := l.Counts(); acked >= want {
			leased = got.Messages
			return nil
		}
		res, err := ack(p.HTTP, group, topic, got.Messages)
		if err != nil {
			return err
		}
		if res.Failed > 0 {
			return fmt.Errorf("%d acks failed: %+v", res.Failed, res.Results)
		}
		for _, m := range got.Messages {
			l.Acked(time.Now(), m.ID)
		}
		return errNotYet
	})
	return leased
}

// kill -9 of a sidecar in mid-consumption, then its own restart: nothing is
// skipped and only what was not acknowledged comes again, though no checkpoint
// was ever written (the interval is an hour): the local store remembers.
func TestSidecarKilledAndRestarted(t *testing.T) {
	c := Start(t, 1, 1, Options{CheckpointInterval: time.Hour})
	a := c.Sidecars[0]
	c.CreateTopic("orders", 4)
	l := NewLedger()
	fill(t, l, a, "orders", 0, 400)

	leased := consumeSome(t, l, a, "g", "orders", 150)
	a.Kill()
	a.Start()
	a.WaitReady(60 * time.Second)
	drainGroup(t, l, 90*time.Second, "g", "orders", a)

	if r := l.RepeatedAfterAck(); len(r) > 0 {
		t.Errorf("%d acknowledged messages were delivered again after the restart: %v", len(r), r)
	}
	again := map[string]int{}
	for _, d := range l.delivered {
		again[d.ID]++
	}
	for _, m := range leased {
		if again[m.ID] < 2 {
			t.Errorf("%s was leased and not acknowledged when the sidecar died, and did not come again", m.ID)
		}
	}
	if w := l.WrongValues(); len(w) > 0 {
		t.Errorf("wrong values: %s", few(w))
	}
}

// kill -9 of a sidecar for good, before it has written any checkpoint: the other
// takes its partitions over, skips nothing, and repeats what was acknowledged.
// (That it repeats nothing older than the last checkpoint, TestRandomFaults
// shows.)
func TestSidecarKilledAndTakenOver(t *testing.T) {
	c := Start(t, 1, 2, Options{CheckpointInterval: time.Hour})
	a, b := c.Sidecars[0], c.Sidecars[1]
	c.CreateTopic("orders", 4)
	l := NewLedger()
	fill(t, l, a, "orders", 0, 300)
	consumeSome(t, l, a, "g", "orders", 120)
	a.Kill()
	drainGroup(t, l, 120*time.Second, "g", "orders", b)
	if len(l.RepeatedAfterAck()) == 0 {
		t.Error("nothing acknowledged was repeated although no checkpoint was written: what was tested?")
	}
	if w := l.WrongValues(); len(w) > 0 {
		t.Errorf("wrong values: %s", few(w))
	}
}

// SIGTERM checkpoints and releases: the other sidecar repeats nothing that was
// acknowledged, even with an interval that never comes.
func TestSidecarStoppedRepeatsNothing(t *testing.T) {
	c := Start(t, 1, 2, Options{CheckpointInterval: time.Hour})
	a, b := c.Sidecars[0], c.Sidecars[1]
	c.CreateTopic("orders", 4)
	l := NewLedger()
	fill(t, l, a, "orders", 0, 300)
	consumeSome(t, l, a, "g", "orders", 120)
	a.Stop()
	drainGroup(t, l, 60*time.Second, "g", "orders", b)
	if r := l.RepeatedAfterAck(); len(r) > 0 {
		t.Errorf("%d acknowledged messages were delivered again after a clean stop: %v", len(r), r)
	}
}
