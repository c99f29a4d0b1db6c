package agent

import (
	"fmt"
	"testing"

	"sidestream/discovery"
)

func TestARestartTakesItsPartitionsAtAHigherEpoch(t *testing.T) {
	for name, end := range map[string]func(*storageHost){"stopped": (*storageHost).stop, "killed": (*storageHost).kill} {
		t.Run(name, func(t *testing.T) {
			c := newTestCluster(t)
			hosts := c.started("one", "two")
			one, two := hosts[0], hosts[1]
			two.create("t", 4)
			two.await("two leads half", func() bool { return len(two.host.leading()) == 2 })
			before := two.host.leading()

			end(two)
			if name == "stopped" {
				if n := len(c.keys(discovery.KeyBroker(2))); n != 0 {
					t.Error("a clean stop left the broker's key")
				}
				two.disk.mu.Lock()
				if !two.disk.clean {
					t.Error("a clean stop did not close the broker")
				}
				two.disk.mu.Unlock()
				one.await("half of the leaders gone", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 -1 1 -1]" })
			}
			two.start(c)
			two.ready()
			if two.ID() != 2 {
				t.Fatalf("the folder's broker is %d after a restart; want 2", two.ID())
			}
			after := two.host.leading()
			if len(after) != len(before) {
				t.Fatalf("leads %d partitions after the restart; want %d", len(after), len(before))
			}
			for part, l := range before {
				if after[part].Epoch <= l.Epoch {
					t.Errorf("partition %d is led at epoch %d after %d", part.Partition, after[part].Epoch, l.Epoch)
				}
			}
			one.await("all leaders back", func() bool { return fmt.Sprint(one.leaders("t")) == "[1 2 1 2]" })
			two.await("and in its own view", func() bool { return fmt.Sprint(two.leaders("t")) == "[1 2 1 2]" })
		})
	}
}
