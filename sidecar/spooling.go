package sidecar

import (
	"path/filepath"

	"sidestream/sidecar/spool"
)

// spoolDir is the spool's folder in the data folder.
const spoolDir = "spool"

// openSpool opens the spool in the data folder, before the publisher.
func (s *Sidecar) openSpool() (*spool.Spool, error) {
	cfg := s.cfg.Spool
	cfg.MaxMessageSize, cfg.Timeout, cfg.AutoCreate = s.cfg.Publish.MaxMessageBytes, s.cfg.Publish.Timeout, s.cfg.AutoCreateTopics
	sender, err := spool.NewSender(s.up, s.cfg.Publish.Compression, s.cfg.Publish.BatchBytes)
	if err != nil {
		return nil, err
	}
	sp, err := spool.Open(cfg, spool.Deps{
		Dir: filepath.Join(s.cfg.DataDir, spoolDir), Next: s.publisher, Brokers: s.up, Sender: sender,
		Logger: s.log.Named("spool"), Registerer: s.registry, Now: s.clock.Now,
	})
	if err != nil {
		sender.Close()
		return nil, err
	}
	return sp, nil
}
