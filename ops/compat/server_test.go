package compat

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// server is a running development server.
type server struct {
	broker string // address
	dir    string // the data folder
	stop   func() // cleanly, once; at the test's end by itself
}

// startBroker runs the real binary and returns its broker's address.
func startBroker(t *testing.T) string {
	t.Helper()
	return startServer(t).broker
}

// sidestream is the path of the binary under test.
func sidestream(t *testing.T) string {
	t.Helper()
	binary := os.Getenv("SIDESTREAM_BIN")
	if binary == "" {
		binary = "../../bin/sidestream"
	}
	if _, err := os.Stat(binary); err != nil {
		t.Fatalf("no binary to test (run make build, or set SIDESTREAM_BIN): %v", err)
	}
	return binary
}

func startServer(t *testing.T) server {
	t.Helper()
	binary := sidestream(t)
	dir := t.TempDir()
	log, err := os.Create(filepath.Join(dir, "dev.log"))
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "dev", "--free-ports", "--data-dir", dir)
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	stop := sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		select {
		case err := <-exited:
			if err != nil {
				t.Errorf("sidestream dev stopped badly: %v", err)
			}
		case <-time.After(20 * time.Second):
			_ = cmd.Process.Kill()
			<-exited
			t.Error("sidestream dev did not stop")
		}
		if text, err := os.ReadFile(log.Name()); err == nil && t.Failed() {
			t.Logf("sidestream dev logged:\n%s", text)
		}
		_ = log.Close()
	})
	t.Cleanup(stop)
	for range 600 {
		var info struct{ Broker string }
		text, err := os.ReadFile(filepath.Join(dir, "dev.json"))
		if err == nil && json.Unmarshal(text, &info) == nil && info.Broker != "" {
			return server{info.Broker, dir, stop}
		}
		select {
		case err := <-exited:
			exited <- err
			t.Fatalf("sidestream dev ended: %v", err)
		case <-time.After(50 * time.Millisecond):
		}
	}
	t.Fatal("sidestream dev did not serve within 30 s")
	return server{}
}

// createTopic makes a topic and waits until all its partitions have a leader.
func createTopic(ctx context.Context, t *testing.T, broker, topic string, partitions int32) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	admin := kadm.NewClient(client)
	if _, err := admin.CreateTopic(ctx, partitions, 1, nil, topic); err != nil {
		t.Fatalf("creating topic %s: %v", topic, err)
	}
	for ctx.Err() == nil {
		topics, err := admin.ListTopics(ctx, topic)
		if err != nil {
			t.Fatal(err)
		}
		if led(topics[topic], int(partitions)) {
			return
		}
		time.Sleep(50 * time.Millisecond) // nothing announces a leader to a client
	}
	t.Fatal(fmt.Errorf("topic %s has no leaders: %w", topic, ctx.Err()))
}

func led(topic kadm.TopicDetail, partitions int) bool {
	if len(topic.Partitions) != partitions {
		return false
	}
	for _, p := range topic.Partitions {
		if p.Leader < 0 || p.Err != nil {
			return false
		}
	}
	return true
}
