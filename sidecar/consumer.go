package sidecar

import (
	"context"

	httpapi "sidestream/sidecar/api"
	"sidestream/sidecar/consume"
)

// consumer is what the sidecar runs for its groups: *consume.Manager.
type consumer interface {
	httpapi.Consumer
	Start()
	Close(ctx context.Context) error
	Status() any
	Away() []consume.AwayPartition
}

// newConsumer hands the manager the parts of the sidecar that it shares.
func newConsumer(s *Sidecar) (consumer, error) {
	return consume.New(s.cfg.Consume, consume.Deps{
		ID: s.id.ID, Nonce: s.id.Nonce, Service: s.presence.service,
		Store: s.store, Session: s.presence.Session, Registration: s.presence.Registration,
		Upstream: s.up, Local: s.local, Checkpointer: s.checkpointer,
		Logger: s.log.Named("consume"), Registerer: s.registry, AutoCreate: s.cfg.AutoCreateTopics,
	})
}
