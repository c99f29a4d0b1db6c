// Package devserver is how programs meet a `sidestream dev`: the file in which
// it writes its addresses, and a way to start and stop one as a process.
package devserver

import (
	"encoding/json"
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

// Write puts the address file into a data folder, whole or not at all.
func Write(dir string, info Info) error {
	text, err := json.MarshalIndent(info, "", "  ")
	if err != nil {
		return err
	}
	temporary := filepath.Join(dir, FileName+".tmp")
	if err := os.WriteFile(temporary, append(text, '\n'), 0o644); err != nil {
		return err
	}
	return os.Rename(temporary, filepath.Join(dir, FileName))
}

// Remove removes the address file; one that is not there is no error.
func Remove(dir string) error {
	if err := os.Remove(filepath.Join(dir, FileName)); err != nil && !os.IsNotExist(err) {
		return err
	}
	return nil
}
