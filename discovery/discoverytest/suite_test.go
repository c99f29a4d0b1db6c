package discoverytest_test

import (
	"testing"
	"time"

	"go.uber.org/goleak"

	"sidestream/discovery"
	"sidestream/discovery/discoverytest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestMemory(t *testing.T) {
	newStore := func(t *testing.T) discoverytest.Harness {
		m, err := discovery.NewMemory(discovery.MemoryOptions{SessionTTL: time.Second, CheckTTL: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { m.Close() })
		return discoverytest.Harness{
			Open:       func(*testing.T) discovery.Store { return m.Client() },
			OpenOther:  func(*testing.T) discovery.Store { return m.ClientOf("main2") },
			SessionTTL: time.Second, CheckTTL: time.Second,
			Down: func(*testing.T) func() {
				m.SetDown(true)
				return func() { m.SetDown(false) }
			},
			Wipe: func(*testing.T) { m.Wipe() },
		}
	}
	discoverytest.Run(t, newStore, newStore)
}

func TestConsul(t *testing.T) {
	consul := discoverytest.Start(t, "")
	newStore := func(t *testing.T) discoverytest.Harness {
		cfg := consul.Config("test-" + discovery.NewUUID())
		open := func(t *testing.T, cfg discovery.ConsulConfig) discovery.Store {
			s, err := discovery.NewConsul(cfg, nil)
			if err != nil {
				t.Fatal(err)
			}
			return s
		}
		other := cfg
		other.Cluster += "2"
		return discoverytest.Harness{
			Open:       func(t *testing.T) discovery.Store { return open(t, cfg) },
			OpenOther:  func(t *testing.T) discovery.Store { return open(t, other) },
			SessionTTL: cfg.SessionTTL, CheckTTL: cfg.CheckTTL,
			Down: func(*testing.T) func() {
				consul.Kill()
				return consul.Restart
			},
			Wipe: func(*testing.T) { consul.Wipe() },
		}
	}
	// Down and Wipe come when the tests that share it have ended.
	discoverytest.Run(t, newStore, newStore)
}
