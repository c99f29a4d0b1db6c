package sidecar

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"

	"sidestream/discovery/clock"
)

// openClock goes on with the data folder's own time. A folder without a spool
// and a journal of keys has nothing whose age could matter.
func (s *Sidecar) openClock() *clock.Clock {
	return clock.Open(clock.Options{
		Dir: s.cfg.DataDir, Logger: s.log.Named("clock"), Registerer: s.registry,
		Fresh: func() bool {
			for _, name := range []string{spoolDir, keysDir} {
				if _, err := os.Stat(filepath.Join(s.cfg.DataDir, name)); !errors.Is(err, fs.ErrNotExist) {
					return false
				}
			}
			return true
		},
		Remotes: []clock.Remote{clock.Store(s.store), clock.Peers(s.store)},
	})
}
