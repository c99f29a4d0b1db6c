package main

import (
	"context"
	"errors"
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
	}, (*sdk.Client).Pause, func(g api.Group, _ []string) string { return pauseOf(g) })
}

func newGroupResume() *cobra.Command {
	return pauseOrResume(&cobra.Command{
		Use:     "resume GROUP [TOPIC...]",
		Short:   "End a pause, all of it or that of some topics",
		Example: "  sidestream group resume top-pages",
	}, (*sdk.Client).Resume, resumeOf)
}

// pauseOrResume makes a command of a call; done says what became of the group
// and the topics that were named.
func pauseOrResume(cmd *cobra.Command, do func(*sdk.Client, context.Context, string, ...string) (api.Group, error), done func(api.Group, []string) string) *cobra.Command {
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
		if err := say(cmd.OutOrStdout(), done(g, args[1:])); err != nil {
			return err
		}
		for _, topic := range args[1:] {
			if _, err := c.Topic(cmd.Context(), topic); errors.Is(err, &api.Error{Code: api.CodeTopicNotFound}) {
				if err := say(cmd.ErrOrStderr(), "topic "+topic+" does not exist: what was said of it holds once it does"); err != nil {
					return err
				}
			}
		}
		return nil
	}
	return cmd
}

// resumeOf says for people what goes on after a resume, and what does not.
func resumeOf(g api.Group, topics []string) string {
	line := "group " + g.Group + " goes on"
	if len(topics) > 0 {
		line += " in " + strings.Join(topics, ", ")
	}
	if still := pauseOf(g); still != "" {
		line += "; " + still
	}
	return line
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

// What some settings of a group may be.
var (
	orders      = []string{"partition", "key", "none"}
	exclusives  = []string{"available", "strict"}
	unreadables = []string{"dead", "skip", "stop"}
)

func newGroupConfigure() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "configure GROUP",
		Short: "Make a group, or change its settings while it consumes or not",
		Long: `Make a group, or change its settings while it consumes or not. What is left out
stays as it is, in a new group as the default. --from matters only for topics
that the group has not begun to consume.`,
		Example: "  sidestream group configure billing --order key --max-attempts 5\n  sidestream group configure dashboard-7 --ephemeral --from latest",
		Args:    arguments("GROUP"),
	}
	address := sidecarFlag(cmd)
	var c api.GroupConfig
	f := cmd.Flags()
	f.StringVar(&c.Order, "order", "", "what waits for what within a partition: partition, key or none")
	f.StringVar(&c.Lease, "lease", "", "time to acknowledge where a pull names none, such as 30s")
	attempts := f.Int("max-attempts", 0, "hand-outs after which a message is a dead letter; 0: no limit")
	f.StringVar(&c.Exclusive, "exclusive", "", "available goes on without Consul, strict stops")
	f.StringVar(&c.From, "from", "", "where it starts: earliest, latest or a time (RFC 3339)")
	f.StringVar(&c.Dead, "dead", "", "topic of its dead letters, skip or off")
	f.StringVar(&c.Unreadable, "unreadable", "", "records that nobody can read: dead, skip or stop")
	ephemeral := f.Bool("ephemeral", false, "remove the group soon after its last member left; --ephemeral=false takes it back")
	valuesOf(cmd, "order", orders...)
	valuesOf(cmd, "exclusive", exclusives...)
	valuesOf(cmd, "from", "earliest", "latest")
	valuesOf(cmd, "unreadable", unreadables...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		for _, err := range []error{
			oneOf("order", c.Order, orders...), oneOf("exclusive", c.Exclusive, exclusives...), oneOf("unreadable", c.Unreadable, unreadables...),
		} {
			if err != nil {
				return err
			}
		}
		if f.Changed("max-attempts") {
			c.MaxAttempts = attempts
		}
		if f.Changed("ephemeral") {
			c.Ephemeral = ephemeral
		}
		s, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer s.Close()
		g, err := s.ConfigureGroup(cmd.Context(), args[0], c)
		if err != nil {
			return err
		}
		return say(cmd.OutOrStdout(), groupSettings(g))
	}
	return cmd
}

// groupSettings are a group's settings in one line for people.
func groupSettings(g api.Group) string {
	attempts := "no limit"
	if g.Config.MaxAttempts != nil && *g.Config.MaxAttempts > 0 {
		attempts = fmt.Sprint(*g.Config.MaxAttempts)
	}
	line := fmt.Sprintf("group %s: order %s, lease %s, attempts %s, dead letters %s, unreadable %s, exclusive %s, from %s",
		g.Group, g.Config.Order, g.Config.Lease, attempts, g.Config.Dead, orNone(g.Config.Unreadable), g.Config.Exclusive, g.Config.From)
	if g.Config.Ephemeral != nil && *g.Config.Ephemeral {
		line += ", ephemeral"
	}
	return line
}
