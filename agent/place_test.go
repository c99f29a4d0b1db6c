package agent

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/discovery"
)

// The data folder of an agent was removed while it ran: publishes were answered
// for eight seconds, /status had no alarm, and after the restart offsets began at
// 0 again.
func TestDataFolderGone(t *testing.T) {
	_, hosts := realHosts(t, 1)
	one := hosts[0]
	one.create("t", 1)
	cl := client(t, one, kgo.RecordRetries(0), kgo.DisableIdempotentWrite())
	produce(t, cl, "t", 0, "kept")
	if err := os.RemoveAll(one.dir); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := shortly()
	defer cancel()
	if err := cl.ProduceSync(ctx, &kgo.Record{Topic: "t", Value: []byte("lost")}).FirstErr(); !errors.Is(err, kerr.KafkaStorageError) {
		t.Fatalf("after it: %v, want KAFKA_STORAGE_ERROR", err)
	}
	one.await("alarms", func() bool { return one.hasAlarm("data_dir: ") && one.hasAlarm("is offline") })
}

// The lock was removed by hand and taken by a process that knows no other.
func TestDataFolderTaken(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	if err := os.WriteFile(filepath.Join(one.dir, "identity.json"), []byte(`{"id":"9","nonce":"other"}`), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := one.wait(); !errors.Is(err, discovery.ErrFolderTaken) {
		t.Fatalf("ended with %v", err)
	}
}
