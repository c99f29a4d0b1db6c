package broker_test

import (
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker"
)

func TestATakenPortIsAClearError(t *testing.T) {
	w := start(t)
	cfg := w.cfg
	cfg.DataDir, cfg.Listen = t.TempDir(), w.b.Addr()
	b, err := broker.Open(cfg, newFakeCluster(), broker.Options{})
	if err != nil {
		t.Fatal(err)
	}
	if err := b.Serve(); err == nil || !strings.Contains(err.Error(), w.b.Addr()) || !strings.Contains(err.Error(), "in use") {
		t.Errorf("got %v, want an error that names the address", err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Error(err)
	}
	if err := b.Close(t.Context()); err != nil {
		t.Errorf("closing twice: %v", err)
	}
}

func TestARestartTakesTheSamePortAgain(t *testing.T) {
	w := start(t)
	w.topic("t", 1, nil)
	r := w.dial()
	ask[*kmsg.ApiVersionsResponse](r, kmsg.NewPtrApiVersionsRequest())
	w.cfg.Listen = w.b.Addr()
	w.close() // with a connection open, which leaves its port in TIME_WAIT
	w.open()
	ask[*kmsg.ApiVersionsResponse](w.dial(), kmsg.NewPtrApiVersionsRequest())
}

func TestAdvertiseIsApartFromListenAndTheBrokerKnowsItself(t *testing.T) {
	w := start(t, func(c *broker.Config) { c.Advertise = "broker.example:19092" })
	if host, port := w.b.Advertised(); host != "broker.example" || port != 19092 {
		t.Errorf("advertised %s:%d", host, port)
	}
	w.cluster.change(func(v *broker.View) { v.Brokers = nil }) // a cluster that does not know us yet
	got := ask[*kmsg.MetadataResponse](w.dial(), kmsg.NewPtrMetadataRequest())
	if len(got.Brokers) != 1 || got.Brokers[0].NodeID != selfID || got.Brokers[0].Host != "broker.example" || got.Brokers[0].Port != 19092 {
		t.Errorf("brokers: %+v", got.Brokers)
	}
}
