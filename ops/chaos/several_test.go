package chaos

import (
	"errors"
	"fmt"
	"maps"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// A group over a pattern, with real brokers and Consul: topics that appear while
// it consumes are delivered whole, also to a group that begins at the end; a
// sidecar that dies hands its part of all topics over.
func TestPatternThroughTakeover(t *testing.T) {
	c := Start(t, 1, 2, Options{})
	a, b := c.Sidecars[0], c.Sidecars[1]
	const pattern = "orders.*"
	c.CreateTopic("orders.eu", 3)
	c.CreateTopic("orders.us", 2)
	c.CreateTopic("other", 1)
	all, late := NewLedger(), NewLedger()
	fill(t, all, a, "orders.eu", 0, 100)
	fill(t, all, b, "orders.us", 0, 100)
	fill(t, NewLedger(), b, "other", 0, 10)
	for _, p := range []*Process{a, b} {
		if _, err := pull(p.HTTP, "late", pattern, "from=latest"); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, 60*time.Second, func() error {
		// Where the group begins is written when its partitions are taken.
		var o api.Offsets
		if _, err := call("GET", a.HTTP+"/groups/late/topics/"+pattern+"/offsets", nil, &o); err != nil {
			return err
		}
		if len(o.Topics) != 2 || o.Lag != 0 {
			return fmt.Errorf("%d topics, lag %d", len(o.Topics), o.Lag)
		}
		return nil
	})
	if _, err := pull(b.HTTP, "g", pattern, "max=1&lease=1s"); err != nil { // joins
		t.Fatal(err)
	}
	consumeSome(t, all, a, "g", pattern, 40)

	c.CreateTopic("orders.br", 2)
	fill(t, late, b, "orders.br", 0, 50)
	maps.Copy(all.published, late.published)
	a.Kill()
	drainGroup(t, all, 120*time.Second, "g", pattern, b)
	drainGroup(t, late, 120*time.Second, "late", pattern, b)

	for name, l := range map[string]*Ledger{"g": all, "late": late} {
		if w := l.WrongValues(); len(w) > 0 {
			t.Errorf("%s: wrong values: %s", name, few(w))
		}
		for _, d := range l.delivered {
			topic, _, _ := strings.Cut(d.ID, "/")
			if topic == "other" || name == "late" && topic != "orders.br" {
				t.Fatalf("%s got %s", name, d.ID)
			}
		}
	}
	var g api.Group
	if _, err := call("GET", b.HTTP+"/groups/late", nil, &g); err != nil || len(g.Members) != 1 || len(g.Members[0].Topics) != 1 || g.Members[0].Topics[0] != pattern {
		t.Errorf("%+v, %v", g.Members, err)
	}
	if _, err := pull(b.HTTP, "g", "orders.eu,nowhere", ""); !errors.Is(err, &api.Error{Code: api.CodeTopicNotFound}) {
		t.Errorf("a name that is not there: %v", err)
	}
}
