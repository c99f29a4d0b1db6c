package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

const adminTimeout = 30 * time.Second

func newTopic() *cobra.Command {
	return parent("topic", "Create, list, describe, read, alter and delete topics",
		`Create, list, describe, read, alter and delete topics, by Kafka's own protocol: it
works with any broker that speaks it.`,
		newTopicCreate(), newTopicList(), newTopicDescribe(), newTopicRead(), newTopicAlter(), newTopicDelete())
}

// bootstrapFlag adds --bootstrap to a command.
func bootstrapFlag(cmd *cobra.Command) *[]string {
	return cmd.Flags().StringSlice("bootstrap", []string{"127.0.0.1:9092"}, "brokers to start from, host:port (environment "+envBootstrap+")")
}

// seedsOf are the brokers that --bootstrap, or else the environment, names.
func seedsOf(cmd *cobra.Command, flag []string) []string {
	if env := envOr(envBootstrap, ""); env != "" && !cmd.Flags().Changed("bootstrap") {
		return strings.Split(env, ",")
	}
	return flag
}

// admin adds --bootstrap to a command and runs it with an admin client.
func admin(cmd *cobra.Command, run func(context.Context, *kadm.Client, []string) error) *cobra.Command {
	bootstrap := bootstrapFlag(cmd)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		seeds := seedsOf(cmd, *bootstrap)
		kafka, err := kgo.NewClient(kgo.SeedBrokers(seeds...), kgo.ClientID("sidestream-cli"), kgo.RetryTimeout(adminTimeout))
		if err != nil {
			return usageError{err}
		}
		defer kafka.Close()
		ctx, cancel := context.WithTimeout(cmd.Context(), adminTimeout)
		defer cancel()
		pingCtx, stop := context.WithTimeout(ctx, 5*time.Second)
		defer stop()
		if err := kafka.Ping(pingCtx); err != nil {
			return fmt.Errorf("no broker answers at %s (is one running? see --bootstrap): %w", strings.Join(seeds, ", "), err)
		}
		defer after(0, cmd.ErrOrStderr(), fmt.Sprintf("waiting for the brokers, up to %s (after the loss of a host they first need another controller)", adminTimeout))()
		return run(ctx, kadm.NewClient(kafka), args)
	}
	return cmd
}

func newTopicCreate() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "create NAME",
		Short: "Create a topic",
		Example: `  sidestream topic create orders --partitions 8
  sidestream topic create audit --config retention.ms=86400000 --config segment.bytes=104857600`,
		Args: arguments("NAME"),
	}
	partitions := cmd.Flags().Int32("partitions", -1, "number of partitions, -1: as the brokers are set (default_partitions)")
	replication := cmd.Flags().Int16("replication", -1, "number of replicas of each, -1: as the brokers are set (default_replication)")
	configs := cmd.Flags().StringArray("config", nil, "name=value by Kafka's names; may be repeated")
	var set map[string]*string
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if set, err = pairs(*configs); err != nil {
			return usageError{fmt.Errorf("--config: %w", err)}
		}
		if *partitions < 1 && *partitions != -1 {
			return usageError{fmt.Errorf("--partitions: got %d: use 1 or more, or -1 for what the brokers are set to", *partitions)}
		}
		if *replication < 1 && *replication != -1 {
			return usageError{fmt.Errorf("--replication: got %d: use 1 or more, or -1 for what the brokers are set to", *replication)}
		}
		return nil
	}
	return admin(cmd, func(ctx context.Context, client *kadm.Client, args []string) error {
		created, err := client.CreateTopic(ctx, *partitions, *replication, set, args[0])
		if err != nil {
			return fmt.Errorf("creating topic %s: %w", args[0], withText(err, created.ErrMessage))
		}
		made := int(created.NumPartitions) // not told by old brokers
		if made < 1 {
			made = int(*partitions)
		}
		text := "created topic " + args[0]
		if made > 0 {
			text += " with " + plural(made, "partition")
		}
		_, err = fmt.Fprintln(cmd.OutOrStdout(), text)
		return err
	})
}

// withText is an error code with what the broker said of it, which is the same in
// better words.
func withText(err error, text string) error {
	if code, ok := errors.AsType[*kerr.Error](err); ok && text != "" {
		return &saidError{code: code, text: text}
	}
	return err
}

type saidError struct {
	code *kerr.Error
	text string
}

func (e *saidError) Error() string { return e.text + " (" + e.code.Message + ")" }
func (e *saidError) Unwrap() error { return e.code }

func pairs(list []string) (map[string]*string, error) {
	set := map[string]*string{}
	for _, pair := range list {
		name, value, found := strings.Cut(pair, "=")
		if !found || name == "" {
			return nil, fmt.Errorf("got %q: use name=value such as retention.ms=86400000", pair)
		}
		set[name] = &value
	}
	return set, nil
}

func newTopicList() *cobra.Command {
	cmd := &cobra.Command{Use: "list", Short: "List the topics", Args: usage(noArgs)}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	return admin(cmd, func(ctx context.Context, client *kadm.Client, _ []string) error {
		topics, err := client.ListTopics(ctx)
		if err != nil {
			return fmt.Errorf("listing topics: %w", err)
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), topics.Names())
		}
		return table(cmd.OutOrStdout(), "TOPIC\tPARTITIONS\tREPLICATION", func(row func(...any)) {
			for _, t := range topics.Sorted() {
				row(t.Topic, len(t.Partitions), t.Partitions.NumReplicas())
			}
		})
	})
}

// topicView is a topic as `topic describe` shows it.
type topicView struct {
	Topic      string            `json:"topic"`
	ID         string            `json:"id,omitempty"`
	Configs    map[string]string `json:"configs"` // set for the topic; the others are the brokers' defaults
	Partitions []partitionRow    `json:"partitions"`
}

// partitionRow is one partition as `topic describe` prints it.
type partitionRow struct {
	Partition int32   `json:"partition"`
	Leader    int32   `json:"leader"`
	Replicas  []int32 `json:"replicas"`
	ISR       []int32 `json:"isr"`
	Start     *int64  `json:"start"` // nil: the leader is away
	End       *int64  `json:"end"`
	Error     string  `json:"error,omitempty"`
}

func newTopicDescribe() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "describe NAME",
		Short: "Show a topic's configs, partitions, leaders and offsets",
		Long: `Show a topic's partitions with their leaders and offsets, and the configs that
were set for it. With --all-configs also those that are the brokers' defaults.`,
		Args: arguments("NAME"),
	}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	all := cmd.Flags().Bool("all-configs", false, "show configs that are defaults too")
	return admin(cmd, func(ctx context.Context, client *kadm.Client, args []string) error {
		topics, err := client.ListTopics(ctx, args[0])
		if err != nil {
			return fmt.Errorf("asking for topic %s: %w", args[0], err)
		}
		topic := topics[args[0]]
		if topic.Err != nil {
			return topicError(args[0], topic.Err, "")
		}
		view := topicView{Topic: topic.Topic, ID: topic.ID.String(), Partitions: partitionRows(ctx, client, topic)}
		if view.Configs, err = topicConfigs(ctx, client, topic.Topic, *all); err != nil {
			return err
		}
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), view)
		}
		return printTopic(cmd.OutOrStdout(), view)
	})
}

// topicConfigs asks for the configs that were set for a topic, or for all.
func topicConfigs(ctx context.Context, client *kadm.Client, topic string, all bool) (map[string]string, error) {
	described, err := client.DescribeTopicConfigs(ctx, topic)
	if err != nil {
		return nil, fmt.Errorf("asking for the configs of topic %s: %w", topic, err)
	}
	configs := map[string]string{}
	for _, resource := range described {
		if resource.Err != nil {
			return nil, fmt.Errorf("asking for the configs of topic %s: %w", topic, withText(resource.Err, resource.ErrMessage))
		}
		for _, c := range resource.Configs {
			if all || c.Source == kmsg.ConfigSourceDynamicTopicConfig {
				configs[c.Key] = c.MaybeValue()
			}
		}
	}
	return configs, nil
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
	return table(w, "PARTITION\tLEADER\tREPLICAS\tISR\tSTART\tEND", func(row func(...any)) {
		for _, p := range view.Partitions {
			leader := fmt.Sprint(p.Leader)
			if p.Leader < 0 {
				leader = "none"
			}
			row(p.Partition, leader, p.Replicas, p.ISR, offsetText(p.Start), offsetText(p.End))
		}
	})
}

// topicError tells what a broker refused for a topic.
func topicError(topic string, err error, text string) error {
	if errors.Is(err, kerr.UnknownTopicOrPartition) {
		return fmt.Errorf("topic %s does not exist", topic)
	}
	return fmt.Errorf("topic %s: %w", topic, withText(err, text))
}

func newTopicAlter() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "alter NAME",
		Short: "Change a topic's configs",
		Long: `Set configs of a topic, or take them back to the brokers' defaults. All of them
are changed or none; those that are not named stay. "topic describe" shows them.`,
		Example: `  sidestream topic alter orders --config retention.ms=3600000
  sidestream topic alter orders --config retention.bytes=1073741824 --delete-config retention.ms`,
		Args: arguments("NAME"),
	}
	set := cmd.Flags().StringArray("config", nil, "name=value by Kafka's names; may be repeated")
	remove := cmd.Flags().StringArray("delete-config", nil, "name of a config to take back to the default; may be repeated")
	var changes []kadm.AlterConfig
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if changes, err = alterations(*set, *remove); err != nil {
			return usageError{err}
		}
		return nil
	}
	return admin(cmd, func(ctx context.Context, client *kadm.Client, args []string) error {
		responses, err := client.AlterTopicConfigs(ctx, changes, args[0])
		if err != nil {
			return fmt.Errorf("altering topic %s: %w", args[0], err)
		}
		for _, r := range responses {
			if r.Err != nil {
				return topicError(r.Name, r.Err, r.ErrMessage)
			}
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "altered topic %s\n", args[0])
		return err
	})
}

// alterations are the changes that the flags of `topic alter` ask for.
func alterations(set, remove []string) ([]kadm.AlterConfig, error) {
	values, err := pairs(set)
	if err != nil {
		return nil, fmt.Errorf("--config: %w", err)
	}
	var changes []kadm.AlterConfig
	for _, name := range slices.Sorted(maps.Keys(values)) {
		changes = append(changes, kadm.AlterConfig{Op: kadm.SetConfig, Name: name, Value: values[name]})
	}
	for _, name := range remove {
		if name == "" || strings.Contains(name, "=") {
			return nil, fmt.Errorf("--delete-config: got %q: use a name such as retention.ms", name)
		}
		if _, both := values[name]; both {
			return nil, fmt.Errorf("%s is both set and deleted: name it once", name)
		}
		changes = append(changes, kadm.AlterConfig{Op: kadm.DeleteConfig, Name: name})
	}
	if len(changes) == 0 {
		return nil, errors.New("nothing to change: use --config name=value or --delete-config name")
	}
	return changes, nil
}

func offsetText(o *int64) string {
	if o == nil {
		return "?"
	}
	return fmt.Sprint(*o)
}

// partitionRows adds the offsets where the leaders tell them.
func partitionRows(ctx context.Context, client *kadm.Client, topic kadm.TopicDetail) []partitionRow {
	starts, _ := client.ListStartOffsets(ctx, topic.Topic) // what is missing is shown as not known
	ends, _ := client.ListEndOffsets(ctx, topic.Topic)
	var rows []partitionRow
	for _, p := range topic.Partitions.Sorted() {
		r := partitionRow{Partition: p.Partition, Leader: p.Leader, Replicas: p.Replicas, ISR: p.ISR}
		if o, ok := starts.Lookup(topic.Topic, p.Partition); ok && o.Err == nil {
			r.Start = &o.Offset
		}
		if o, ok := ends.Lookup(topic.Topic, p.Partition); ok && o.Err == nil {
			r.End = &o.Offset
		}
		if p.Err != nil {
			r.Error = p.Err.Error()
		}
		rows = append(rows, r)
	}
	return rows
}

func newTopicDelete() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "delete NAME...",
		Short: "Delete topics with all their messages",
		Args:  arguments("NAME..."),
	}
	return admin(cmd, func(ctx context.Context, client *kadm.Client, args []string) error {
		responses, err := client.DeleteTopics(ctx, args...)
		if err != nil {
			return fmt.Errorf("deleting topics: %w", err)
		}
		var errs []error
		for _, r := range responses.Sorted() {
			if r.Err != nil {
				errs = append(errs, topicError(r.Topic, r.Err, r.ErrMessage))
				continue
			}
			if _, err := fmt.Fprintf(cmd.OutOrStdout(), "deleted topic %s\n", r.Topic); err != nil {
				return err
			}
		}
		return errors.Join(errs...)
	})
}

func printJSON(w io.Writer, v any) error {
	e := json.NewEncoder(w)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// table prints rows under a header of tab-separated names.
func table(w io.Writer, header string, fill func(row func(cells ...any))) error {
	t := tabwriter.NewWriter(w, 0, 4, 2, ' ', 0)
	_, err := fmt.Fprintln(t, header)
	fill(func(cells ...any) {
		texts := make([]string, len(cells))
		for i, c := range cells {
			texts[i] = fmt.Sprint(c)
		}
		if _, e := fmt.Fprintln(t, strings.Join(texts, "\t")); err == nil {
			err = e
		}
	})
	return errors.Join(err, t.Flush())
}
