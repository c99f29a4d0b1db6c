package main

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sidestream/ops/sidestream/settings"
)

// generatedDocs are the documents that are written from the code, by name.
func generatedDocs() map[string]func(io.Writer) error {
	return map[string]func(io.Writer) error{
		"configuration.md": writeConfigurationDoc,
		"cli.md":           writeCLIDoc,
	}
}

// newDocs is for `make docs`; a test holds the files current.
func newDocs() *cobra.Command {
	return &cobra.Command{
		Use:    "docs FOLDER",
		Short:  "Write the documents that are generated from the code",
		Hidden: true,
		Args:   arguments("FOLDER"),
		RunE: func(_ *cobra.Command, args []string) error {
			for name, write := range generatedDocs() {
				var b strings.Builder
				if err := write(&b); err != nil {
					return err
				}
				if err := os.WriteFile(filepath.Join(args[0], name), []byte(b.String()), 0o644); err != nil {
					return err
				}
			}
			return nil
		},
	}
}

const configurationIntro = `<!-- Written by "make docs" from the code: edit the help tags there. -->
# Configuration

The agent and the sidecar read their settings, the later winning, from

1. the defaults below,
2. a YAML file: ` + "`--config FILE` or `SIDESTREAM_CONFIG=FILE`" + `,
3. the environment: ` + "`SIDESTREAM_` and the key's path in capitals with `_` for each dot" + `,
4. flags: the key's path with ` + "`-` for each dot and underscore (the path itself works too: `--kafka.client_id`)" + `.

Lists are ` + "`a,b`" + ` and maps ` + "`k=v,k2=v2`" + ` in the environment and in flags. Durations are numbers with a unit: ` + "`500ms`, `30s`, `5m`, `168h`" + `. A number of bytes (a key with ` + "`bytes`" + ` or ` + "`memory`" + ` in its name) may have a unit, such as ` + "`16MiB`" + `: ` + "`KiB`, `MiB`, `GiB`" + ` are powers of 1024, ` + "`kB` (or `KB`), `MB`, `GB`" + ` of 1000. An unknown key, or a bad value, in any place stops the start with an error that names it and the right form.

` + "`sidestream config check agent`" + ` (or ` + "`sidecar`" + `) prints the settings in effect and where each comes from, or every error. ` + "`sidestream dev`" + ` has flags of its own, and reads neither a file nor the environment: a sidecar [beside it](spool.md#try-it-in-an-outage) does.

SIGHUP makes the agent and the sidecar read their settings again. Keys that say "SIGHUP changes it" are in force at once, others wait for a restart, and settings with an error change nothing ([runbook](runbooks.md#change-limits-and-other-settings-without-a-restart)).

Consul's standard variables (` + "`CONSUL_HTTP_ADDR`, `CONSUL_HTTP_TOKEN`, `CONSUL_CACERT`" + ` and so on) are honoured where the ` + "`consul`" + ` section is silent; ` + "`config check`" + ` shows what they give.

Sample files: [agent.yaml](../deploy/agent.yaml), [sidecar.yaml](../deploy/sidecar.yaml).
`

func writeConfigurationDoc(w io.Writer) error {
	if _, err := io.WriteString(w, configurationIntro+"\n## The agent\n"); err != nil {
		return err
	}
	if err := settings.Markdown(w, defaultAgent()); err != nil {
		return err
	}
	if _, err := io.WriteString(w, "\n## The sidecar\n"); err != nil {
		return err
	}
	return settings.Markdown(w, defaultSidecar())
}

const cliIntro = `<!-- Written by "make docs" from the code: edit the commands there. -->
# The command line

Exit codes: 0 done or stopped as asked, 1 failed, 2 wrong arguments or configuration. ` +
	"`sidestream completion bash|zsh|fish|powershell`" + ` writes the shell's completion, for example
` + "`source <(sidestream completion bash)`" + `. Every command has ` + "`--help`" + `.
`

func writeCLIDoc(w io.Writer) error {
	if _, err := io.WriteString(w, cliIntro); err != nil {
		return err
	}
	return writeCommand(w, newRoot())
}

func writeCommand(w io.Writer, c *cobra.Command) error {
	for _, child := range c.Commands() {
		if child.Hidden || child.Name() == "help" || child.Name() == "completion" {
			continue
		}
		if child.Runnable() && !child.HasSubCommands() {
			if _, err := io.WriteString(w, commandText(child)); err != nil {
				return err
			}
		}
		if err := writeCommand(w, child); err != nil {
			return err
		}
	}
	return nil
}

func commandText(c *cobra.Command) string {
	var b strings.Builder
	text := c.Long
	if text == "" {
		text = c.Short + "."
	}
	fmt.Fprintf(&b, "\n## %s\n\n%s\n\n```\n%s\n```\n", c.CommandPath(), text, c.UseLine())
	if c.Example != "" {
		fmt.Fprintf(&b, "\n```sh\n%s\n```\n", strings.ReplaceAll(strings.TrimPrefix(c.Example, "  "), "\n  ", "\n"))
	}
	if c.Annotations[settingsOf] != "" {
		b.WriteString("\nIts flags are those of [its settings](configuration.md), and `--config`.\n")
		return b.String()
	}
	header := false
	c.LocalFlags().VisitAll(func(f *pflag.Flag) {
		if f.Name == "help" || f.Hidden {
			return
		}
		if !header {
			b.WriteString("\n| flag | default | meaning |\n|---|---|---|\n")
			header = true
		}
		name := "`--" + f.Name + "`"
		if f.Shorthand != "" {
			name += ", `-" + f.Shorthand + "`"
		}
		value := ""
		if f.DefValue != "" && f.DefValue != "[]" {
			value = "`" + f.DefValue + "`"
		}
		fmt.Fprintf(&b, "| %s | %s | %s |\n", name, value, strings.ReplaceAll(f.Usage, "|", "\\|"))
	})
	return b.String()
}
