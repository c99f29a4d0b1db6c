package compat

import (
	"fmt"
	"testing"
)

// TestUpstreamKafka lets sidecars work against Apache Kafka's broker instead of
// ours.
func TestUpstreamKafka(t *testing.T) {
	k := startKafka(t)
	consul := startConsul(t)
	s := startSidecar(t, "one", consul, "SIDESTREAM_KAFKA_BOOTSTRAP="+k.plain)

	t.Run("publish and pull", func(t *testing.T) { publishAndPull(t, s) })
}

// publishAndPull makes a topic, fills it in each way and takes all of it.
func publishAndPull(t *testing.T, s sidecar) {
	s.t = t
	const topic = "orders"
	s.do("PUT", "/topics/"+topic, map[string]any{"partitions": 4}, nil)
	s.publish(topic, "", "single")
	s.publish(topic, "42", "keyed")
	var batch string
	for i := range 100 {
		batch += fmt.Sprintf("{\"value\":\"b%d\",\"key\":\"k%d\"}\n", i, i%10)
	}
	var written struct{ Written, Failed int }
	s.do("POST", "/topics/"+topic+"/batch", []byte(batch), &written)
	if written.Written != 100 || written.Failed != 0 {
		t.Fatalf("of a batch of 100 messages %d are written, %d failed", written.Written, written.Failed)
	}
	seen, last := map[string]bool{}, map[string]int{}
	for _, m := range s.drain("g", topic) {
		if seen[m.text()] {
			t.Errorf("%s comes twice", m.text())
		}
		seen[m.text()] = true
		var n int
		if _, err := fmt.Sscanf(m.text(), "b%d", &n); err == nil {
			if before, ok := last[m.Key]; ok && n < before {
				t.Errorf("of key %s b%d comes after b%d", m.Key, n, before)
			}
			last[m.Key] = n
		}
	}
	if len(seen) != 102 || !seen["single"] || !seen["keyed"] {
		t.Errorf("%d messages of 102 came", len(seen))
	}
	if lag, partitions := s.lag("g", topic); lag != 0 || partitions != 4 {
		t.Errorf("lag %d in %d partitions after everything is acknowledged, want 0 in 4", lag, partitions)
	}
}
