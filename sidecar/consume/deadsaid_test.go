package consume

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"sidestream/sidecar/upstream"
)

// A dead letter that a full disk does not take was told as brokers that do not
// answer, since the client that writes it repeats in silence.
func TestALetterThatIsNotTakenSaysWhy(t *testing.T) {
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(1, "dead.g"))
	if err != nil {
		t.Fatal(err)
	}
	defer cluster.Close()
	cluster.ControlKey(kmsg.Produce.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		cluster.KeepControl()
		in := req.(*kmsg.ProduceRequest)
		resp := in.ResponseKind().(*kmsg.ProduceResponse)
		for _, rt := range in.Topics {
			out := kmsg.NewProduceResponseTopic()
			out.Topic, out.TopicID = rt.Topic, rt.TopicID
			p := kmsg.NewProduceResponseTopicPartition()
			p.ErrorCode, p.ErrorMessage, p.BaseOffset = kerr.KafkaStorageError.Code, new("not appended: no space left on /data"), -1
			out.Partitions = append(out.Partitions, p)
			resp.Topics = append(resp.Topics, out)
		}
		return resp, nil, true
	})
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
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	errs := w.write(ctx, topic, []*kgo.Record{{Topic: "dead.g", Value: []byte("letter")}})
	if errs[0] == nil || !strings.Contains(errs[0].Message, "KAFKA_STORAGE_ERROR: no space left on /data") {
		t.Errorf("got %v, want what the broker said", errs[0])
	}
}
