package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

const (
	groupServers = "servers"
	groupData    = "data"
	groupTools   = "tools"
)

// Environment variables that stand for flags of commands other than the
// servers, whose variables come from their configuration.
const (
	envConfig    = "SIDESTREAM_CONFIG"
	envSidecar   = sdk.EnvAddress
	envBootstrap = "SIDESTREAM_BOOTSTRAP"
	envAgent     = "SIDESTREAM_AGENT"
)

// commandVariables say whom commands ask. Servers that are started in the same
// shell leave them alone.
var commandVariables = []string{envSidecar, envBootstrap, envAgent}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "sidestream COMMAND",
		Short: "A distributed event log that applications reach by HTTP on localhost",
		Long: `Sidestream keeps events in append-only logs on brokers and hands them to
applications through a sidecar on localhost, by plain HTTP.

Begin with "sidestream dev": a whole cluster in one process. It prints the
addresses and the first commands to try.

"sidestream status" shows whether all is well.

Exit codes: 0 done or stopped as asked, 1 failed, 2 wrong arguments or
configuration; of "status" 3 something is wrong, 4 nobody answers.`,
		Example: `  sidestream dev
  curl localhost:4100/topics/hello -d 'hi'
  curl -X POST 'localhost:4100/groups/g/topics/hello/pull?wait=5s'`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          usage(noArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		Version:       versionText(),
	}
	root.SetVersionTemplate(versionLine())
	root.AddGroup(&cobra.Group{ID: groupServers, Title: "Servers:"},
		&cobra.Group{ID: groupData, Title: "Topics, groups and messages:"},
		&cobra.Group{ID: groupTools, Title: "Tools:"})
	root.SetFlagErrorFunc(flagError)
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupServers, newDev(), newAgent(), newSidecar())
	add(groupData, newStatus(), newTopic(), newProduce(), newConsume(), newGroup(), newSpool())
	add(groupTools, newLog(), newMetadata(), newConfig(), newVersion(), newDocs())
	root.SetHelpCommandGroupID(groupTools)
	root.SetCompletionCommandGroupID(groupTools)
	for _, c := range everyCommand(root) {
		if c.HasSubCommands() {
			c.DisableFlagsInUseLine = true
		}
		completeNames(c)
		completeFlag(c, "group", groupNames)
		if c.ValidArgsFunction == nil {
			c.ValidArgsFunction = cobra.NoFileCompletions // names of topics and groups are no files
		}
	}
	root.SetUsageTemplate(usageTemplate(root.UsageTemplate()))
	return root
}

// everyCommand lists a command and all under it.
func everyCommand(c *cobra.Command) []*cobra.Command {
	all := []*cobra.Command{c}
	for _, child := range c.Commands() {
		all = append(all, everyCommand(child)...)
	}
	return all
}

// usageTemplate changes cobra's: the texts of flags are wrapped, and a command
// with commands under it has one line of usage.
func usageTemplate(template string) string {
	return strings.NewReplacer(
		".FlagUsages ", ".FlagUsagesWrapped 100 ",
		"{{if .HasAvailableSubCommands}}\n  {{.CommandPath}} [command]{{end}}", "",
		"{{.CommandPath}} [command] --help", "{{.CommandPath}} COMMAND --help",
	).Replace(template)
}

// valuesOf completes a flag that takes one of a few words.
func valuesOf(cmd *cobra.Command, flag string, values ...string) {
	// The error is that there is no such flag, which the tests would find.
	_ = cmd.RegisterFlagCompletionFunc(flag, cobra.FixedCompletions(values, cobra.ShellCompDirectiveNoFileComp))
}

// oneOf refuses a flag's value that is none of a few words; "" is not given.
func oneOf(flag, got string, values ...string) error {
	if got == "" || slices.Contains(values, got) {
		return nil
	}
	last := len(values) - 1
	return usageError{fmt.Errorf("--%s: got %q: use %s or %s", flag, got, strings.Join(values[:last], ", "), values[last])}
}

// parent makes a command that only has commands under it. An unknown one is
// an error that suggests the nearest.
func parent(use, short, long string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use + " COMMAND", Short: short, Long: long, Args: usage(noArgs),
		RunE: func(cmd *cobra.Command, _ []string) error { return cmd.Help() }}
	c.AddCommand(children...)
	return c
}

func noArgs(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return nil
	}
	if !cmd.HasAvailableSubCommands() {
		return fmt.Errorf("unexpected argument %q", args[0])
	}
	cmd.SuggestionsMinimumDistance = 2 // edits; cobra sets it only for its own errors
	err := fmt.Errorf("unknown command %q", args[0])
	if near := cmd.SuggestionsFor(args[0]); len(near) > 0 {
		err = fmt.Errorf("%w: did you mean %s?", err, near[0])
	}
	return err
}

// usage makes the errors of an argument check usage errors that say how the
// command is called.
func usage(check cobra.PositionalArgs) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if err := check(cmd, args); err != nil {
			return usageError{fmt.Errorf("%w\nusage: %s", err, cmd.UseLine())}
		}
		return nil
	}
}

// arguments takes exactly the arguments that are named, and says which is missing:
// "TOPIC" is needed, "[FILE]" may be left out, "TOPIC..." is one or more.
func arguments(names ...string) cobra.PositionalArgs {
	return usage(func(_ *cobra.Command, given []string) error {
		for i, name := range names {
			switch bare, many := strings.CutSuffix(name, "..."); {
			case i < len(given) && (many || strings.HasSuffix(bare, "...]")):
				return nil
			case i >= len(given) && strings.HasPrefix(name, "["):
				return nil
			case i >= len(given):
				return fmt.Errorf("%s is missing", bare)
			}
		}
		if len(given) > len(names) {
			return fmt.Errorf("unexpected argument %q", given[len(names)])
		}
		return nil
	})
}

// envOr is the value of an environment variable, or else the fallback.
func envOr(name, fallback string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return fallback
}

// sidecarFlag adds --sidecar to a command.
func sidecarFlag(cmd *cobra.Command) *string {
	return cmd.Flags().String("sidecar", sdk.DefaultAddress,
		"address of the sidecar: http://host:port or unix:/path (environment "+envSidecar+")")
}

// client makes the client that --sidecar, or else the environment, names.
func client(cmd *cobra.Command, flag string, options ...sdk.Option) (*sdk.Client, error) {
	if !cmd.Flags().Changed("sidecar") {
		flag = envOr(envSidecar, flag)
	}
	c, err := sdk.New(flag, append(options, sdk.WithRetry(sdk.Retry{Attempts: 4}))...)
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

// badRequestIsUsage makes what the sidecar refuses as a bad request an error of
// the command line: what it was asked is what the arguments and flags say.
func badRequestIsUsage(cmd *cobra.Command) {
	run := cmd.RunE
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		err := run(cmd, args)
		if errors.Is(err, &api.Error{Code: api.CodeBadRequest}) {
			return usageError{err}
		}
		return err
	}
}

// patience is how long a command waits without a word.
const patience = 3 * time.Second

// after writes a line to w when the returned function is not called within
// what is expected and some patience. That function waits until nothing more
// is written.
func after(expected time.Duration, w io.Writer, text string) (stop func()) {
	done := make(chan struct{})
	timer := time.AfterFunc(expected+patience, func() {
		defer close(done)
		_, _ = fmt.Fprintln(w, text) // only for people
	})
	return func() {
		if !timer.Stop() {
			<-done
		}
	}
}

// message is an error as it is printed. The hints of a sidecar, which are HTTP
// requests, become those for the command line.
func message(err error) string {
	text := err.Error()
	e, ok := errors.AsType[*api.Error](err)
	if !ok {
		if strings.Contains(text, "no sidecar answers at ") {
			text += "\n\"sidestream dev\" runs one with all that it needs; --sidecar or $" + envSidecar + " says where another is"
		}
		return text
	}
	for _, hint := range []struct {
		code     api.Code
		from, to string
	}{
		{api.CodeTopicNotFound, ": create it with PUT ", `: create it with "sidestream topic create"`},
		{api.CodeGroupConfig, ": leave from out, or change it with PUT ", `: leave --from out, take another --group, or move it with "sidestream group seek"`},
		{api.CodeGroupNotFound, ": its first pull, or PUT ", `: its first "sidestream consume" makes it; "sidestream group list" shows what there is`},
	} {
		if what, _, found := strings.Cut(e.Message, hint.from); found && e.Code == hint.code {
			text = strings.Replace(text, e.Message, what+hint.to, 1)
		}
	}
	return text
}

// stopped hides an error that is only the stop that was asked for.
func stopped(cmd *cobra.Command, err error) error {
	if cmd.Context().Err() != nil && errors.Is(err, cmd.Context().Err()) {
		return nil
	}
	return err
}
