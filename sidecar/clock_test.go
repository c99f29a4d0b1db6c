package sidecar

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"sidestream/discovery/clock"
)

// A sidecar whose folder has a spool and no count of its time says so, and is
// ready all the same.
func TestAClockThatIsNotBelievedIsTold(t *testing.T) {
	r := newRig(t, nil)
	doubted := func() bool { return r.sidecar.clock.Doubt() != "" }
	if doubted() {
		t.Fatalf("in a new folder: %s", r.sidecar.clock.Doubt())
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if r.start(); doubted() {
		t.Fatalf("after a restart: %s", r.sidecar.clock.Doubt())
	}
	if err := r.stop(); err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(r.cfg.DataDir, clock.File)); err != nil {
		t.Fatal(err)
	}
	r.start()
	if _, synchronised := clock.Kernel(); synchronised {
		if doubted() {
			t.Errorf("although the kernel is a witness: %s", r.sidecar.clock.Doubt())
		}
		return
	}
	r.await("ready", func() bool { return r.do("GET", "/readyz", "").status == 200 })
	for _, path := range []string{"/readyz", "/status"} {
		if got := r.do("GET", path, ""); !strings.Contains(string(got.body), "clock: nothing is deleted by time: when the data in this folder was written is not known") {
			t.Errorf("%s: %s", path, got)
		}
	}
	if got := r.do("GET", "/metrics", ""); !strings.Contains(string(got.body), "sidestream_clock_doubted 1") {
		t.Error("the gauge is not set")
	}
}
