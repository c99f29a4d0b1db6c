package main

import (
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"

	"sidestream/broker/record"
	"sidestream/broker/record/recordtest"
)

// A segment with a batch that unpacks to a gigabyte made the dump take several:
// its header is printed, its records are not, and the batches behind it are.
func TestDumpLeavesOutWhatUnpacksToTooMuch(t *testing.T) {
	for _, f := range recordtest.Forms {
		for name, bomb := range map[string][]byte{"large": f.Bomb(2, 16<<20), "many": f.Bomb(20_000, 1)} {
			behind := recordtest.Batch(recordtest.Spec{Values: []string{"behind"}})
			record.Stamp(behind, 100_000, 0)
			path := filepath.Join(t.TempDir(), "00000000000000000000.log")
			if err := os.WriteFile(path, append(bomb, behind...), 0o600); err != nil {
				t.Fatal(err)
			}
			var out strings.Builder
			cmd := newLogDump()
			cmd.SetArgs([]string{path, "--records", "--max-unpacked", "1000000"})
			cmd.SetOut(&out)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err := cmd.Execute()
			runtime.ReadMemStats(&after)
			if err != nil || strings.Count(out.String(), "records left out") != 1 || !strings.Contains(out.String(), `value "behind"`) {
				t.Errorf("%s, %s: %v\n%s", f.Name, name, err, out.String())
			}
			if grown := after.TotalAlloc - before.TotalAlloc; grown > 16<<20 {
				t.Errorf("%s, %s: %d bytes were allocated", f.Name, name, grown)
			}
		}
	}
}
