package compat

import (
	"context"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// requestOf names the request without which a step of Clients.java cannot work.
var requestOf = map[string]kmsg.Key{
	"incrementalAlterConfigs": kmsg.IncrementalAlterConfigs,
	"deleteRecords":           kmsg.DeleteRecords,
	"describeLogDirs":         kmsg.DescribeLogDirs,
}

// The clients' administration: topics, partitions, configs and offsets. What
// the broker does not offer must be refused with the request's name.
func TestAdministration(t *testing.T) {
	broker := startBroker(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitEach)
	defer cancel()
	keys := offered(ctx, t, broker)
	for i, w := range present(t, []*worker{kafkaPython, aiokafka, confluentNew, java39, java4}) {
		t.Run(w.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limitEach)
			defer cancel()
			text, err := w.ask(ctx, "version", broker, "-")
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("version %s", text)
			text, err = w.ask(ctx, "admin", broker, "administered-"+string(rune('a'+i)))
			if err != nil {
				t.Fatal(err)
			}
			for step := range strings.SplitSeq(text, "; ") {
				t.Log(step)
				name, result, told := strings.Cut(step, "=")
				if !told || result == "ok" {
					continue
				}
				key, known := requestOf[name]
				if known && !keys[key] && strings.Contains(result, "does not support") {
					continue
				}
				t.Errorf("%s: %s", name, result)
			}
		})
	}
}
