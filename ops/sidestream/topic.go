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
		Short: "Change a topic's configs, or give it more partitions",
		Long: `Set configs of a topic, or take them back to the brokers' defaults. All of them
are changed or none; those that are not named stay. "topic describe" shows them.

--partitions gives the topic more partitions, up to so many in all; none can be
taken away. Messages of a key may go to another partition from then on, so their
order is kept only within what was written before and within what comes after.
With configs beside it, the partitions are added once the configs are changed.`,
		Example: `  sidestream topic alter orders --config retention.ms=3600000
  sidestream topic alter orders --config retention.bytes=1073741824 --delete-config retention.ms
  sidestream topic alter orders --partitions 12`,
		Args: arguments("NAME"),
	}
	set := cmd.Flags().StringArray("config", nil, "name=value by Kafka's names; may be repeated")
	remove := cmd.Flags().StringArray("delete-config", nil, "name of a config to take back to the default; may be repeated")
	partitions := cmd.Flags().Int("partitions", 0, "number of partitions to have in all, more than now; 0: as it is")
	var changes []kadm.AlterConfig
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if cmd.Flags().Changed("partitions") && *partitions < 1 {
			return usageError{fmt.Errorf("--partitions: got %d: use the number to have in all", *partitions)}
		}
		if changes, err = alterations(*set, *remove, *partitions > 0); err != nil {
			return usageError{err}
		}
		return nil
	}
	return admin(cmd, func(ctx context.Context, client *kadm.Client, args []string) error {
		if len(changes) > 0 {
			responses, err := client.AlterTopicConfigs(ctx, changes, args[0])
			if err != nil {
				return fmt.Errorf("altering topic %s: %w", args[0], err)
			}
			for _, r := range responses {
				if r.Err != nil {
					return topicError(r.Name, r.Err, r.ErrMessage)
				}
			}
		}
		if *partitions > 0 {
			if err := addPartitions(ctx, client, args[0], *partitions); err != nil {
				if len(changes) > 0 {
					return fmt.Errorf("the configs are changed, but the partitions are not: %w", err)
				}
				return err
			}
		}
		_, err := fmt.Fprintf(cmd.OutOrStdout(), "altered topic %s\n", args[0])
		return err
	})
}

func addPartitions(ctx context.Context, client *kadm.Client, topic string, count int) error {
	responses, err := client.UpdatePartitions(ctx, count, topic)
	if err != nil {
		return fmt.Errorf("adding partitions to topic %s: %w", topic, err)
	}
	for _, r := range responses {
		if r.Err != nil {
			return topicError(r.Topic, r.Err, r.ErrMessage)
		}
	}
	return nil
}

// alterations are the changes that the flags of `topic alter` ask for; more says
// that they ask for something besides.
func alterations(set, remove []string, more bool) ([]kadm.AlterConfig, error) {
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
	if len(changes) == 0 && !more {
		return nil, errors.New("nothing to change: use --config name=value, --delete-config name or --partitions number")
	}
	return changes, nil
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
