package broker_test

import (
	"os"
	"path/filepath"
	"testing"

	"sidestream/broker"
	"sidestream/broker/disk"
)

func TestHeldInReadsWhatTheBrokerHolds(t *testing.T) {
	if h, err := broker.HeldIn(disk.OS, filepath.Join(t.TempDir(), "absent")); err != nil || len(h) != 0 {
		t.Errorf("of a folder that is not there: %+v, %v", h, err)
	}
	w := start(t)
	id := w.topic("t", 2, nil)
	w.close()
	_ = os.Mkdir(filepath.Join(w.cfg.DataDir, "x-0.0190c5f2-8f5e-7d3a-9c41-2b6f0e7a1d58-delete"), 0o755)
	_ = os.Mkdir(filepath.Join(w.cfg.DataDir, "something"), 0o755)
	h, err := broker.HeldIn(disk.OS, t.TempDir(), w.cfg.DataDir)
	if err != nil || len(h) != 2 || h[0].ID != id || h[0].Topic != "t" || h[0].Partition+h[1].Partition != 1 || h[0].Count != 2 {
		t.Errorf("held: %+v, %v", h, err)
	}
	if err := os.WriteFile(filepath.Join(w.cfg.DataDir, "t-0", "partition.metadata"), []byte("version: 7\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := broker.HeldIn(disk.OS, w.cfg.DataDir); err == nil {
		t.Error("a description that cannot be read is passed over")
	}
}
