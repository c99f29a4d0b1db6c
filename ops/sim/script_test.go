package sim

import (
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "write the golden files anew")

// The scripts are known accidents of replicated logs, told step by step; what
// happens in each is in the golden file beside it.
func TestScripts(t *testing.T) {
	scripts, err := filepath.Glob("testdata/*.script")
	if err != nil || len(scripts) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, path := range scripts {
		t.Run(strings.TrimSuffix(filepath.Base(path), ".script"), func(t *testing.T) {
			script, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			var told strings.Builder
			if err := Script(string(script), func(format string, args ...any) { fmt.Fprintf(&told, format, args...) }); err != nil {
				t.Fatalf("%v\n%s", err, told.String())
			}
			golden := strings.TrimSuffix(path, ".script") + ".golden"
			if *update {
				if err := os.WriteFile(golden, []byte(told.String()), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(golden)
			if err != nil {
				t.Fatal(err)
			}
			if told.String() != string(want) {
				t.Errorf("what happens is another:\n%s\nit was:\n%s", told.String(), want)
			}
		})
	}
}
