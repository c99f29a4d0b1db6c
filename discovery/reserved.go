package discovery

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

const (
	// spareSuffix is what the name of a reserved file's spare ends in.
	spareSuffix = ".spare"
	// reserveStep is what reservations are rounded up to, in bytes.
	reserveStep = 64 << 10
)

// reservedFile is a text file that can be replaced although its disk is full,
// as long as its text is no longer than the reservation, which is at least
// twice the text. Beside it lies a spare whose blocks are allocated already: the
// new text goes there, is synced, and the two exchange their names, so that a
// crash leaves the old text or the new. Texts are padded with spaces, which JSON
// allows, since a file that is cut short gives its blocks back.
//
// A file system that never overwrites in place (btrfs, ZFS) needs room all the
// same, and one that cannot exchange names only has what the old file frees.
// Not safe for concurrent use.
type reservedFile struct {
	path string
	// How far into the two files there may be anything but spaces.
	text, spareText int64
	exchange        func(a, b string) error // of names
	folder          *os.File                // held on to, so that it is missed when it is gone
}

// openReserved readies the file at path, which need not exist, and makes its
// spare if there is none. An error means that the spare could not be made; the
// file can be used, but nothing is reserved yet.
func openReserved(path string) (*reservedFile, error) {
	r := &reservedFile{path: path, exchange: exchange}
	var err error
	if r.folder, err = os.Open(filepath.Dir(path)); err != nil {
		return r, err
	}
	r.text = textIn(path)
	r.spareText = textIn(r.sparePath())
	if err := r.reserve(reservation(r.text)); err != nil {
		return r, fmt.Errorf("reserving room for %s: %w", path, err)
	}
	return r, nil
}

// stay takes hold of the folder that is at the path now, unless that is another's.
func (r *reservedFile) stay() error {
	gone := inPlace(r.folder, filepath.Dir(r.path))
	if gone == nil {
		return nil
	}
	if _, err := os.Lstat(r.path); !errors.Is(err, fs.ErrNotExist) {
		return gone
	}
	folder, err := os.Open(filepath.Dir(r.path))
	if err != nil {
		return errors.Join(gone, err)
	}
	r.close()
	r.folder = folder
	return nil
}

func (r *reservedFile) close() {
	if r.folder != nil {
		_ = r.folder.Close() // nothing was written through it
	}
}

func (r *reservedFile) sparePath() string { return r.path + spareSuffix }

// reservation is how long the spare of a text is.
func reservation(text int64) int64 { return (2*text/reserveStep + 1) * reserveStep }

// textIn is where the file's last byte that is no space ends; 0 when it cannot
// be read, which whoever uses the text has found out before.
func textIn(path string) int64 {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0
	}
	return int64(len(bytes.TrimRight(b, " ")))
}

// write replaces the text; it is durable when write returns. After an error the
// old text is there, or, when only the folder could not be synced, either.
//
// In a folder that was put in the place of the one that was opened nothing is
// written once there is such a file in it: that is another store's. The error is
// ErrFolderGone. Else the folder is ours as the first was: the text is all there is.
func (r *reservedFile) write(text []byte) error {
	if err := r.stay(); err != nil {
		return err
	}
	if err := r.writeSpare(text); err != nil {
		return err
	}
	err := r.exchange(r.sparePath(), r.path)
	switch {
	case err == nil:
		r.text, r.spareText = int64(len(text)), r.text
	case errors.Is(err, fs.ErrNotExist), errors.Is(err, errors.ErrUnsupported), errors.Is(err, syscall.EINVAL):
		if err := os.Rename(r.sparePath(), r.path); err != nil {
			return err
		}
		r.text, r.spareText = int64(len(text)), 0
	default:
		return err
	}
	if err := syncDir(filepath.Dir(r.path)); err != nil {
		return err
	}
	if err := inPlace(r.folder, filepath.Dir(r.path)); err != nil {
		return err // the text may lie where nobody finds it
	}
	// The text is written: that the next one may lack room is no failure of this.
	_ = r.reserve(reservation(int64(len(text))))
	return nil
}

// writeSpare makes the spare hold the text and spaces after it.
func (r *reservedFile) writeSpare(text []byte) error {
	f, err := os.OpenFile(r.sparePath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	size, err := f.Seek(0, io.SeekEnd)
	if err != nil {
		return err
	}
	old := min(r.spareText, size)
	r.spareText = max(old, int64(len(text))) // until it is known to be less
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	if _, err := f.WriteAt(spaces(old-int64(len(text))), int64(len(text))); err != nil {
		return err
	}
	r.spareText = int64(len(text))
	if err := f.Sync(); err != nil {
		return err
	}
	return f.Close()
}

// reserve makes the spare at least that long.
func (r *reservedFile) reserve(size int64) (err error) {
	f, err := os.OpenFile(r.sparePath(), os.O_RDWR|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	have, err := f.Seek(0, io.SeekEnd)
	if err != nil || have >= size {
		return err
	}
	if _, err := f.Write(spaces(size - have)); err != nil {
		return err // what was written of it stays reserved
	}
	return f.Sync()
}

func spaces(n int64) []byte { return bytes.Repeat([]byte{' '}, int(max(n, 0))) }

func syncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	return d.Sync()
}
