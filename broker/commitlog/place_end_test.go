package commitlog

import (
	"errors"
	"strings"
	"testing"

	"sidestream/broker/disk"
)

// The segment files of a log were removed under a running broker, which found out
// and went offline. After its restart the log began behind its last recovery point
// only, up to a minute back: offsets were given twice, and a group that stood behind
// them skipped what was written there.
func TestNoOffsetIsGivenAgainAfterTheFilesWent(t *testing.T) {
	for name, lose := range map[string]func(name string) bool{
		"all segments":     func(name string) bool { return strings.HasSuffix(name, logSuffix) },
		"the active one":   func(name string) bool { return false }, // below
		"and their checks": func(name string) bool { return strings.HasSuffix(name, logSuffix) || name == checkpointFile },
	} {
		t.Run(name, func(t *testing.T) {
			fsys := newDisk(t)
			must(t, fsys.MkdirAll("/data", 0o755))
			cfg := smallConfig()
			cfg.CheckpointBytes = 64 << 20
			l, err := Open(fsys, "/data/orders-0", cfg, Options{})
			must(t, err)
			for range 40 { // over several segments
				if _, _, err := l.Append([][]byte{batch(valueAt(0))}, 1, testStart); err != nil {
					t.Fatal(err)
				}
			}
			_, err = l.Flush()
			must(t, err)
			for range 2 { // and some that no recovery point and no index knows of
				if _, _, err := l.Append([][]byte{batch("v")}, 1, testStart); err != nil {
					t.Fatal(err)
				}
				_, err = l.Flush()
				must(t, err)
			}
			end := l.EndOffset()
			active := l.path(l.active().base, logSuffix)
			entries, err := fsys.ReadDir("/data/orders-0")
			must(t, err)
			for _, e := range entries {
				if path := "/data/orders-0/" + e.Name(); lose(e.Name()) || name == "the active one" && path == active {
					must(t, fsys.Remove(path))
				}
			}
			l.checked.Store(0)
			if err := l.Check(); !errors.Is(err, disk.ErrGone) {
				t.Fatalf("%v", err)
			}
			_ = l.Close() // it is offline
			l, err = Open(fsys, "/data/orders-0", smallConfig(), Options{})
			must(t, err)
			defer l.Close()
			at, _, err := l.Append([][]byte{batch("after")}, 2, testStart)
			must(t, err)
			if at < end {
				t.Errorf("offset %d is given again: the log had gone to %d", at, end)
			}
		})
	}
}
