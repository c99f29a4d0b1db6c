package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

func newGroup() *cobra.Command {
	cmd := parent("group", "List, describe, configure, seek, pause and delete consumer groups",
		"List, describe, configure, seek, pause and delete consumer groups, through a sidecar.",
		newGroupList(), newGroupDescribe(), newGroupConfigure(), newGroupSeek(), newGroupPause(), newGroupResume(), newGroupDead(), newGroupRedrive(), newGroupDelete())
	for _, c := range cmd.Commands() {
		badRequestIsUsage(c)
	}
	return cmd
}

// groupView is all that `group describe` shows.
type groupView struct {
	api.Group
	Offsets []api.Offsets `json:"offsets"`
	Away    []awayRow     `json:"away,omitempty"`  // partitions whose leaders are away
	Notes   []string      `json:"notes,omitempty"` // what is not known, and whose knowledge stands in its place
}

// awayRow are partitions of a topic whose leaders are away.
type awayRow struct {
	Topic      string  `json:"topic"`
	Partitions []int32 `json:"partitions"`
}

func newGroupDescribe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe GROUP [TOPIC...]",
		Short: "Show a group's members, owners, positions and last moves",
		Long: `Show a group's configuration, members, owners, positions with their lag, and
the last moves of partitions with their cause. The positions are those of the
topics that the group consumes now; name topics to see others.`,
		Example: "  sidestream group describe top-pages\n  sidestream group describe nightly orders",
		Args:    arguments("GROUP", "[TOPIC...]"),
	}
	address := sidecarFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		view, err := describeGroup(cmd.Context(), c, args[0], args[1:])
		if err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), view)
		}
		return printGroup(cmd.OutOrStdout(), view)
	}
	return cmd
}

func describeGroup(ctx context.Context, c *sdk.Client, group string, topics []string) (groupView, error) {
	// A store that hangs must not hold up what the sidecar knows without it.
	call, cancel := context.WithTimeout(ctx, askTime)
	g, err := c.Group(call, group)
	cancel()
	if hangs := call.Err() != nil && ctx.Err() == nil && err != nil; hangs || errors.Is(err, &api.Error{Code: api.CodeStoreUnavailable}) {
		if hangs {
			err = errors.New("the sidecar cannot read the group: the coordination store does not answer")
		}
		view, err := groupKnownHere(ctx, c, group, err)
		view.Away = awayOf(view.Offsets)
		return view, err
	}
	if err != nil {
		return groupView{}, err
	}
	view := groupView{Group: g, Offsets: []api.Offsets{}}
	asked := len(topics) > 0
	if !asked {
		topics = topicsOf(g)
	}
	seen := map[string]bool{}
	show := func(o api.Offsets) {
		if !seen[o.Topic] {
			seen[o.Topic] = true
			view.Offsets = append(view.Offsets, o)
		}
	}
	for _, t := range topics {
		o, err := c.Offsets(ctx, group, t)
		if gone := errors.Is(err, &api.Error{Code: api.CodeTopicNotFound}); gone && !asked {
			continue // it was deleted, and the members have not noticed yet
		}
		if away := errors.Is(err, &api.Error{Code: api.CodeBrokersUnavailable}) || errors.Is(err, &api.Error{Code: api.CodeStoreUnavailable}); away {
			view.Notes = append(view.Notes, fmt.Sprintf("the positions in topic %s are not known: %v", t, err))
			continue
		}
		if err != nil {
			return view, fmt.Errorf("positions in topic %s: %w", t, err)
		}
		if !strings.ContainsAny(t, "*,") {
			show(o)
		}
		for _, each := range o.Topics { // a pattern, or several
			show(each)
		}
	}
	view.Away = awayOf(view.Offsets)
	return view, nil
}

// topicsOf lists the topics that a group's members and owners name.
func topicsOf(g api.Group) []string {
	var topics []string
	for _, m := range g.Members {
		topics = append(topics, m.Topics...)
	}
	for _, o := range g.Owners {
		topics = append(topics, o.Topic)
	}
	slices.Sort(topics)
	return slices.Compact(topics)
}

func printGroup(w io.Writer, v groupView) error {
	for _, note := range v.Notes {
		if _, err := fmt.Fprintf(w, "note: %s\n\n", note); err != nil {
			return err
		}
	}
	if _, err := fmt.Fprintf(w, "%s\n\n", groupSettings(v.Group)); err != nil {
		return err
	}
	for _, a := range v.Away {
		if _, err := fmt.Fprintf(w, "away: %s\n\n", a.text()); err != nil {
			return err
		}
	}
	if line := pauseOf(v.Group); line != "" {
		if _, err := fmt.Fprintf(w, "%s\n\n", line); err != nil {
			return err
		}
	}
	if err := table(w, "MEMBER\tADDRESS\tTOPICS\tJOINED", func(row func(...any)) {
		for _, m := range v.Members {
			name := m.Sidecar
			if name == v.Planner {
				name += " (planner)"
			}
			row(name, m.Address, strings.Join(m.Topics, ","), m.Joined.Format(time.RFC3339))
		}
	}); err != nil {
		return err
	}
	for _, o := range v.Offsets {
		rest := ""
		if o.Partial {
			rest = " and what is not known (?): leaders are away"
		}
		if _, err := fmt.Fprintf(w, "\ntopic %s: lag %d%s, %s behind; oldest unacknowledged message out for %s\n",
			o.Topic, o.Lag, rest, age(o.LagSeconds), age(o.OldestUnackedSeconds)); err != nil {
			return err
		}
		if err := table(w, "PARTITION\tPOSITION\tACKED ABOVE\tEND\tLAG\tBEHIND\tUNACKED FOR\tIN FLIGHT\tOWNER\tGENERATION", func(row func(...any)) {
			for _, p := range o.Partitions {
				owner := p.Owner
				if owner == "" {
					owner = "none"
				}
				row(p.Partition, p.Position, p.Acked, known(p.End), known(p.Lag), age(p.LagSeconds), age(p.OldestUnackedSeconds), p.InFlight, owner, p.Generation)
			}
		}); err != nil {
			return err
		}
	}
	if len(v.History) == 0 {
		return nil
	}
	if _, err := fmt.Fprintln(w, "\nlast moves"); err != nil {
		return err
	}
	return table(w, "AT\tPARTITION\tFROM\tTO\tCAUSE", func(row func(...any)) {
		for _, m := range v.History {
			if m.Omitted > 0 {
				row(m.At.Format(time.RFC3339), fmt.Sprintf("%d partitions", m.Omitted), "", "", m.Cause)
				continue
			}
			row(m.At.Format(time.RFC3339), fmt.Sprintf("%s/%d", m.Topic, m.Partition), orNone(m.From), orNone(m.To), m.Cause)
		}
	})
}

// known is a number for people; -1 stands for one that is not known.
func known(n int64) string {
	if n < 0 {
		return "?"
	}
	return fmt.Sprint(n)
}

// age is a number of seconds for people; -1 stands for one that is not known.
func age(seconds float64) string {
	d := time.Duration(seconds * float64(time.Second))
	switch {
	case seconds < 0:
		return "?"
	case d < time.Minute:
		return fmt.Sprintf("%.1fs", seconds)
	case d < 48*time.Hour:
		return d.Round(time.Second).String()
	}
	return fmt.Sprintf("%.1fd", d.Hours()/24)
}

func orNone(s string) string {
	if s == "" {
		return "none"
	}
	return s
}

func newGroupSeek() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "seek GROUP TOPIC",
		Short: "Move a group to another position, while it consumes or not",
		Example: `  sidestream group seek top-pages pageviews --to earliest
  sidestream group seek top-pages pageviews --to 2026-01-31T08:00:00Z
  sidestream group seek top-pages pageviews --offset 0=120 --offset 3=7
  sidestream group seek audit 'orders.*' --to latest`,
		Args: arguments("GROUP", "TOPIC"),
	}
	address := sidecarFlag(cmd)
	to := cmd.Flags().String("to", "", "earliest, latest or a time (RFC 3339)")
	offsets := cmd.Flags().StringToInt64("offset", nil, "exact offset of a partition, partition=offset; may be repeated")
	valuesOf(cmd, "to", "earliest", "latest")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		switch {
		case *to == "" && len(*offsets) == 0:
			return usageError{errors.New("where to is missing: use --to earliest, --to latest, --to with a time (RFC 3339), or --offset partition=offset")}
		case *to != "" && len(*offsets) > 0:
			return usageError{errors.New("--to and --offset are both given: use one, or seek twice")}
		}
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		var sought api.Sought
		if *to != "" {
			sought, err = c.Seek(cmd.Context(), args[0], args[1], *to)
		} else {
			sought, err = c.SeekOffsets(cmd.Context(), args[0], args[1], *offsets)
		}
		if err != nil {
			return err
		}
		if strings.ContainsAny(args[1], "*,") {
			return table(cmd.OutOrStdout(), "TOPIC\tPARTITION\tOFFSET", func(row func(...any)) {
				for _, topic := range slices.Sorted(maps.Keys(sought.Topics)) {
					its := sought.Topics[topic].Offsets
					for _, p := range slices.Sorted(maps.Keys(its)) {
						row(topic, p, its[p])
					}
				}
			})
		}
		return table(cmd.OutOrStdout(), "PARTITION\tOFFSET", func(row func(...any)) {
			for _, p := range slices.Sorted(maps.Keys(sought.Offsets)) {
				row(p, sought.Offsets[p])
			}
		})
	}
	return cmd
}

func newGroupDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete GROUP",
		Short: "Forget a group with all its positions",
		Long: `Forget a group with all its positions. It is refused while the group has members:
a sidecar leaves 30 s (consume.leave_after) after the last pull there.`,
		Args: arguments("GROUP"),
	}
	address := sidecarFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		if err := c.DeleteGroup(cmd.Context(), args[0]); err != nil {
			return err
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "deleted group %s\n", args[0])
		return err
	}
	return cmd
}
