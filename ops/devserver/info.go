// Package devserver is how programs meet a `sidestream dev`: the file in which
// it writes its addresses, and a way to start and stop one as a process.
package devserver

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
)

// FileName is the address file in the data folder of `sidestream dev`.
const FileName = "dev.json"

// Info is the content of the address file. It is there exactly while the
// server serves (and after a kill -9, until the next start).
type Info struct {
	PID      int      `json:"pid"`
	Broker   string   `json:"broker"`   // host:port for Kafka clients
	Agent    string   `json:"agent"`    // URL of the agent's HTTP
	Sidecars []string `json:"sidecars"` // URLs, in order
}

// Read reads the address file of a data folder.
func Read(dir string) (Info, error) {
	var info Info
	text, err := os.ReadFile(filepath.Join(dir, FileName))
	if err != nil {
		return info, err
	}
	if err := json.Unmarshal(text, &info); err != nil {
		return info, fmt.Errorf("%s: %w", filepath.Join(dir, FileName), err)
	}
	return info, nil
}

// spareName keeps the room of the address file while there is none. The
// addresses of 16 sidecars take less than one block of a disk.
const spareName = FileName + ".spare"

// Write puts the address file into a data folder, whole or not at all. After the
// first time it needs no room on the disk.
func Write(dir string, info Info) error {
	text, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	spare := filepath.Join(dir, spareName)
	if err := overwrite(spare, append(text, '\n')); err != nil {
		return err
	}
	return os.Rename(spare, filepath.Join(dir, FileName))
}

// overwrite writes over what is in the file: emptied first, as usual, it would
// give its block back.
func overwrite(path string, text []byte) (err error) {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE, 0o644)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, f.Close()) }()
	if _, err := f.WriteAt(text, 0); err != nil {
		return err
	}
	return f.Truncate(int64(len(text)))
}

// Remove takes the address file away, and keeps its room for the next; one that
// is not there is no error.
func Remove(dir string) error {
	err := os.Rename(filepath.Join(dir, FileName), filepath.Join(dir, spareName))
	if err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
