package offsets

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"go.uber.org/zap"
)

// ErrGone: the file is no longer at its path, so that the next start finds
// nothing of what is written to it.
var ErrGone = errors.New("it was removed, moved or replaced while it was in use")

// inPlace is ErrGone when the path leads to another file than the open one, or to
// none. A path that cannot be looked at says nothing.
func inPlace(f *os.File, path string) error {
	there, err := os.Stat(path)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("%s: %w", path, ErrGone)
	}
	held, heldErr := f.Stat()
	if err == nil && heldErr == nil && !os.SameFile(there, held) {
		return fmt.Errorf("%s: %w", path, ErrGone)
	}
	return nil
}

// Check looks whether the file is still at its path, where nothing is written to
// it; call it each second or so. When it is not, the store takes no more, and Err
// says so. A commit looks by itself.
func (l *Local) Check() {
	l.mu.Lock()
	looks := !l.closed && l.failed == nil
	l.mu.Unlock()
	if !looks {
		return
	}
	if err := inPlace(l.file, l.db.Path()); err != nil {
		err = l.fail(err)
		l.log.Error("the local store takes no more", zap.Error(err))
	}
}

// fail makes an error final.
func (l *Local) fail(cause error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.failed == nil {
		l.failed = fmt.Errorf("%w: %w", ErrFailed, cause)
	}
	return l.failed
}
