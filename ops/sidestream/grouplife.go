package main

import (
	"context"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

func newGroupPause() *cobra.Command {
	return pauseOrResume(&cobra.Command{
		Use:   "pause GROUP [TOPIC...]",
		Short: "Stop handing out a group's messages, all or of some topics",
		Long: `Stop handing out a group's messages on all sidecars, all of them or those of
the topics that are named, until they are resumed. What applications hold may
be acknowledged; positions and owners stay. Pulls answer with the reason
"paused".`,
		Example: "  sidestream group pause top-pages\n  sidestream group pause billing orders refunds",
	}, (*sdk.Client).Pause)
}

func newGroupResume() *cobra.Command {
	return pauseOrResume(&cobra.Command{
		Use:     "resume GROUP [TOPIC...]",
		Short:   "End a pause, all of it or that of some topics",
		Example: "  sidestream group resume top-pages",
	}, (*sdk.Client).Resume)
}

func pauseOrResume(cmd *cobra.Command, do func(*sdk.Client, context.Context, string, ...string) (api.Group, error)) *cobra.Command {
	cmd.Args = arguments("GROUP", "[TOPIC...]")
	address := sidecarFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		g, err := do(c, cmd.Context(), args[0], args[1:]...)
		if err != nil {
			return err
		}
		if line := pauseOf(g); line != "" {
			return say(cmd.OutOrStdout(), line)
		}
		return say(cmd.OutOrStdout(), "group "+g.Group+" is not paused")
	}
	return cmd
}

// pauseOf says for people what of a group is paused; "" for nothing.
func pauseOf(g api.Group) string {
	switch {
	case g.Paused:
		return "group " + g.Group + " is paused"
	case len(g.PausedTopics) > 0:
		return "group " + g.Group + " is paused in " + strings.Join(g.PausedTopics, ", ")
	}
	return ""
}

func say(w io.Writer, line string) error {
	_, err := fmt.Fprintln(w, line)
	return err
}
