package sidecar

import (
	"context"
	"errors"
	"fmt"
	"sync/atomic"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// folderEvery is how often the data folder is looked for at its path. What is
// taken looks by itself, with its sync; this is for what nobody writes to.
const folderEvery = time.Second

// folderCheck remembers why the data folder is not ours any more; nil: it is.
type folderCheck struct{ err atomic.Pointer[error] }

func (f *folderCheck) Err() error {
	if err := f.err.Load(); err != nil {
		return *err
	}
	return nil
}

// watchFolder looks for the data folder and what is in it until ctx ends, or
// until another process has taken the folder, which is the error: it may change
// all that is in it.
func (s *Sidecar) watchFolder(ctx context.Context) error {
	tick := time.NewTicker(folderEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		mended, err := s.id.Check()
		if len(mended) > 0 {
			s.log.Warn("files of the data folder were removed while it was in use, and are made again", zap.Strings("files", mended))
		}
		if errors.Is(err, discovery.ErrFolderTaken) {
			return fmt.Errorf("data_dir: %w", err)
		}
		before := s.folder.Err()
		switch {
		case err == nil:
			s.folder.err.Store(nil)
		case before == nil:
			s.log.Error("the data folder is gone: nothing is taken any more that has to be on this host's disk", zap.Error(err))
			s.folder.err.Store(&err)
		}
		if before != nil && err == nil {
			s.log.Info("the data folder is back")
		}
		s.spool.Check()
		s.keys.Check()
		s.local.Check()
	}
}
