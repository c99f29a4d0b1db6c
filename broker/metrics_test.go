package broker_test

import (
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus"

	"sidestream/broker"
	"sidestream/broker/disk"
	"sidestream/broker/record/recordtest"
)

func TestMetricsTellWhatHappened(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	w := &world{t: t, cfg: broker.DefaultConfig(), cluster: newFakeCluster(), reg: reg}
	w.cfg.ID, w.cfg.Listen, w.cfg.DataDir = selfID, "127.0.0.1:0", t.TempDir()
	w.open()
	t.Cleanup(w.close)
	w.topic("t", 2, nil)
	r := w.dial()
	r.put("t", recordtest.Batch(recordtest.Spec{Values: []string{"a", "b"}}))
	r.put("unknown", recordtest.Batch(recordtest.Spec{}))
	r.get(fetchReq(12, "t", 0, 0))
	families, err := reg.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			name := f.GetName()
			for _, l := range m.GetLabel() {
				name += "/" + l.GetValue()
			}
			switch {
			case m.GetCounter() != nil:
				got[name] = m.GetCounter().GetValue()
			case m.GetGauge() != nil:
				got[name] = m.GetGauge().GetValue()
			case m.GetHistogram() != nil:
				got[name] = float64(m.GetHistogram().GetSampleCount())
			}
		}
	}
	for name, want := range map[string]float64{
		"sidestream_broker_requests_total/Produce":  2,
		"sidestream_broker_requests_total/Fetch":    1,
		"sidestream_broker_errors_total/3":          1,
		"sidestream_broker_produced_records_total":  2,
		"sidestream_broker_connections/goroutine":   1,
		"sidestream_broker_connections/loop":        0,
		"sidestream_broker_partitions/led":          2,
		"sidestream_broker_partitions/failed":       0,
		"sidestream_broker_alarms":                  0,
		"sidestream_broker_flush_duration_seconds":  1,
		"sidestream_broker_append_duration_seconds": 1,
		"sidestream_broker_request_memory_bytes":    0,
		"sidestream_broker_log_bytes/t":             0, // checked below
		"sidestream_broker_received_bytes_total":    0,
		"sidestream_broker_sent_bytes_total":        0,
	} {
		switch name {
		case "sidestream_broker_log_bytes/t", "sidestream_broker_received_bytes_total", "sidestream_broker_sent_bytes_total":
			if got[name] <= 0 {
				t.Errorf("%s = %v, want more than 0", name, got[name])
			}
		default:
			if got[name] != want {
				t.Errorf("%s = %v, want %v", name, got[name], want)
			}
		}
	}
}

// Metrics are asked for while the data folder is still being loaded: an agent
// answers before its broker is open.
func TestMetricsWhileTheFolderIsLoaded(t *testing.T) {
	w := &world{t: t, cfg: broker.DefaultConfig(), cluster: newFakeCluster()}
	w.cfg.ID, w.cfg.Listen, w.cfg.DataDir = selfID, "127.0.0.1:0", t.TempDir()
	w.open()
	t.Cleanup(func() { w.close() })
	w.topic("t", 20, nil)
	w.close()

	reg := prometheus.NewRegistry()
	w.reg = reg
	counted := func() bool {
		families, err := reg.Gather()
		if err != nil {
			t.Error(err)
		}
		for _, f := range families {
			if f.GetName() == "sidestream_broker_partitions" {
				return true
			}
		}
		return false
	}
	var once sync.Once
	w.fs = disk.WithFaults(disk.OS, func(op disk.Op) error {
		if op.Kind == disk.OpReadDir {
			once.Do(func() {
				if counted() {
					t.Errorf("what is held is counted while %s is read", op.Name)
				}
			})
		}
		return nil
	})
	w.open()
	once.Do(func() { t.Error("nothing was read") })
	if !counted() {
		t.Error("what is held is not counted")
	}
}
