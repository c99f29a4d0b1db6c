package offsets

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
)

// The data folder of a sidecar was removed, or moved, while it ran:
// acknowledgements were answered as kept, and the next start had none of them.
func TestLocalGone(t *testing.T) {
	for name, lose := range map[string]func(dir string) error{
		"removed":      os.RemoveAll,
		"moved":        func(dir string) error { return os.Rename(dir, dir+".aside") },
		"file removed": func(dir string) error { return os.Remove(filepath.Join(dir, "positions.db")) },
		"file replaced": func(dir string) error {
			return errors.Join(os.Rename(filepath.Join(dir, "positions.db"), filepath.Join(dir, "aside.db")), os.WriteFile(filepath.Join(dir, "positions.db"), nil, 0o600))
		},
	} {
		t.Run(name, func(t *testing.T) {
			key := Key{"g", "orders", 3}
			for _, how := range []string{"merge", "check"} {
				dir := filepath.Join(t.TempDir(), how)
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
				l := openLocal(t, filepath.Join(dir, "positions.db"))
				if err := l.Merge(t.Context(), key, Position{Topic: "A", Low: 5}); err != nil {
					t.Fatal(err)
				}
				if l.Check(); l.Err() != nil {
					t.Fatal(l.Err())
				}
				if err := lose(dir); err != nil {
					t.Fatal(err)
				}
				if how == "check" {
					l.Check()
					if err := l.Err(); !errors.Is(err, ErrGone) {
						t.Fatalf("it was looked for: %v", err)
					}
				}
				for range 2 {
					if err := l.Merge(t.Context(), key, Position{Topic: "A", Low: 6}); !errors.Is(err, ErrFailed) || !errors.Is(err, ErrGone) {
						t.Fatalf("%s: got %v, want ErrFailed for ErrGone", how, err)
					}
				}
				if err := l.Err(); !errors.Is(err, ErrGone) {
					t.Fatal(err)
				}
			}
		})
	}
}
