package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sync/errgroup"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// groupRow is a group as `group list --json` prints it.
type groupRow struct {
	Group      string     `json:"group"`
	Members    int        `json:"members"`
	Paused     bool       `json:"paused,omitempty"`
	Lag        int64      `json:"lag"`               // messages, of the partitions whose lag is known
	LagSeconds float64    `json:"lag_seconds"`       // the highest of the topics; -1: not known
	Partial    bool       `json:"partial,omitempty"` // the lag lacks partitions whose leaders are away, or topics
	Topics     []groupLag `json:"topics"`
	Error      string     `json:"error,omitempty"` // why nothing more is known
}

// groupLag is where a group stands in a topic.
type groupLag struct {
	Topic      string  `json:"topic"`
	Lag        int64   `json:"lag"`
	LagSeconds float64 `json:"lag_seconds"`
	Partial    bool    `json:"partial,omitempty"`
}

func newGroupList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the groups",
		Long: `List the groups by name; with --json also their members and their lag in each
topic, for which the sidecar asks about every group.`,
		Args: usage(noArgs),
	}
	address := sidecarFlag(cmd)
	asJSON := cmd.Flags().Bool("json", false, "print JSON, with members and lag")
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		if *asJSON {
			rows, err := groupRows(cmd.Context(), c)
			if err != nil {
				return err
			}
			return printJSON(cmd.OutOrStdout(), struct {
				Groups []groupRow `json:"groups"`
			}{rows})
		}
		groups, err := c.Groups(cmd.Context())
		for _, g := range groups {
			if _, err := fmt.Fprintln(cmd.OutOrStdout(), g); err != nil {
				return err
			}
		}
		return err
	}
	return cmd
}

// groupsAtOnce is how many groups are asked about at a time.
const groupsAtOnce = 4

// groupRows asks about every group.
func groupRows(ctx context.Context, c *sdk.Client) ([]groupRow, error) {
	names, err := c.Groups(ctx)
	if err != nil {
		return nil, err
	}
	rows := make([]*groupRow, len(names))
	var g errgroup.Group
	g.SetLimit(groupsAtOnce)
	for i, name := range names {
		g.Go(func() error {
			view, err := describeGroup(ctx, c, name, nil)
			if errors.Is(err, &api.Error{Code: api.CodeGroupNotFound}) {
				return nil // it was deleted meanwhile
			}
			rows[i] = rowOfGroup(name, view, err)
			return ctx.Err()
		})
	}
	if err := g.Wait(); err != nil {
		return nil, err
	}
	all := []groupRow{}
	for _, r := range rows {
		if r != nil {
			all = append(all, *r)
		}
	}
	return all, nil
}

func rowOfGroup(name string, view groupView, err error) *groupRow {
	r := &groupRow{Group: name, Members: len(view.Members), Paused: view.Paused, Topics: []groupLag{}}
	for _, o := range view.Offsets {
		r.Topics = append(r.Topics, groupLag{o.Topic, o.Lag, o.LagSeconds, o.Partial})
		r.Lag += o.Lag
		r.LagSeconds = max(r.LagSeconds, o.LagSeconds)
		r.Partial = r.Partial || o.Partial
	}
	slices.SortFunc(r.Topics, func(a, b groupLag) int { return strings.Compare(a.Topic, b.Topic) })
	if note := strings.Join(view.Notes, "; "); note != "" {
		r.Error, r.Partial = note, true
	}
	if err != nil {
		r.Error, r.Partial, r.LagSeconds = err.Error(), true, -1
	}
	return r
}
