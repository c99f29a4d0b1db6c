package broker_test

import (
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record/recordtest"
)

// A batch of one megabyte that unpacked to a gigabyte was stored with error 0,
// and took gigabytes of whoever read it. The broker refuses it, by the frame of
// each codec, with the code that has producers send fewer records in a batch.
func TestBombsAreRefused(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.MaxUnpackedBytes = 8 << 20 })
	w.topic("t", 1, map[string]string{"max.message.bytes": "4000000"})
	w.topic("keyed", 1, map[string]string{"max.message.bytes": "4000000", "cleanup.policy": "compact"})
	r := w.dial()
	for _, f := range recordtest.Forms {
		for _, records := range []int{1, 64} {
			size := 128 << 20
			if strings.HasPrefix(f.Name, "snappy") {
				size = 32 << 20
			}
			if f.Name == "lz4" || f.Name == "lz4-sized" {
				size = 64 << 20
			}
			bomb := f.Bomb(records, size/records)
			for _, topic := range []string{"t", "keyed"} {
				var before, after runtime.MemStats
				runtime.ReadMemStats(&before)
				begun := time.Now()
				got := r.put(topic, bomb)
				took := time.Since(begun)
				runtime.ReadMemStats(&after)
				if got.ErrorCode != 10 || got.ErrorMessage == nil || !strings.Contains(*got.ErrorMessage, "unpacks to more than 8388608 bytes") {
					t.Errorf("%s, %d records, topic %s: %+v", f.Name, records, topic, got)
				}
				if took > 3*time.Second {
					t.Errorf("%s: took %s", f.Name, took)
				}
				if grown := after.TotalAlloc - before.TotalAlloc; grown > 48<<20 {
					t.Errorf("%s: %d bytes were allocated", f.Name, grown)
				}
			}
			if got := r.put("t", f.Bomb(records, (4<<20)/records)); got.ErrorCode != 0 {
				t.Errorf("%s within the limit: %+v", f.Name, got)
			}
		}
	}
}

// What an earlier version has stored, or one with a higher limit, is passed on as
// it is: a search by time says the batch, and not its record.
func TestABombThatIsStoredIsNotLookedInto(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.MaxUnpackedBytes = 1 << 30 })
	w.topic("t", 1, map[string]string{"max.message.bytes": "4000000"})
	gzip := recordtest.Forms[0]
	if got := w.dial().put("t", gzip.Bomb(2, 64<<20)); got.ErrorCode != 0 {
		t.Fatalf("%+v", got)
	}
	w.cfg.MaxUnpackedBytes = 1 << 20
	w.close()
	w.open()
	w.leadAgain()
	req := kmsg.NewPtrListOffsetsRequest()
	req.Version = 7
	rt := kmsg.NewListOffsetsRequestTopic()
	rt.Topic = "t"
	rp := kmsg.NewListOffsetsRequestTopicPartition()
	rp.Timestamp = 1_790_000_000_000
	rt.Partitions = append(rt.Partitions, rp)
	req.Topics = append(req.Topics, rt)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	got := ask[*kmsg.ListOffsetsResponse](w.dial(), req).Topics[0].Partitions[0]
	runtime.ReadMemStats(&after)
	if got.ErrorCode != 0 || got.Offset != 0 {
		t.Errorf("%+v", got)
	}
	if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
		t.Errorf("%d bytes were allocated", grown)
	}
}
