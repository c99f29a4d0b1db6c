package agent

import (
	"strings"
	"testing"

	"sidestream/broker"
)

func TestReloadChangesTheQuota(t *testing.T) {
	h := newTestCluster(t).host("a")
	if a, err := New(h.cfg, newTestCluster(t).store.Client(), nil); err != nil || a.Reload(h.cfg) == nil {
		t.Errorf("before the broker is open it is said to be done (%v)", err)
	}
	h = newTestCluster(t).started("a")[0]
	cfg := h.cfg
	cfg.Broker.Quota = broker.QuotaConfig{ProduceBytesPerSecond: 1000, FetchClients: map[string]string{"x": "5"}}
	if err := h.Reload(cfg); err != nil {
		t.Fatal(err)
	}
	inForce := func() broker.QuotaConfig {
		h.host.mu.Lock()
		defer h.host.mu.Unlock()
		return h.host.quota
	}
	if got := inForce(); got.ProduceBytesPerSecond != 1000 || got.FetchClients["x"] != "5" {
		t.Errorf("in force: %+v", got)
	}
	cfg.Broker.Quota.ProduceBytesPerSecond = -1
	if err := h.Reload(cfg); err == nil || !strings.HasPrefix(err.Error(), "broker.quota.produce_bytes_per_second: ") {
		t.Errorf("a bad quota: %v", err)
	}
	if got := inForce(); got.ProduceBytesPerSecond != 1000 {
		t.Errorf("after a bad one: %+v", got)
	}
}
