package consume

import (
	"fmt"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/zap"

	"sidestream/sidecar/upstream"
)

// A topic of dead letters whose max.message.bytes was altered, or which a broker
// that is behind shows under an earlier id for a moment, had the client forget it:
// its sequence numbers began at 0 again under the same producer id, and the broker
// took the next letter for a repeat of the first. The letter counted as written,
// and the message that it was about as acknowledged.
func TestLettersAfterATopicHasChanged(t *testing.T) {
	for name, change := range map[string]func(*deadTarget){
		"another limit":         func(d *deadTarget) { d.limit /= 2; d.at = time.Time{} },
		"an earlier topic's id": func(d *deadTarget) { d.uuid = "00000000-0000-0000-0000-00000000000e" },
	} {
		t.Run(name, func(t *testing.T) {
			cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "dead.g"))
			if err != nil {
				t.Fatal(err)
			}
			defer cluster.Close()
			uc := upstream.DefaultConfig()
			uc.Bootstrap = cluster.ListenAddrs()
			up, err := upstream.New(uc, nil, nil)
			if err != nil {
				t.Fatal(err)
			}
			defer up.Close()
			w := newDeadWriter(up, DefaultConfig(), zap.NewNop())
			defer w.close()
			topic, err := up.Topic(t.Context(), "dead.g")
			if err != nil {
				t.Fatal(err)
			}
			for i := range 3 {
				if errs := w.write(t.Context(), topic, []*kgo.Record{{Topic: "dead.g", Value: fmt.Append(nil, i)}}); errs[0] != nil {
					t.Fatal(errs[0])
				}
				w.mu.Lock()
				target := w.topics["dead.g"]
				change(&target)
				w.topics["dead.g"] = target
				w.mu.Unlock()
			}
			recs, _, end, err := up.Peek(t.Context(), "dead.g", 0, 0, 10, 1<<20)
			if err != nil || end != 3 || len(recs) != 3 || string(recs[2].Value) != "2" {
				t.Errorf("%d letters to %d, %v", len(recs), end, err)
			}
		})
	}
}
