package main

import (
	"bytes"
	"errors"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"sidestream/examples/pageviews"
)

// build builds the binary that the demo runs.
func build(t *testing.T) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "sidestream")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", path, "sidestream/ops/sidestream")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("building sidestream: %v\n%s", err, out)
	}
	return path
}

// The demo passes on the page views, and fails with the reason on each way in
// which its input can be broken.
func TestDemo(t *testing.T) {
	binary := build(t)
	lines := reference()
	i, j := sameVisitor(t, lines)
	for _, c := range []struct {
		name   string
		broken func([][]byte) [][]byte
		fails  []string // lines of the report
	}{
		{"whole", func(l [][]byte) [][]byte { return l }, nil},
		{"a line dropped", func(l [][]byte) [][]byte { return slices.Delete(l, i, i+1) },
			[]string{"FAIL  events         9998 of 9999", "FAIL  none missing   1 missing", "FAIL  bytes"}},
		{"a line doubled", func(l [][]byte) [][]byte { return slices.Insert(l, i, l[i]) },
			[]string{"FAIL  events         10000 of 9999", "FAIL  none twice     1 twice", "FAIL  bytes"}},
		{"two lines swapped", func(l [][]byte) [][]byte { l[i], l[j] = l[j], l[i]; return l },
			[]string{"FAIL  order          1753 visitors, 1 out of order"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			var out bytes.Buffer
			start := time.Now()
			d := demo{binary: binary, dir: t.TempDir(), out: &out, reference: pageviews.Data,
				input: bytes.Join(c.broken(slices.Clone(lines)), []byte("\n"))}
			err := d.run(t.Context())
			t.Logf("took %v", time.Since(start))
			if broken := len(c.fails) > 0; broken != errors.Is(err, errChecks) || !broken && err != nil {
				t.Errorf("error %v\n%s", err, out.String())
			}
			for _, want := range c.fails {
				if !strings.Contains(out.String(), want) {
					t.Errorf("no %q in\n%s", want, out.String())
				}
			}
			if len(c.fails) == 0 && strings.Count(out.String(), "ok  ") != 5+2+1+5+5 {
				t.Errorf("some check was not made:\n%s", out.String())
			}
		})
	}
}
