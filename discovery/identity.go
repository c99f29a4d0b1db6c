package discovery

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
)

// Names of the files that OpenIdentity keeps in a data folder.
const (
	identityFile = "identity.json"
	lockFile     = "lock"
)

// Identity says whose a data folder is. The folder stays locked against other
// processes until Close. Not safe for concurrent use.
type Identity struct {
	ID        string // chosen once and kept: "" in a new folder, see SetID
	Nonce     string // made with the folder: a copy of the folder has the same
	ClusterID string // of the cluster that the folder belongs to, or ""

	dir    string
	lock   *os.File // the file lock, for other versions and to say who has it
	folder *os.File // the folder itself
}

type identityJSON struct {
	ID        string `json:"id"`
	Nonce     string `json:"nonce"`
	ClusterID string `json:"cluster_id"`
}

// OpenIdentity creates the folder if need be, locks it and reads whose it is.
// A folder that another process has open is an error that names the process.
func OpenIdentity(dir string) (*Identity, error) {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	id := &Identity{dir: dir}
	if err := id.hold(); err != nil {
		return nil, err
	}
	if err := id.load(); err != nil {
		_ = id.Close() // the first error is the one to report
		return nil, err
	}
	return id, nil
}

// SetID keeps the id in the folder; it is durable when SetID returns.
func (id *Identity) SetID(v string) error {
	old := id.ID
	id.ID = v
	if err := id.save(); err != nil {
		id.ID = old
		return err
	}
	return nil
}

// SetClusterID keeps the cluster's id in the folder; it is durable when
// SetClusterID returns.
func (id *Identity) SetClusterID(v string) error {
	old := id.ClusterID
	id.ClusterID = v
	if err := id.save(); err != nil {
		id.ClusterID = old
		return err
	}
	return nil
}

// Close unlocks the folder. Safe to call twice.
func (id *Identity) Close() error {
	var errs []error
	for _, f := range []**os.File{&id.lock, &id.folder} {
		if *f != nil {
			errs = append(errs, (*f).Close()) // the lock ends with the last descriptor
			*f = nil
		}
	}
	return errors.Join(errs...)
}

// hold locks the folder.
func (id *Identity) hold() (err error) {
	id.folder, err = holdFolder(id.dir)
	switch {
	case errors.Is(err, syscall.EWOULDBLOCK):
		return inUse(id.dir)
	case err != nil:
		return fmt.Errorf("data folder: %w", err)
	}
	if id.lock, err = lockFileIn(id.dir); err != nil {
		_ = id.Close()
		return err
	}
	return nil
}

func (id *Identity) load() error {
	path := filepath.Join(id.dir, identityFile)
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		id.Nonce = NewNonce()
		return id.save()
	}
	if err != nil {
		return fmt.Errorf("identity of the data folder: %w", err)
	}
	var v identityJSON
	if err := json.Unmarshal(b, &v); err != nil {
		return fmt.Errorf("%s cannot be read (%w): restore it; if you remove it the folder counts as a new one", path, err)
	}
	if v.Nonce == "" {
		return fmt.Errorf("%s has no nonce: restore it; if you remove it the folder counts as a new one", path)
	}
	id.ID, id.Nonce, id.ClusterID = v.ID, v.Nonce, v.ClusterID
	return nil
}

func (id *Identity) save() error {
	if err := inPlace(id.folder, id.dir); err != nil {
		return fmt.Errorf("identity of the data folder: %w", err)
	}
	b, err := json.MarshalIndent(identityJSON{ID: id.ID, Nonce: id.Nonce, ClusterID: id.ClusterID}, "", "  ")
	if err != nil {
		return err
	}
	if err := writeFileDurably(filepath.Join(id.dir, identityFile), append(b, '\n')); err != nil {
		return fmt.Errorf("identity of the data folder: %w", err)
	}
	return nil
}

// inUse is the error about a folder that another process has locked.
func inUse(dir string) error {
	holder, _ := os.ReadFile(filepath.Join(dir, lockFile))
	who := strings.TrimSpace(string(holder))
	if who == "" {
		who = "another process"
	}
	return &takenError{fmt.Sprintf("data folder %s is in use by %s: stop it, or give this one another data folder", dir, who)}
}

// lockFileIn takes the folder's lock file, and leaves in it who holds it.
func lockFileIn(dir string) (*os.File, error) {
	path := filepath.Join(dir, lockFile)
	f, err := os.OpenFile(path, os.O_RDWR|os.O_CREATE, 0o640)
	if err != nil {
		return nil, fmt.Errorf("data folder: %w", err)
	}
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		f.Close()
		if errors.Is(err, syscall.EWOULDBLOCK) {
			return nil, inUse(dir)
		}
		return nil, fmt.Errorf("data folder %s cannot be locked: %w", dir, err)
	}
	// Only for the message above: a failure to write it is no reason to stop.
	if f.Truncate(0) == nil {
		_, _ = fmt.Fprintf(f, "process %d (%s)\n", os.Getpid(), filepath.Base(os.Args[0]))
	}
	return f, nil
}

// writeFileDurably replaces a file so that a crash leaves the old or the new
// content, and the new one survives power loss when it returns.
func writeFileDurably(path string, b []byte) (err error) {
	dir := filepath.Dir(path)
	f, err := os.CreateTemp(dir, filepath.Base(path)+".tmp-*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			f.Close() // again after a failed Close: harmless
			_ = os.Remove(f.Name())
		}
	}()
	if _, err = f.Write(b); err != nil {
		return err
	}
	if err = f.Sync(); err != nil {
		return err
	}
	if err = f.Close(); err != nil {
		return err
	}
	if err = os.Rename(f.Name(), path); err != nil {
		return err
	}
	return syncDir(dir)
}
