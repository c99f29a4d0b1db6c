package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

var (
	// ErrFolderGone: the data folder is no longer at its path. What is written
	// to files of it that are open is not found again by the next start.
	ErrFolderGone = errors.New("it was removed, moved or replaced while it was in use")
	// ErrFolderTaken: the folder's lock or identity is another process's.
	ErrFolderTaken = errors.New("another process has taken the data folder")
)

// takenError is ErrFolderTaken in words of its own.
type takenError struct{ text string }

func (e *takenError) Error() string        { return e.text }
func (e *takenError) Is(target error) bool { return target == ErrFolderTaken }

// holdFolder opens a folder, which keeps its inode number from being given
// again, and locks it: the lock of a file in it ends for others when somebody
// removes the file. Where folders cannot be locked (network file systems) the
// file's lock is all there is.
func holdFolder(dir string) (folder *os.File, err error) {
	if folder, err = os.Open(dir); err != nil {
		return nil, err
	}
	if err := syscall.Flock(int(folder.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); errors.Is(err, syscall.EWOULDBLOCK) {
		_ = folder.Close()
		return nil, err
	}
	return folder, nil
}

// inPlace is ErrFolderGone when the path leads to another folder, or to none. A
// path that cannot be looked at says nothing.
func inPlace(folder *os.File, dir string) error {
	if folder == nil {
		return nil
	}
	there, err := os.Stat(dir)
	if errors.Is(err, fs.ErrNotExist) || errors.Is(err, syscall.ENOTDIR) {
		return fmt.Errorf("folder %s: %w", dir, ErrFolderGone)
	}
	held, heldErr := folder.Stat()
	if err == nil && heldErr == nil && !os.SameFile(there, held) {
		return fmt.Errorf("folder %s: %w", dir, ErrFolderGone)
	}
	return nil
}

// Check looks whether the folder is still at its path and still ours. What was
// removed of the lock and the identity, while the folder stayed, is made again:
// mended says what. The errors are ErrFolderGone, and ErrFolderTaken when the
// lock or the identity is another's by now, as after a start by hand of a second
// process in a folder whose lock was removed. Call it now and then.
func (id *Identity) Check() (mended []string, err error) {
	if err := inPlace(id.folder, id.dir); err != nil {
		return nil, err
	}
	if again, err := id.relock(); err != nil {
		return nil, err
	} else if again {
		mended = append(mended, lockFile)
	}
	path := filepath.Join(id.dir, identityFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		// Without it the next start is of another sidecar or broker, which knows
		// nothing of what this one has begun.
		if err := id.save(); err == nil { // else on a full disk: the next time
			mended = append(mended, identityFile)
		}
		return mended, nil
	}
	var v identityJSON
	if err == nil && json.Unmarshal(b, &v) == nil && v.Nonce != id.Nonce {
		return mended, fmt.Errorf("%s: %w: it has another nonce than at the start", path, ErrFolderTaken)
	}
	return mended, nil
}

// relock takes the lock file again when it is not the one that we have locked.
func (id *Identity) relock() (again bool, err error) {
	if id.lock == nil {
		return false, nil
	}
	path := filepath.Join(id.dir, lockFile)
	there, err := os.Stat(path)
	held, heldErr := id.lock.Stat()
	if heldErr != nil || err == nil && os.SameFile(there, held) || err != nil && !errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	lock, err := lockFileIn(id.dir)
	if errors.Is(err, ErrFolderTaken) {
		return false, err
	}
	if err != nil { // the disk is full: the next time
		return false, nil
	}
	_ = id.lock.Close()
	id.lock = lock
	return true, nil
}
