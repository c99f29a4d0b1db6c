package broker_test

import (
	"encoding/binary"
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
	"sidestream/broker/record/recordtest"
)

// gauge reads one series of a registry; label is the value of its only label.
func gauge(t *testing.T, reg *prometheus.Registry, name, label string) float64 {
	t.Helper()
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			if f.GetName() == name && (len(m.GetLabel()) == 0 || m.GetLabel()[0].GetValue() == label) {
				if m.GetCounter() != nil {
					return m.GetCounter().GetValue()
				}
				return m.GetGauge().GetValue()
			}
		}
	}
	return 0
}

func TestPitfallThrottleTimeIsToldAndKept(t *testing.T) {
	w := start(t, func(c *broker.Config) {
		c.Quota.ProduceClients = map[string]string{"raw": "100000"}
		c.Quota.FetchClients = map[string]string{"raw": "100000"}
	})
	w.topic("t", 1, nil)
	batch := recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 60_000)}})
	for v := int16(3); v <= 12; v += 3 {
		r := w.dial()
		r.t = t
		begun := time.Now()
		told := time.Duration(0)
		for range 2 {
			resp := ask[*kmsg.ProduceResponse](r, produceReq(v, -1, "t", 0, batch))
			if resp.Topics[0].Partitions[0].ErrorCode != 0 {
				t.Fatalf("version %d: %+v", v, resp)
			}
			told = time.Duration(resp.ThrottleMillis) * time.Millisecond
		}
		answered := time.Since(begun)
		if told < 100*time.Millisecond {
			t.Errorf("version %d: told to wait %s after 120 kB at 100 kB/s", v, told)
		}
		// The answer itself is not held back, the next request is.
		ask[*kmsg.ApiVersionsResponse](r, kmsg.NewPtrApiVersionsRequest())
		if again := time.Since(begun); again-answered < told-50*time.Millisecond {
			t.Errorf("version %d: told to wait %s, served after %s", v, told, again-answered)
		}
	}
	r := w.dial()
	var got, told int
	for offset := int64(0); offset < 6; {
		req := fetchReq(12, "t", 0, offset)
		resp := ask[*kmsg.FetchResponse](r, req)
		n := len(resp.Topics[0].Partitions[0].RecordBatches)
		if n == 0 || n > 130_000 {
			t.Fatalf("an answer of %d bytes at 100 kB/s", n)
		}
		got += n
		told += int(resp.ThrottleMillis)
		offset += int64(n) / int64(len(batch))
	}
	if least := (got - 100_000) / 100; told < least*8/10 {
		t.Errorf("told to wait %d ms for %d bytes, want about %d", told, got, least)
	}
	// Another client id has no limit.
	cl := w.client(kgo.ClientID("other"))
	begun := time.Now()
	for range 20 {
		produce(t, cl, "t", strings.Repeat("y", 100_000))
	}
	if took := time.Since(begun); took > 15*time.Second {
		t.Errorf("2 MB of a client without a limit took %s", took)
	}
}

// A quota that is set while clients are served counts from the next request on.
func TestSetQuotaIsInForceAtOnce(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	batch := recordtest.Batch(recordtest.Spec{Values: []string{strings.Repeat("x", 60_000)}})
	r := w.dial()
	told := func() int32 {
		t.Helper()
		resp := ask[*kmsg.ProduceResponse](r, produceReq(9, -1, "t", 0, batch))
		if resp.Topics[0].Partitions[0].ErrorCode != 0 {
			t.Fatalf("%+v", resp)
		}
		return resp.ThrottleMillis
	}
	if ms := told(); ms != 0 {
		t.Errorf("without a quota told to wait %d ms", ms)
	}
	if err := w.b.SetQuota(broker.QuotaConfig{ProduceBytesPerSecond: -1}); err == nil {
		t.Error("a bad quota is taken")
	}
	if err := w.b.SetQuota(broker.QuotaConfig{ProduceClients: map[string]string{"raw": "50000"}}); err != nil {
		t.Fatal(err)
	}
	if ms := told(); ms < 150 { // 60 kB at 50 kB/s, a second's worth of which is free
		t.Errorf("told to wait %d ms", ms)
	}
	if err := w.b.SetQuota(broker.QuotaConfig{}); err != nil {
		t.Fatal(err)
	}
	if ms := told(); ms != 0 {
		t.Errorf("without a quota again told to wait %d ms", ms)
	}
}

// What a client that went away had waited for is let go long before its time is over.
func TestALongPollEndsWhenItsClientGoesAway(t *testing.T) {
	reg := prometheus.NewRegistry()
	w := &world{t: t, cfg: broker.DefaultConfig(), cluster: newFakeCluster(), reg: reg}
	w.cfg.ID, w.cfg.Listen, w.cfg.DataDir = selfID, "127.0.0.1:0", t.TempDir()
	w.open()
	t.Cleanup(w.close)
	w.topic("t", 1, nil)
	const clients = 5
	for range clients {
		r := w.dial()
		req := fetchReq(12, "t", 0, 0)
		req.MaxWaitMillis = 60_000
		r.send(req)
		t.Cleanup(func() { _ = r.Close() })
		go func() {
			for gauge(t, reg, "sidestream_broker_requests_total", "Fetch") < clients {
				time.Sleep(10 * time.Millisecond)
			}
			_ = r.Close()
		}()
	}
	deadline := time.Now().Add(30 * time.Second)
	for gauge(t, reg, "sidestream_broker_requests_total", "Fetch") < clients || gauge(t, reg, "sidestream_broker_connections", "goroutine") > 0 {
		if time.Now().After(deadline) {
			t.Fatalf("%v connections are still waiting", gauge(t, reg, "sidestream_broker_connections", "goroutine"))
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// SIDESTREAM_LARGE=1 takes 2,000 idle and 500 busy connections.
func TestManyIdleAndBusyConnectionsHold(t *testing.T) {
	idle, busy, rounds := 300, 60, 5
	if os.Getenv("SIDESTREAM_LARGE") != "" {
		idle, busy, rounds = 2000, 500, 20
	}
	w := start(t)
	w.topic("t", 8, nil)
	var resting []*raw
	for range idle {
		r := w.dial()
		_ = r.SetDeadline(time.Now().Add(5 * time.Minute))
		ask[*kmsg.ApiVersionsResponse](r, kmsg.NewPtrApiVersionsRequest())
		resting = append(resting, r)
	}
	var wg sync.WaitGroup
	for i := range busy {
		r := w.dial()
		_ = r.SetDeadline(time.Now().Add(5 * time.Minute))
		wg.Go(func() {
			p := int32(i % 8)
			for n := range rounds {
				mine := fmt.Sprintf("%d-%d", i, n)
				_, _ = r.Write(r.frame(produceReq(9, -1, "t", p, recordtest.Batch(recordtest.Spec{Values: []string{mine}}))))
				put := kmsg.NewPtrProduceResponse()
				put.Version = 9
				if err := r.try(put); err != nil || put.Topics[0].Partitions[0].ErrorCode != 0 {
					t.Errorf("connection %d: %v, %+v", i, err, put)
					return
				}
				_, _ = r.Write(r.frame(fetchReq(12, "t", p, put.Topics[0].Partitions[0].BaseOffset)))
				get := kmsg.NewPtrFetchResponse()
				get.Version = 12
				if err := r.try(get); err != nil || !strings.Contains(string(get.Topics[0].Partitions[0].RecordBatches), mine) {
					t.Errorf("connection %d does not read what it wrote: %v", i, err)
					return
				}
			}
		})
	}
	wg.Wait()
	for _, r := range resting {
		ask[*kmsg.ApiVersionsResponse](r, kmsg.NewPtrApiVersionsRequest())
	}
}

// try reads an answer in a goroutine that must not end the test.
func (r *raw) try(resp kmsg.Response) error {
	var size [4]byte
	if _, err := io.ReadFull(r, size[:]); err != nil {
		return err
	}
	b := make([]byte, binary.BigEndian.Uint32(size[:]))
	if _, err := io.ReadFull(r, b); err != nil {
		return err
	}
	b = b[4:]
	if resp.IsFlexible() {
		b = b[1:]
	}
	return resp.ReadFrom(b)
}
