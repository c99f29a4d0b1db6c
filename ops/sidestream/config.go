package main

import (
	"errors"
	"fmt"
	"maps"
	"os"
	"slices"
	"strings"

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

// settingsOf is the annotation of a command whose flags are settings.
const settingsOf = "settings"

// bindSettings adds --config and a flag for each key of cfg.
func bindSettings(cmd *cobra.Command, cfg validated) {
	cmd.Annotations = map[string]string{settingsOf: cmd.Name()}
	cmd.Flags().String("config", "", "YAML file of settings (environment "+envConfig+")")
	settings.Bind(cmd.Flags(), cfg)
	cmd.Flags().SortFlags = false
	words := map[string][]string{"log.level": logLevels, "log.format": logFormats}
	for _, f := range settings.Fields(cfg) {
		name := f.Path[strings.LastIndexAny(f.Path, "._")+1:]
		if name != "file" && name != "dir" && name != "path" {
			valuesOf(cmd, f.Flag(), words[f.Path]...)
		}
	}
}

// loader loads the settings of a server at its start, and again. A writer that
// empties the file first and then fills it must not have all that can change
// fall back to its default in between: limits, and who may call.
type loader struct {
	cmd    *cobra.Command
	filled bool // the file that was read last had keys
}

// load fills cfg, which holds the defaults, from the file, the environment and
// the flags, and returns everything that is wrong with it. defaults are those of
// cfg once more.
func (l *loader) load(cfg, defaults validated) error {
	origins, err := readSettings(l.cmd, cfg)
	filled := slices.ContainsFunc(slices.Collect(maps.Values(origins)), func(o settings.Origin) bool {
		return !strings.HasPrefix(string(o), "--") && !strings.HasPrefix(string(o), settings.EnvPrefix)
	})
	if err == nil && l.filled && !filled {
		err = errors.New("the configuration file has no keys any more: write it whole beside the old one and rename it, then send the signal again; to go back to the defaults leave any key in it")
	}
	if err := errors.Join(err, settings.Check(cfg, defaults)); err != nil {
		return usageError{err}
	}
	l.filled = filled
	return nil
}

func readSettings(cmd *cobra.Command, cfg validated) (map[string]settings.Origin, error) {
	file, err := cmd.Flags().GetString("config")
	if err != nil {
		return nil, err
	}
	if file == "" {
		file = os.Getenv(envConfig)
	}
	return settings.Load(cfg, settings.Source{
		File:    file,
		Environ: os.Environ(),
		Known:   knownVariables(),
		Flags:   settings.Given(cmd.Flags()),
	})
}

// knownVariables are the variables of all commands: one environment may hold
// the agent's and the sidecar's.
func knownVariables() []string {
	names := append([]string{envConfig}, commandVariables...)
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
			origins, err := readSettings(cmd, cfg)
			if origins != nil {
				fromConsulVariables(cfg, origins)
			}
			if err := errors.Join(err, settings.Check(cfg, defaults())); err != nil {
				return usageError{err}
			}
			return settings.Show(cmd.OutOrStdout(), cfg, origins)
		},
	}
	bindSettings(cmd, cfg)
	return cmd
}

// consulVariables are Consul's own environment variables, which its client
// takes where the consul section is silent.
var consulVariables = map[string]string{
	"consul.address":         "CONSUL_HTTP_ADDR",
	"consul.token":           "CONSUL_HTTP_TOKEN",
	"consul.token_file":      "CONSUL_HTTP_TOKEN_FILE",
	"consul.tls.ca_file":     "CONSUL_CACERT",
	"consul.tls.ca_path":     "CONSUL_CAPATH",
	"consul.tls.cert_file":   "CONSUL_CLIENT_CERT",
	"consul.tls.key_file":    "CONSUL_CLIENT_KEY",
	"consul.tls.server_name": "CONSUL_TLS_SERVER_NAME",
}

// fromConsulVariables fills in what the servers will take from Consul's own
// variables, so that it is shown with its origin and checked.
func fromConsulVariables(cfg any, origins map[string]settings.Origin) {
	for _, f := range settings.Fields(cfg) {
		name, has := consulVariables[f.Path]
		if value := os.Getenv(name); has && value != "" && f.Text() == `""` && f.SetText(value) == nil {
			origins[f.Path] = settings.Origin(name)
		}
	}
}
