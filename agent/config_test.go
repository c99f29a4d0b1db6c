package agent

import (
	"strings"
	"testing"
	"time"
)

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Errorf("the defaults are not valid: %v", err)
	}
	for key, change := range map[string]func(*Config){
		"data_dir":            func(c *Config) { c.DataDir = "" },
		"id":                  func(c *Config) { c.ID = -1 },
		"listen":              func(c *Config) { c.Listen = "here" },
		"default_partitions":  func(c *Config) { c.DefaultPartitions = 0 },
		"default_replication": func(c *Config) { c.DefaultReplication = 3 },
		"store_timeout":       func(c *Config) { c.StoreTimeout = -time.Second },
		"start_wait":          func(c *Config) { c.StartWait = 0 },
		"shutdown_timeout":    func(c *Config) { c.ShutdownTimeout = 0 },
		"broker.advertise":    func(c *Config) { c.Broker.Listen = ":9092" },
		"broker.loops":        func(c *Config) { c.Broker.Loops = 0 },
	} {
		c := DefaultConfig()
		change(&c)
		err := c.Validate()
		if err == nil || !strings.HasPrefix(err.Error(), key+":") || !strings.Contains(err.Error(), "got") && !strings.Contains(err.Error(), "is empty") {
			t.Errorf("%s: got %v", key, err)
		}
		if _, newErr := New(c, nil, nil); newErr == nil {
			t.Errorf("%s: New took it", key)
		}
	}
}
