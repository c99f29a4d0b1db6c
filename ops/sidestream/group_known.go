package main

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"

	"sidestream/sdk"
	"sidestream/sdk/api"
	"sidestream/sidecar"
	consuming "sidestream/sidecar/consume"
)

// sidecarStatus is what a sidecar says of itself.
type sidecarStatus struct {
	sidecar.Status
	Consume consuming.Status `json:"consume"`
}

// groupKnownHere is what the sidecar itself knows of a group while the
// coordination store, or the brokers, do not answer: the partitions that it has.
func groupKnownHere(ctx context.Context, c *sdk.Client, group string, why error) (groupView, error) {
	var st sidecarStatus
	if err := c.Status(ctx, &st); err != nil {
		return groupView{}, errors.Join(why, err)
	}
	i := slices.IndexFunc(st.Consume.Groups, func(g consuming.GroupStatus) bool { return g.Group == group })
	if i < 0 {
		return groupView{}, fmt.Errorf("%w; sidecar %s itself has nothing of group %s", why, st.ID, group)
	}
	return viewOfStatus(st.ID, st.Consume.Groups[i], why), nil
}

// viewOfStatus is a group as one sidecar sees it.
func viewOfStatus(id string, g consuming.GroupStatus, why error) groupView {
	view := groupView{Group: api.Group{Group: g.Group, Members: []api.GroupMember{}, Owners: []api.OwnedBy{}, History: []api.Move{}}, Offsets: []api.Offsets{}}
	view.Notes = append(view.Notes, fmt.Sprintf("%v; only what sidecar %s has of the group itself is shown, as it is now: other members, settings and moves are not known", why, id))
	at := map[string]int{}
	for _, p := range g.Partitions {
		i, ok := at[p.Topic]
		if !ok {
			i = len(view.Offsets)
			at[p.Topic] = i
			view.Offsets = append(view.Offsets, api.Offsets{Group: g.Group, Topic: p.Topic, LagSeconds: -1, OldestUnackedSeconds: -1})
		}
		o := &view.Offsets[i]
		row := api.PartitionOffset{Partition: p.Partition, Position: p.Position, Start: -1, End: -1, Lag: -1, LagSeconds: -1, OldestUnackedSeconds: -1,
			InFlight: p.InFlight, Owner: id, Generation: p.Generation, Source: "live"}
		if p.End >= 0 && p.Trouble == "" {
			row.End, row.Lag = p.End, max(0, p.End-p.Position)
			o.Lag += row.Lag
		} else {
			o.Partial = true
		}
		o.Partitions = append(o.Partitions, row)
		view.Owners = append(view.Owners, api.OwnedBy{Topic: p.Topic, Partition: p.Partition, Owner: id, Generation: p.Generation})
	}
	return view
}

// awayOf lists the partitions whose ends nobody tells.
func awayOf(offsets []api.Offsets) []awayRow {
	var all []awayRow
	for _, o := range offsets {
		var list []int32
		for _, p := range o.Partitions {
			if p.End < 0 {
				list = append(list, p.Partition)
			}
		}
		if len(list) > 0 {
			slices.Sort(list)
			all = append(all, awayRow{o.Topic, list})
		}
	}
	return all
}

// text is a row for people; of many partitions the first are named.
func (a awayRow) text() string {
	const most = 20
	var names []string
	for _, p := range a.Partitions[:min(len(a.Partitions), most)] {
		names = append(names, fmt.Sprint(p))
	}
	text := fmt.Sprintf("%s of topic %s: their leaders are away: %s", plural(len(a.Partitions), "partition"), a.Topic, strings.Join(names, ", "))
	if more := len(a.Partitions) - most; more > 0 {
		text += fmt.Sprintf(" and %d more", more)
	}
	return text
}
