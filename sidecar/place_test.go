package sidecar

import (
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

// A sidecar's data folder was removed while it ran. ?ack=spool was 202 and a
// restart had nothing, so was an Idempotency-Key, and nothing told of it. A
// message that asks for no disk passes.
func TestDataFolderGone(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"removed": os.RemoveAll,
		"moved":   func(dir string) error { return os.Rename(dir, dir+".aside") },
		"replaced": func(dir string) error {
			return errors.Join(os.Rename(dir, dir+".aside"), os.Mkdir(dir, 0o700))
		},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(c *Config) { c.AutoCreateTopics = true })
			for _, a := range []answer{
				r.do("POST", "/topics/t?ack=spool", "before"), r.do("POST", "/topics/t", "before", "Idempotency-Key: a"),
				r.do("POST", "/topics/t", "pulled"),
			} {
				if a.status/100 != 2 {
					t.Fatal(a)
				}
			}
			pulled := r.do("POST", "/groups/g/topics/t/pull?wait=5s&from=earliest", "")
			if pulled.status != 200 || !strings.Contains(string(pulled.body), "receipt") {
				t.Fatal(pulled)
			}
			if err := lose(r.cfg.DataDir); err != nil {
				t.Fatal(err)
			}
			time.Sleep(20 * time.Millisecond)
			for _, c := range []struct {
				what string
				a    answer
			}{
				{"ack=spool", r.do("POST", "/topics/t?ack=spool", "lost")},
				{"Idempotency-Key", r.do("POST", "/topics/t", "lost", "Idempotency-Key: b")},
				{"ack=auto", r.do("POST", "/groups/auto/topics/t/pull?wait=5s&ack=auto&from=earliest", "")},
			} {
				if c.a.status != 503 || c.a.code() != api.CodeDiskUnavailable {
					t.Errorf("%s: %v", c.what, c.a)
				}
			}
			if a := r.do("POST", "/groups/g/topics/t/ack", `{"receipts":["`+receiptIn(t, pulled)+`"]}`); strings.Contains(string(a.body), `"acked":1`) || !strings.Contains(string(a.body), string(api.CodeUnknownOutcome)) {
				t.Errorf("an ack: %v", a)
			}
			if a := r.do("POST", "/topics/t", "live"); a.status != 200 {
				t.Errorf("a message that needs no disk: %v", a)
			}
			for end := time.Now().Add(20 * time.Second); ; time.Sleep(50 * time.Millisecond) {
				ready := r.do("GET", "/readyz", "")
				text := string(ready.body)
				if ready.status == 503 && strings.Contains(text, "data_dir: folder "+r.cfg.DataDir) && strings.Contains(text, "spool: ") && strings.Contains(text, "Idempotency-Key") {
					break
				}
				if time.Now().After(end) {
					t.Fatalf("readyz: %v", ready)
				}
			}
			if a := r.do("GET", "/status", ""); !strings.Contains(string(a.body), "was removed, moved or replaced while it was in use") {
				t.Errorf("status: %v", a)
			}
			if name == "replaced" {
				if left, err := os.ReadDir(r.cfg.DataDir); err != nil || len(left) > 0 {
					t.Errorf("in the folder in its place: %v, %v", left, err)
				}
			}
		})
	}
}

func receiptIn(t *testing.T, a answer) string {
	t.Helper()
	var body struct {
		Messages []struct{ Receipt string }
	}
	if err := json.Unmarshal(a.body, &body); err != nil || len(body.Messages) == 0 {
		t.Fatalf("%v: %v", a, err)
	}
	return body.Messages[0].Receipt
}

// The lock was removed by hand: a second sidecar had no difficulty to start on the
// same folder.
func TestASecondSidecarOnAFolderWhoseLockIsGone(t *testing.T) {
	r := newRig(t, nil)
	if err := os.Remove(filepath.Join(r.cfg.DataDir, "lock")); err != nil {
		t.Fatal(err)
	}
	second, err := New(r.cfg, r.store, nil)
	if err != nil {
		t.Fatal(err)
	}
	if err := second.Run(t.Context()); !errors.Is(err, discovery.ErrFolderTaken) {
		t.Fatalf("the second ended with %v", err)
	}
	for end := time.Now().Add(20 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(r.cfg.DataDir, "lock")); err == nil {
			break
		}
		if time.Now().After(end) {
			t.Fatal("the lock is not made again")
		}
	}
}
