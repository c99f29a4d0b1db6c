package compat

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
)

// startConsul runs a Consul server and returns the address of its HTTP API. The
// binary is the consul on the PATH, else the one that ops/consul has built.
func startConsul(t *testing.T) string {
	t.Helper()
	binary, err := exec.LookPath("consul")
	if err != nil {
		binary, err = filepath.Abs("../../.cache/consul/consul")
		if err == nil {
			_, err = os.Stat(binary)
		}
	}
	if err != nil {
		leaveOut(t, fmt.Errorf("groups need Consul: put a consul binary on the PATH or run make consul: %w", errMissing))
	}
	addrs := freeAddresses(t, 3)
	ports := make([]int, len(addrs))
	for i, addr := range addrs {
		_, port, _ := strings.Cut(addr, ":")
		if ports[i], err = strconv.Atoi(port); err != nil {
			t.Fatal(err)
		}
	}
	dir := t.TempDir()
	config, err := json.Marshal(map[string]any{
		"node_name": "test", "data_dir": filepath.Join(dir, "data"), "bind_addr": "127.0.0.1", "client_addr": "127.0.0.1",
		"ports": map[string]int{
			"http": ports[0], "server": ports[1], "serf_lan": ports[2],
			"serf_wan": -1, "dns": -1, "grpc": -1, "grpc_tls": -1,
		},
		"server": true, "bootstrap_expect": 1, "performance": map[string]any{"raft_multiplier": 1},
		"connect": map[string]any{"enabled": false}, "disable_update_check": true,
	})
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "config.json")
	if err := os.WriteFile(file, config, 0o600); err != nil {
		t.Fatal(err)
	}
	p := launch(t, "consul", exec.Command(binary, "agent", "-config-file", file))
	p.ready(t.Context(), func(ctx context.Context) error {
		// A session takes a leader and the node's entry in the catalog.
		return call(ctx, "PUT", "http://"+addrs[0]+"/v1/session/create", map[string]string{"TTL": "10s"}, nil)
	})
	return addrs[0]
}
