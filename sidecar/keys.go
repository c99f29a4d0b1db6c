package sidecar

import (
	"path/filepath"

	"sidestream/sidecar/idempotency"
)

// keysDir is the folder of the journal of Idempotency-Keys in the data folder.
const keysDir = "idempotency"

// openKeys opens what is remembered of Idempotency-Keys in the data folder,
// before the spool.
func (s *Sidecar) openKeys() (*idempotency.Keys, error) {
	return idempotency.New(s.spool, s.cfg.Idempotency, idempotency.Deps{
		Dir: filepath.Join(s.cfg.DataDir, keysDir), Nonce: s.id.Nonce,
		Brokers: s.up, Spool: s.spool, AutoCreate: s.cfg.AutoCreateTopics,
		Timeout: s.cfg.Publish.Timeout, MaxTimeout: s.cfg.Publish.MaxTimeout,
		Logger: s.log.Named("idempotency"), Registerer: s.registry, Now: s.clock.Now,
	})
}
