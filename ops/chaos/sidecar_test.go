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

// The ways in which a sidecar ends, while no checkpoint is ever written at its
// interval (an hour): what comes again is what the way allows, and no more.
func TestSidecarEnds(t *testing.T) {
	c := Start(t, 1, 2, Options{CheckpointInterval: time.Hour})
	a, b := c.Sidecars[0], c.Sidecars[1]
	c.CreateTopic("orders", 4)
	const messages = 300
	filled := NewLedger()
	fill(t, filled, a, "orders", 0, messages)

	// A group of its own a way. It acknowledges some messages and holds others.
	begin := func(group string) (*Ledger, []api.Message) {
		l := NewLedger()
		l.published = filled.published
		return l, consumeSome(t, l, a, group, "orders", 120)
	}
	all := func(l *Ledger) {
		t.Helper()
		if n := len(l.FirstSeen()); n != messages {
			t.Errorf("%d messages of %d were delivered", n, messages)
		}
		if w := l.WrongValues(); len(w) > 0 {
			t.Errorf("wrong values: %s", few(w))
		}
	}

	// kill -9, then its own restart: the local store remembers.
	l, leased := begin("restarted")
	a.Kill()
	a.Start()
	a.WaitReady(60 * time.Second)
	drainAll(t, l, "restarted", messages, a)
	all(l)
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

	// SIGTERM checkpoints and releases: the other repeats nothing.
	l, _ = begin("stopped")
	a.Stop()
	drainAll(t, l, "stopped", messages, b)
	all(l)
	if r := l.RepeatedAfterAck(); len(r) > 0 {
		t.Errorf("%d acknowledged messages were delivered again after a clean stop: %v", len(r), r)
	}

	// kill -9 for good: the other repeats what was acknowledged since the last
	// checkpoint. (That it repeats nothing older, TestRandomFaults shows.)
	a.Start()
	a.WaitReady(60 * time.Second)
	l, _ = begin("killed")
	a.Kill()
	drainAll(t, l, "killed", messages, b)
	all(l)
	if len(l.RepeatedAfterAck()) == 0 {
		t.Error("nothing acknowledged was repeated although no checkpoint was written: what was tested?")
	}
}

// drainAll pulls and acks until so many messages were delivered and the group is
// at the end.
func drainAll(t *testing.T, l *Ledger, group string, messages int, p *Process) {
	t.Helper()
	eventually(t, 120*time.Second, func() error {
		n, err := pullAndAck(l, p, group, "orders", "max=500&wait=200ms")
		if seen := len(l.FirstSeen()); err == nil && (n > 0 || seen < messages) {
			err = fmt.Errorf("%d messages delivered", seen)
		}
		return err
	})
}
