package main

import (
	"strings"
	"testing"

	"sidestream/ops/sidestream/settings"
)

// Bytes are written alike wherever a setting takes them.
func TestBytesHaveUnits(t *testing.T) {
	load := func(path, text string) (*sidecarSettings, error) {
		t.Helper()
		cfg := defaultSidecar()
		_, err := settings.Load(cfg, settings.Source{Flags: map[string]string{settings.FlagName(path): text}})
		return cfg, err
	}
	for text, want := range map[string]int64{
		"7B": 7, "2kB": 2000, "2KB": 2000, "2MB": 2e6, "2GB": 2e9, "2KiB": 2 << 10, "2MiB": 2 << 20, "2GiB": 2 << 30, "1_000kB": 1e6, "5MiB/s": 5 << 20,
	} {
		if cfg, err := load("limits.bytes_per_second", text); err != nil || cfg.Limits.BytesPerSecond != want {
			t.Errorf("bytes_per_second %s: %d, %v", text, cfg.Limits.BytesPerSecond, err)
		}
		cfg, err := load("limits.topics", "x="+text)
		if err == nil {
			err = cfg.Limits.Validate()
		}
		if err != nil {
			t.Errorf("topics x=%s: %v", text, err)
		}
	}
	for path, text := range map[string]string{
		"limits.messages_per_second": "5MiB", // no bytes
		"limits.bytes_per_second":    "9000000000GiB",
		"spool.max_bytes":            "1GiB/s",
		"max_request_bytes":          "MiB",
	} {
		if _, err := load(path, text); err == nil || !strings.Contains(err.Error(), "use a whole number") {
			t.Errorf("%s %s: %v", path, text, err)
		}
	}
	if cfg, err := load("max_request_memory", "1GiB"); err != nil || cfg.MaxRequestMemory != 1<<30 {
		t.Errorf("max_request_memory: %d, %v", cfg.MaxRequestMemory, err)
	}
}
