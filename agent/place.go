package agent

import (
	"context"
	"errors"
	"fmt"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// folderEvery is how often the data folder is looked for at its path.
const folderEvery = time.Second

// watchFolder has an alarm while the data folder is not where it was opened. It
// ends with an error when another process has taken the folder, which may change
// everything in it.
func (a *Agent) watchFolder(ctx context.Context) error {
	tick := time.NewTicker(folderEvery)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-ctx.Done():
			return nil
		}
		err := a.checkFolder(ctx)
		switch {
		case errors.Is(err, discovery.ErrFolderTaken):
			return fmt.Errorf("data_dir: %w", err)
		case err == nil:
			a.alarms.put(alarmFolder, "")
		case ctx.Err() == nil:
			a.alarms.put(alarmFolder, fmt.Sprintf("data_dir: %v: producers are refused, and what is open is read on until this process ends; "+
				"put the folder back and start the agent again, or start it on what is left", err))
		}
	}
}

func (a *Agent) checkFolder(ctx context.Context) error {
	return a.writeIdentity(ctx, func(id *discovery.Identity) error {
		mended, err := id.Check()
		if len(mended) > 0 {
			a.log.Warn("files of the data folder were removed while it was in use, and are made again", zap.Strings("files", mended))
		}
		return err
	})
}
