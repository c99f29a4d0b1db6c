package consume

import (
	"strings"
	"testing"

	"sidestream/discovery"
)

func TestDeadTopic(t *testing.T) {
	if got := deadTopic("orders"); got != "dead.orders" {
		t.Errorf("got %s", got)
	}
	long := strings.Repeat("g", discovery.MaxNameLen)
	a, b := deadTopic(long), deadTopic(long[1:])
	for _, name := range []string{a, b} {
		if err := discovery.CheckName("topic", name); err != nil || !strings.HasPrefix(name, deadLetterPrefix) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if a == b {
		t.Error("two groups share a topic by their length")
	}
}

func TestMaxAttempts(t *testing.T) {
	for name, c := range map[string]struct {
		config discovery.GroupConfig
		topic  string
		want   int
	}{
		"by default":       {discovery.GroupConfig{}, "t", 10},
		"as configured":    {discovery.GroupConfig{MaxAttempts: 3}, "t", 3},
		"no limit":         {discovery.GroupConfig{MaxAttempts: noLimit}, "t", 0},
		"off":              {discovery.GroupConfig{MaxAttempts: 3, Dead: deadOff}, "t", 0},
		"skip":             {discovery.GroupConfig{MaxAttempts: 3, Dead: deadSkip}, "t", 3},
		"own dead letters": {discovery.GroupConfig{MaxAttempts: 3}, "dead.g", 0},
		"others'":          {discovery.GroupConfig{MaxAttempts: 3}, "dead.h", 3},
		"own of a name":    {discovery.GroupConfig{Dead: "trash"}, "trash", 0},
	} {
		if got := maxAttempts("g", c.topic, c.config); got != c.want {
			t.Errorf("%s: %d, want %d", name, got, c.want)
		}
	}
}
