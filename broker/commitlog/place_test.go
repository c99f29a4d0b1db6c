package commitlog

import (
	"errors"
	"os"
	"testing"

	"sidestream/broker/disk"
)

// The folder of a log was removed, or moved, while it was open. Every append and
// every sync went on to succeed, on files that no restart finds: the producer was
// told that its records are on the disk, and offsets began at 0 again.
func TestGone(t *testing.T) {
	for name, lose := range map[string]func(t *testing.T, fsys disk.FS, root string){
		"removed":                     func(t *testing.T, fsys disk.FS, root string) { must(t, fsys.RemoveAll(root+"/orders-0")) },
		"moved":                       func(t *testing.T, fsys disk.FS, root string) { must(t, fsys.Rename(root+"/orders-0", root+"/aside")) },
		"moved with what is above it": func(t *testing.T, fsys disk.FS, root string) { must(t, fsys.Rename(root, root+"-aside")) },
		"replaced": func(t *testing.T, fsys disk.FS, root string) {
			must(t, fsys.Rename(root+"/orders-0", root+"/aside"))
			l, err := Open(fsys, root+"/orders-0", smallConfig(), Options{})
			must(t, err)
			must(t, l.Close())
		},
		"its file removed": func(t *testing.T, fsys disk.FS, root string) {
			must(t, fsys.Remove(root+"/orders-0/00000000000000000000.log"))
		},
	} {
		for kind, make := range map[string]func() (disk.FS, string){
			"mem": func() (disk.FS, string) { return newDisk(t), "/data" },
			"os":  func() (disk.FS, string) { return disk.OS, t.TempDir() + "/data" },
		} {
			for call, use := range map[string]func(l *Log) error{
				"flush": func(l *Log) error {
					if _, _, err := l.Append([][]byte{batch("lost")}, 1, testStart); err != nil {
						t.Fatalf("append: %v", err) // it costs nothing, and finds nothing out
					}
					_, err := l.Flush()
					return err
				},
				"check": func(l *Log) error { return l.Check() },
				"roll": func(l *Log) error {
					for range 30 {
						if _, _, err := l.Append([][]byte{batch(valueAt(0))}, 1, testStart); err != nil {
							return err
						}
					}
					return nil
				},
				"delete": func(l *Log) error { return l.DeleteBefore(2) },
			} {
				t.Run(name+"/"+kind+"/"+call, func(t *testing.T) {
					fsys, root := make()
					must(t, fsys.MkdirAll(root, 0o755))
					l, err := Open(fsys, root+"/orders-0", smallConfig(), Options{})
					must(t, err)
					defer l.Close()
					for range 3 {
						if _, _, err := l.Append([][]byte{batch("kept")}, 1, testStart); err != nil {
							t.Fatal(err)
						}
					}
					_, err = l.Flush()
					must(t, err)
					must(t, l.Check())
					l.checked.Store(0)
					lose(t, fsys, root)
					if err := use(l); !errors.Is(err, ErrOffline) || !errors.Is(err, disk.ErrGone) {
						t.Fatalf("got %v, want ErrOffline for ErrGone", err)
					}
					if !errors.Is(l.Offline(), disk.ErrGone) {
						t.Fatalf("offline for %v", l.Offline())
					}
					if _, _, err := l.Append([][]byte{batch("refused")}, 1, testStart); !errors.Is(err, ErrOffline) {
						t.Fatalf("append after it: %v", err)
					}
					if err := l.DeleteBefore(1); !errors.Is(err, ErrOffline) {
						t.Fatalf("delete after it: %v", err)
					}
					if name == "replaced" { // what has its place is another's
						if size, err := sizeOf(fsys, root+"/orders-0/00000000000000000000.log"); err != nil || size != 0 {
							t.Fatalf("the new log has %d bytes, %v", size, err)
						}
					}
					s, err := l.Read(1, 1<<20, l.EndOffset()) // what is open is read on
					must(t, err)
					s.Release()
				})
			}
		}
	}
}

func sizeOf(fsys disk.FS, name string) (int64, error) {
	f, err := fsys.OpenFile(name, os.O_RDONLY, 0)
	if err != nil {
		return 0, err
	}
	defer f.Close()
	return f.Size()
}

// BenchmarkCheck is what a flush pays for the look at the path.
func BenchmarkCheck(b *testing.B) {
	l, err := Open(disk.OS, b.TempDir(), DefaultConfig(), Options{})
	must(b, err)
	defer l.Close()
	b.Run("look", func(b *testing.B) {
		for b.Loop() {
			l.checked.Store(0)
			must(b, l.Check())
		}
	})
	b.Run("again", func(b *testing.B) {
		for b.Loop() {
			must(b, l.Check())
		}
	})
}
