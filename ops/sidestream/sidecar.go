package main

import (
	"github.com/spf13/cobra"
	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sidecar"
)

func newSidecar() *cobra.Command {
	cfg := defaultSidecar()
	cmd := &cobra.Command{
		Use:   "sidecar",
		Short: "Run the sidecar of an application host",
		Long: `Run the sidecar of an application host: applications publish and pull by HTTP
on localhost, and the sidecar does the rest. It works with our own brokers,
found through Consul, and with Apache Kafka's (kafka.bootstrap, kafka.tls,
kafka.sasl).

Settings come from a YAML file (--config), the environment and flags, the later
winning. "sidestream config check sidecar" shows what is in effect. SIGHUP reads
them again: what can change while the sidecar runs (limits, defaults of topics,
callers, allowed hosts, the log's level) changes, a bad file changes nothing.`,
		Example: `  sidestream sidecar --config /etc/sidestream/sidecar.yaml
  sidestream sidecar --data-dir /var/lib/sidestream/sidecar --consul-address 127.0.0.1:8500
  sidestream sidecar --kafka-bootstrap kafka1:9092,kafka2:9092`,
		Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l := &loader{cmd: cmd}
			if err := l.load(cfg, defaultSidecar()); err != nil {
				return err
			}
			return withConsul(cfg.Consul, cfg.Log, func(store discovery.Store, log *zap.Logger, level zap.AtomicLevel) error {
				s, err := sidecar.New(cfg.Config, store, log)
				if err != nil {
					return err
				}
				r := &reloader[*sidecarSettings]{
					running: cfg, log: log,
					read: func() (*sidecarSettings, error) {
						next := defaultSidecar()
						return next, l.load(next, defaultSidecar())
					},
					apply: func(next *sidecarSettings) error {
						if err := s.Reload(next.Config); err != nil {
							return err
						}
						return level.UnmarshalText([]byte(next.Log.Level))
					},
					note: s.NoteReload,
				}
				return serve(cmd.Context(), log, "sidecar", s, r.reload)
			})
		},
	}
	bindSettings(cmd, cfg)
	return cmd
}
