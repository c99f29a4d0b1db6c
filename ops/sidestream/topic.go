package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kgo"
)

const adminTimeout = 30 * time.Second

func newTopic() *cobra.Command {
	return parent("topic", "Create, list, describe and delete topics",
		`Create, list, describe and delete topics, by Kafka's admin protocol: it works
with any broker that speaks it.`,
		newTopicCreate(), newTopicList(), newTopicDescribe(), newTopicDelete())
}

// admin adds --bootstrap to a command and runs it with an admin client.
func admin(cmd *cobra.Command, run func(context.Context, *kadm.Client, []string) error) *cobra.Command {
	bootstrap := cmd.Flags().StringSlice("bootstrap", []string{"127.0.0.1:9092"}, "brokers to start from, host:port (environment "+envBootstrap+")")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		seeds := *bootstrap
		if env := envOr(envBootstrap, ""); env != "" && !cmd.Flags().Changed("bootstrap") {
			seeds = strings.Split(env, ",")
		}
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
		Args: usage(cobra.ExactArgs(1)),
	}
	partitions := cmd.Flags().Int32("partitions", 4, "number of partitions")
	replication := cmd.Flags().Int16("replication", 1, "number of replicas of each")
	configs := cmd.Flags().StringArray("config", nil, "name=value by Kafka's names, may be repeated")
	var set map[string]*string
	cmd.PreRunE = func(*cobra.Command, []string) (err error) {
		if set, err = pairs(*configs); err != nil {
			return usageError{fmt.Errorf("--config: %w", err)}
		}
		return nil
	}
	return admin(cmd, func(ctx context.Context, client *kadm.Client, args []string) error {
		created, err := client.CreateTopic(ctx, *partitions, *replication, set, args[0])
		if err != nil {
			return fmt.Errorf("creating topic %s: %w", args[0], withText(err, created.ErrMessage))
		}
		_, err = fmt.Fprintf(cmd.OutOrStdout(), "created topic %s with %d partitions\n", args[0], *partitions)
		return err
	})
}

// withText adds what the broker said to the meaning of its error code.
func withText(err error, text string) error {
	if text == "" || strings.Contains(err.Error(), text) {
		return err
	}
	return fmt.Errorf("%w (%s)", err, text)
}

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
	cmd := &cobra.Command{Use: "describe NAME", Short: "Show a topic's partitions, leaders and offsets", Args: usage(cobra.ExactArgs(1))}
	asJSON := cmd.Flags().Bool("json", false, "print JSON")
	return admin(cmd, func(ctx context.Context, client *kadm.Client, args []string) error {
		topics, err := client.ListTopics(ctx, args[0])
		if err != nil {
			return fmt.Errorf("asking for topic %s: %w", args[0], err)
		}
		topic := topics[args[0]]
		if topic.Err != nil {
			return fmt.Errorf("topic %s: %w", args[0], topic.Err)
		}
		rows := partitionRows(ctx, client, topic)
		if *asJSON {
			return printJSON(cmd.OutOrStdout(), map[string]any{"topic": topic.Topic, "id": topic.ID.String(), "partitions": rows})
		}
		return table(cmd.OutOrStdout(), "PARTITION\tLEADER\tREPLICAS\tISR\tSTART\tEND", func(row func(...any)) {
			for _, p := range rows {
				leader := fmt.Sprint(p.Leader)
				if p.Leader < 0 {
					leader = "none"
				}
				row(p.Partition, leader, p.Replicas, p.ISR, offsetText(p.Start), offsetText(p.End))
			}
		})
	})
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
		Args:  usage(cobra.MinimumNArgs(1)),
	}
	return admin(cmd, func(ctx context.Context, client *kadm.Client, args []string) error {
		responses, err := client.DeleteTopics(ctx, args...)
		if err != nil {
			return fmt.Errorf("deleting topics: %w", err)
		}
		var errs []error
		for _, r := range responses.Sorted() {
			switch {
			case errors.Is(r.Err, kerr.UnknownTopicOrPartition):
				errs = append(errs, fmt.Errorf("topic %s does not exist", r.Topic))
			case r.Err != nil:
				errs = append(errs, fmt.Errorf("deleting topic %s: %w", r.Topic, withText(r.Err, r.ErrMessage)))
			default:
				if _, err := fmt.Fprintf(cmd.OutOrStdout(), "deleted topic %s\n", r.Topic); err != nil {
					return err
				}
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
