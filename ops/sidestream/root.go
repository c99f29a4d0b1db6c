package main

import (
	"errors"
	"fmt"
	"os"

	"github.com/spf13/cobra"

	"sidestream/sdk"
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
	envSidecar   = "SIDESTREAM_SIDECAR"
	envBootstrap = "SIDESTREAM_BOOTSTRAP"
)

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "sidestream",
		Short: "A distributed event log that applications reach by HTTP on localhost",
		Long: `Sidestream keeps events in append-only logs on brokers and hands them to
applications through a sidecar on localhost, by plain HTTP.

Begin with "sidestream dev": a whole cluster in one process. It prints the
addresses and the first commands to try.

Exit codes: 0 done or stopped as asked, 1 failed, 2 wrong arguments or
configuration.`,
		Example: `  sidestream dev
  curl localhost:4100/topics/hello -d 'hi'
  curl -X POST 'localhost:4100/groups/g/topics/hello/pull?wait=5s'`,
		SilenceUsage:  true,
		SilenceErrors: true,
		Args:          usage(noArgs),
		RunE:          func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	root.AddGroup(&cobra.Group{ID: groupServers, Title: "Servers:"},
		&cobra.Group{ID: groupData, Title: "Topics, groups and messages:"},
		&cobra.Group{ID: groupTools, Title: "Tools:"})
	root.SetFlagErrorFunc(func(cmd *cobra.Command, err error) error {
		return usageError{fmt.Errorf("%w (see %s --help)", err, cmd.CommandPath())}
	})
	add := func(group string, commands ...*cobra.Command) {
		for _, c := range commands {
			c.GroupID = group
			root.AddCommand(c)
		}
	}
	add(groupServers, newDev(), newAgent(), newSidecar())
	add(groupData, newTopic(), newProduce(), newConsume(), newGroup())
	add(groupTools, newLog(), newMetadata(), newConfig(), newVersion(), newDocs())
	root.SetHelpCommandGroupID(groupTools)
	root.SetCompletionCommandGroupID(groupTools)
	return root
}

// parent makes a command that only has commands under it. An unknown one is
// an error that suggests the nearest.
func parent(use, short, long string, children ...*cobra.Command) *cobra.Command {
	c := &cobra.Command{Use: use, Short: short, Long: long, Args: usage(noArgs),
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
func client(cmd *cobra.Command, flag string) (*sdk.Client, error) {
	if !cmd.Flags().Changed("sidecar") {
		flag = envOr(envSidecar, flag)
	}
	c, err := sdk.New(flag, sdk.WithRetry(sdk.Retry{Attempts: 4}))
	if err != nil {
		return nil, usageError{err}
	}
	return c, nil
}

// stopped hides an error that is only the stop that was asked for.
func stopped(cmd *cobra.Command, err error) error {
	if cmd.Context().Err() != nil && errors.Is(err, cmd.Context().Err()) {
		return nil
	}
	return err
}
