package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// topicList is what `topic list --json` prints.
type topicList struct {
	Source string     `json:"source"` // whose knowledge it is
	AsOf   time.Time  `json:"as_of"`  // how old it is
	Note   string     `json:"note,omitempty"`
	Topics []topicRow `json:"topics"`
}

// topicRow is a topic in the list. What is not known is null.
type topicRow struct {
	Topic       string   `json:"topic"`
	Partitions  int      `json:"partitions"`
	Replication int      `json:"replication"`
	Offline     int      `json:"offline_partitions"` // that have no leader
	Messages    *int64   `json:"messages"`           // between the first and the last offset of the partitions that tell
	Bytes       *int64   `json:"bytes"`              // of one copy of its log, of the partitions that tell
	Rate        *float64 `json:"messages_per_second,omitempty"`
	Lag         *int64   `json:"lag,omitempty"` // of all groups together
	Groups      *int     `json:"groups,omitempty"`
	Partial     bool     `json:"partial,omitempty"` // messages, bytes, rate or lag lack partitions that do not tell
}

func newTopicList() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "list",
		Short: "List the topics with their sizes and what of them is away",
		Long: `List the topics: partitions, copies, how many partitions have no leader, messages
and size. It asks the brokers; where none answers, the agents, and where none of
those does, the sidecar, and says whose knowledge it is and how old.

--rate watches for so long how many messages come. --lag asks the sidecar for the
lag of every group.`,
		Example: "  sidestream topic list\n  sidestream topic list --rate 5s --lag\n  sidestream topic list --agent host2:4101",
		Args:    usage(noArgs),
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	rate := cmd.Flags().Duration("rate", 0, "measure messages per second for so long, such as 5s; 0: not at all")
	lag := cmd.Flags().Bool("lag", false, "show the lag of all groups together, as the sidecar knows it")
	from := sourceFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if *rate < 0 || *rate > time.Hour {
			return usageError{fmt.Errorf("--rate: got %s: use a duration up to 1h", *rate)}
		}
		var rates map[partitionKey]float64
		k, err := from.topics(cmd.Context(), nil, func(ctx context.Context, kafka *kgo.Client, k *knowledge) {
			addOffsets(ctx, kafka, k)
			addSizes(ctx, kafka, k)
			if *rate > 0 {
				rates = ratesOf(cmd.Context(), kafka, k, *rate)
			}
		})
		if err != nil {
			return err
		}
		var lags map[string]topicLag
		if *lag {
			if lags, err = from.lags(cmd.Context()); err != nil {
				return fmt.Errorf("the lag is not known: %w", err)
			}
		}
		list := topicList{Source: k.Source, AsOf: k.AsOf, Note: k.Note, Topics: []topicRow{}}
		for _, t := range k.Topics {
			list.Topics = append(list.Topics, rowOf(t, rates, *rate > 0, lags))
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), list)
		}
		if err := printTopics(cmd.OutOrStdout(), list.Topics, *rate > 0, *lag); err != nil {
			return err
		}
		return tellSource(cmd.ErrOrStderr(), k)
	}
	return cmd
}

// tellSource says whose knowledge was shown, unless it is the brokers' and
// nothing is amiss.
func tellSource(w io.Writer, k knowledge) error {
	offline, topics := 0, 0
	for _, t := range k.Topics {
		if n := len(t.offline()); n > 0 {
			offline, topics = offline+n, topics+1
		}
	}
	if offline > 0 {
		if _, err := fmt.Fprintf(w, "%s of %s without a leader; \"sidestream status\" says more\n", plural(offline, "partition"), plural(topics, "topic")); err != nil {
			return err
		}
	}
	if offline == 0 && k.Note == "" {
		return nil
	}
	_, err := fmt.Fprintln(w, k.said(time.Now()))
	return err
}

// rowOf sums up a topic's partitions.
func rowOf(t topicKnown, rates map[partitionKey]float64, rated bool, lags map[string]topicLag) topicRow {
	row := topicRow{Topic: t.Topic, Partitions: len(t.Partitions), Offline: len(t.offline())}
	var messages, bytes int64
	var rate float64
	counted, sized, measured := 0, 0, 0
	for _, p := range t.Partitions {
		row.Replication = max(row.Replication, len(p.Replicas))
		if p.Start != nil && p.End != nil {
			messages += *p.End - *p.Start
			counted++
		}
		if p.Bytes != nil {
			bytes += *p.Bytes
			sized++
		}
		if r, ok := rates[partitionKey{t.Topic, p.Partition}]; ok {
			rate += r
			measured++
		}
	}
	n := len(t.Partitions)
	row.Partial = counted > 0 && counted < n || sized > 0 && sized < n || measured > 0 && measured < n
	if counted > 0 {
		row.Messages = &messages
	}
	if sized > 0 {
		row.Bytes = &bytes
	}
	if rated && measured > 0 {
		row.Rate = &rate
	}
	if lags != nil {
		of := lags[t.Topic]
		row.Lag, row.Groups = &of.lag, &of.groups
		row.Partial = row.Partial || of.partial
	}
	return row
}

// ratesOf watches the ends of all partitions for a while.
func ratesOf(ctx context.Context, kafka *kgo.Client, k *knowledge, wait time.Duration) map[partitionKey]float64 {
	began := time.Now()
	before := offsetsOf(ctx, kafka, k, -1)
	select {
	case <-time.After(wait):
	case <-ctx.Done():
		return nil
	}
	rates := map[partitionKey]float64{}
	for at, end := range offsetsOf(ctx, kafka, k, -1) {
		if was, ok := before[at]; ok {
			rates[at] = float64(end-was) / time.Since(began).Seconds()
		}
	}
	return rates
}

// topicLag is what all groups together have not acknowledged of a topic.
type topicLag struct {
	lag     int64
	groups  int
	partial bool
}

// lags asks the sidecar for all groups.
func (s sources) lags(ctx context.Context) (map[string]topicLag, error) {
	c, err := client(s.cmd, *s.sidecar)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	groups, err := groupRows(ctx, c)
	if err != nil {
		return nil, err
	}
	lags := map[string]topicLag{}
	for _, g := range groups {
		for _, t := range g.Topics {
			of := lags[t.Topic]
			lags[t.Topic] = topicLag{of.lag + t.Lag, of.groups + 1, of.partial || t.Partial}
		}
	}
	return lags, nil
}

func printTopics(w io.Writer, rows []topicRow, rate, lag bool) error {
	header := "TOPIC\tPARTITIONS\tREPLICATION\tNO LEADER\tMESSAGES\tSIZE"
	if rate {
		header += "\tMESSAGES/S"
	}
	if lag {
		header += "\tLAG\tGROUPS"
	}
	return table(w, header, func(row func(...any)) {
		for _, t := range rows {
			more := ""
			if t.Partial {
				more = "+"
			}
			cells := []any{t.Topic, t.Partitions, t.Replication, t.Offline, orUnknown(t.Messages, more, func(n int64) string { return fmt.Sprint(n) }), orUnknown(t.Bytes, more, sizeText)}
			if rate {
				cells = append(cells, orUnknown(t.Rate, more, func(r float64) string { return fmt.Sprintf("%.1f", r) }))
			}
			if lag {
				cells = append(cells, orUnknown(t.Lag, more, func(n int64) string { return fmt.Sprint(n) }), orUnknown(t.Groups, "", func(n int) string { return fmt.Sprint(n) }))
			}
			row(cells...)
		}
	})
}

func orUnknown[T any](v *T, more string, text func(T) string) string {
	if v == nil {
		return "?"
	}
	return text(*v) + more
}

// sizeText is a number of bytes for people.
func sizeText(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	f, i := float64(n), 0
	for f >= 1024 && i < len(units)-1 {
		f, i = f/1024, i+1
	}
	if i == 0 {
		return fmt.Sprintf("%d B", n)
	}
	return fmt.Sprintf("%.1f %s", f, units[i])
}

// topicView is a topic as `topic describe` shows it.
type topicView struct {
	Topic      string            `json:"topic"`
	ID         string            `json:"id,omitempty"`
	Configs    map[string]string `json:"configs"`              // set for the topic; the others are the brokers' defaults
	NoConfigs  string            `json:"no_configs,omitempty"` // why they are not known
	Partitions []partitionRow    `json:"partitions"`
	Offline    int               `json:"offline_partitions"`
	Source     string            `json:"source"`
	AsOf       time.Time         `json:"as_of"`
	Note       string            `json:"note,omitempty"`
}

// partitionRow is one partition as `topic describe` prints it.
type partitionRow struct {
	Partition int32   `json:"partition"`
	Leader    int32   `json:"leader"` // -1: none
	Replicas  []int32 `json:"replicas"`
	ISR       []int32 `json:"isr"`
	Start     *int64  `json:"start"` // nil: the leader is away
	End       *int64  `json:"end"`
	Bytes     *int64  `json:"bytes"`
	Error     string  `json:"error,omitempty"`
}

func newTopicDescribe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show a topic's configs, partitions, leaders, offsets and sizes",
		Long: `Show a topic's partitions with their leaders, offsets and sizes, and the configs
that were set for it. With --all-configs also those that are the brokers' defaults.
It asks as "topic list" does; only brokers know the configs.`,
		Args: arguments("NAME"),
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	all := cmd.Flags().Bool("all-configs", false, "show configs that are defaults too")
	from := sourceFlags(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		view := topicView{Configs: map[string]string{}, NoConfigs: "no broker answers"}
		var failed error
		k, err := from.topics(cmd.Context(), args, func(ctx context.Context, kafka *kgo.Client, k *knowledge) {
			addOffsets(ctx, kafka, k)
			addSizes(ctx, kafka, k)
			if len(k.Topics) == 1 && k.Topics[0].Err == nil {
				view.NoConfigs = ""
				view.Configs, failed = topicConfigs(ctx, kadm.NewClient(kafka), args[0], *all)
			}
		})
		switch {
		case isUnknownTopic(err), err == nil && len(k.Topics) == 0:
			return topicError(args[0], kerr.UnknownTopicOrPartition, "")
		case err != nil:
			return err
		case failed != nil:
			return failed
		case k.Topics[0].Err != nil:
			return topicError(args[0], k.Topics[0].Err, "")
		}
		t := k.Topics[0]
		view.Topic, view.ID, view.Partitions, view.Offline = t.Topic, t.UUID, t.Partitions, len(t.offline())
		view.Source, view.AsOf, view.Note = k.Source, k.AsOf, k.Note
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), view)
		}
		if err := printTopic(cmd.OutOrStdout(), view); err != nil {
			return err
		}
		return tellSource(cmd.ErrOrStderr(), k)
	}
	return cmd
}

// isUnknownTopic says whether a sidecar said that there is no such topic.
func isUnknownTopic(err error) bool {
	return errors.Is(err, &api.Error{Code: api.CodeTopicNotFound})
}

func printTopic(w io.Writer, view topicView) error {
	for _, name := range slices.Sorted(maps.Keys(view.Configs)) {
		if _, err := fmt.Fprintf(w, "%s=%s\n", name, view.Configs[name]); err != nil {
			return err
		}
	}
	if len(view.Configs) > 0 {
		if _, err := fmt.Fprintln(w); err != nil {
			return err
		}
	}
	return table(w, "PARTITION\tLEADER\tREPLICAS\tISR\tSTART\tEND\tSIZE", func(row func(...any)) {
		for _, p := range view.Partitions {
			leader := fmt.Sprint(p.Leader)
			if p.Leader < 0 {
				leader = "none"
			}
			row(p.Partition, leader, p.Replicas, p.ISR, offsetText(p.Start), offsetText(p.End), orUnknown(p.Bytes, "", sizeText))
		}
	})
}

func offsetText(o *int64) string {
	if o == nil {
		return "?"
	}
	return fmt.Sprint(*o)
}
