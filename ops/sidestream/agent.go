package main

import (
	"context"
	"errors"
	"os"
	"os/signal"

	"github.com/spf13/cobra"
	"go.uber.org/zap"
	"golang.org/x/sys/unix"

	"sidestream/agent"
	"sidestream/discovery"
)

func newAgent() *cobra.Command {
	cfg := defaultAgent()
	cmd := &cobra.Command{
		Use:   "agent",
		Short: "Run the agent of a storage host, with the broker inside",
		Long: `Run the agent of a storage host: the broker inside it keeps topics on disk and
speaks the Kafka protocol; the agent registers it in Consul, elects a controller
and takes the lead of partitions.

Settings come from a YAML file (--config), the environment and flags, the later
winning. "sidestream config check agent" shows what is in effect. SIGHUP reads
them again: what can change while the agent runs changes.`,
		Example: `  sidestream agent --config /etc/sidestream/agent.yaml
  sidestream agent --data-dir /srv/sidestream --rack a --consul-address 127.0.0.1:8500`,
		Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l := &loader{cmd: cmd}
			if err := l.load(cfg, defaultAgent()); err != nil {
				return err
			}
			return withConsul(cfg.Consul, cfg.Log, func(store discovery.Store, log *zap.Logger, level zap.AtomicLevel) error {
				a, err := agent.New(cfg.Config, store, log)
				if err != nil {
					return err
				}
				r := &reloader[*agentSettings]{
					running: cfg, log: log,
					read: func() (*agentSettings, error) {
						next := defaultAgent()
						return next, l.load(next, defaultAgent())
					},
					apply: func(next *agentSettings) error {
						if err := a.Reload(next.Config); err != nil {
							return err
						}
						return level.UnmarshalText([]byte(next.Log.Level))
					},
				}
				return serve(cmd.Context(), log, "agent", a, r.reload)
			})
		},
	}
	bindSettings(cmd, cfg)
	return cmd
}

// withConsul runs a server on a logger and a Consul store, and closes both.
func withConsul(cfg discovery.ConsulConfig, logging logSettings, run func(discovery.Store, *zap.Logger, zap.AtomicLevel) error) error {
	log, level, err := newLogger(logging)
	if err != nil {
		return err
	}
	defer func() { _ = log.Sync() }() // standard error may not be able to
	store, err := discovery.NewConsul(cfg, log.Named("consul"))
	if err != nil {
		return usageError{err}
	}
	return errors.Join(run(store, log, level), store.Close())
}

// server is what the agent and the sidecar have in common.
type server interface {
	Run(ctx context.Context) error
	Ready() <-chan struct{}
}

// serve runs a server until ctx ends and logs its beginning and end. SIGHUP
// calls reload once the server is ready.
func serve(ctx context.Context, log *zap.Logger, name string, s server, reload func()) error {
	hangup := make(chan os.Signal, 1) // one that comes during a reload is followed by another
	signal.Notify(hangup, unix.SIGHUP)
	defer signal.Stop(hangup)
	log.Info(name+" starts", zap.String("version", versionText()))
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	select {
	case <-s.Ready():
		log.Info(name + " is ready")
	case err := <-done:
		return err
	}
	for {
		select {
		case <-hangup:
			reload()
		case err := <-done:
			if err == nil {
				log.Info(name + " stopped")
			}
			return err
		}
	}
}
