package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"sidestream/agent"
	"sidestream/discovery"
	"sidestream/ops/sidestream/settings"
	"sidestream/sidecar"
)

// agentSettings is all that `sidestream agent` reads.
type agentSettings struct {
	agent.Config `yaml:",inline"`
	Consul       discovery.ConsulConfig `yaml:"consul"`
	Log          logSettings            `yaml:"log"`
}

func defaultAgent() *agentSettings {
	return &agentSettings{Config: agent.DefaultConfig(), Consul: discovery.DefaultConsulConfig(), Log: defaultLog()}
}

func (s *agentSettings) Validate() error {
	return validateAll(s.Config.Validate(), s.Consul.Validate(), s.Log.Validate())
}

// sidecarSettings is all that `sidestream sidecar` reads.
type sidecarSettings struct {
	sidecar.Config `yaml:",inline"`
	Consul         discovery.ConsulConfig `yaml:"consul"`
	Log            logSettings            `yaml:"log"`
}

func defaultSidecar() *sidecarSettings {
	return &sidecarSettings{Config: sidecar.DefaultConfig(), Consul: discovery.DefaultConsulConfig(), Log: defaultLog()}
}

func (s *sidecarSettings) Validate() error {
	return validateAll(s.Config.Validate(), s.Consul.Validate(), s.Log.Validate())
}

// validateAll joins the sections' errors, whose texts begin with the key in
// the section.
func validateAll(own, consul, log error) error {
	if consul != nil {
		consul = fmt.Errorf("consul.%w", consul)
	}
	if log != nil {
		log = fmt.Errorf("log.%w", log)
	}
	return errors.Join(own, consul, log)
}

type validated interface{ Validate() error }

// bindSettings adds --config and a flag for each key of cfg.
func bindSettings(cmd *cobra.Command, cfg validated) {
	cmd.Flags().String("config", "", "YAML file of settings (environment "+envConfig+")")
	settings.Bind(cmd.Flags(), cfg)
	cmd.Flags().SortFlags = false
}

// loadSettings fills cfg from the file, the environment and the flags, and
// checks it. The origins are there even when it fails.
func loadSettings(cmd *cobra.Command, cfg validated) (map[string]settings.Origin, error) {
	file, err := cmd.Flags().GetString("config")
	if err != nil {
		return nil, err
	}
	if file == "" {
		file = os.Getenv(envConfig)
	}
	origins, err := settings.Load(cfg, settings.Source{
		File:    file,
		Environ: os.Environ(),
		Known:   knownVariables(),
		Flags:   settings.Given(cmd.Flags()),
	})
	if err == nil {
		err = cfg.Validate()
	}
	if err != nil {
		return origins, usageError{err}
	}
	return origins, nil
}

// knownVariables are the variables of all commands: one environment may hold
// the agent's and the sidecar's.
func knownVariables() []string {
	names := []string{envConfig, envSidecar, envBootstrap}
	for _, cfg := range []any{defaultAgent(), defaultSidecar()} {
		for _, f := range settings.Fields(cfg) {
			names = append(names, f.Env())
		}
	}
	return names
}

func newConfig() *cobra.Command {
	check := parent("check", "Check a configuration and print what is in effect",
		`Check the configuration of the agent or the sidecar: read it as the server
would (file, environment, flags), and print either the settings in effect, with
where each comes from, or every error. Passwords and tokens are not shown.`,
		newConfigCheck("agent", func() validated { return defaultAgent() }),
		newConfigCheck("sidecar", func() validated { return defaultSidecar() }))
	check.Example = `  sidestream config check agent --config /etc/sidestream/agent.yaml
  SIDESTREAM_LISTEN=127.0.0.1:4200 sidestream config check sidecar`
	return parent("config", "Check configurations", "Check configurations.", check)
}

func newConfigCheck(name string, defaults func() validated) *cobra.Command {
	cfg := defaults()
	cmd := &cobra.Command{
		Use:   name,
		Short: fmt.Sprintf("Check the configuration of the %s", name),
		Args:  usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			origins, err := loadSettings(cmd, cfg)
			if err != nil {
				return err
			}
			return settings.Show(cmd.OutOrStdout(), cfg, origins)
		},
	}
	bindSettings(cmd, cfg)
	return cmd
}
