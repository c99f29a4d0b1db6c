package publish

import (
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// answering makes a publisher whose brokers answer at once.
func answering(b *testing.B) *Publisher {
	r := newRig(b, nil)
	if _, err := r.Publish(b.Context(), "t", Message{}, Options{}); err != nil {
		b.Fatal(err)
	}
	var to []byte
	r.Publisher.request = func(_ Ack, _ int32, req kmsg.Request) (kmsg.Response, error) {
		to = req.AppendTo(to[:0])
		return answerOf(req.(*attempt), 0), nil
	}
	return r.Publisher
}

// What a single message costs beside the brokers' client.
func BenchmarkSingle(b *testing.B) {
	p := answering(b)
	m := Message{Value: make([]byte, 200), Partition: new(int32)}
	b.ReportAllocs()
	for b.Loop() {
		if _, err := p.Publish(b.Context(), "t", m, Options{}); err != nil {
			b.Fatal(err)
		}
	}
}

// What a message of a batch of 1,000 costs.
func BenchmarkBatch(b *testing.B) {
	p := answering(b)
	ms := make([]Message, 1000)
	for i := range ms {
		ms[i].Value = make([]byte, 200)
	}
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if _, err := p.PublishBatch(b.Context(), "t", ms[:1000], Options{}); err != nil {
			b.Fatal(err)
		}
		n += len(ms)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(n), "ns/message")
}
