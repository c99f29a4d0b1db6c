package main

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk"
)

// completionTime is how long a shell may wait for names: whoever presses Tab
// while nothing answers gets none, soon.
const completionTime = time.Second

// completeNames completes the arguments of a command by the words of its usage:
// TOPIC, NAME (of a topic) and GROUP with what there is, FILE with files.
func completeNames(c *cobra.Command) {
	words := strings.Fields(c.Use)[1:]
	if c.ValidArgsFunction != nil || len(words) == 0 || c.HasSubCommands() {
		return
	}
	c.ValidArgsFunction = func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) >= len(words) && !strings.Contains(words[len(words)-1], "...") {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		var names []string
		switch strings.Trim(words[min(len(args), len(words)-1)], "[].") {
		case "FILE":
			return nil, cobra.ShellCompDirectiveDefault
		case "GROUP":
			names = groupNames(cmd)
		case "TOPIC", "NAME":
			names = topicNames(cmd)
		}
		return besides(names, args, begun), cobra.ShellCompDirectiveNoFileComp
	}
}

// completeFlag completes a flag's value, where the command has the flag.
func completeFlag(c *cobra.Command, flag string, names func(*cobra.Command) []string) {
	if c.Flags().Lookup(flag) == nil {
		return
	}
	// The error is that the flag has a completion already, which then stays.
	_ = c.RegisterFlagCompletionFunc(flag, func(cmd *cobra.Command, _ []string, begun string) ([]string, cobra.ShellCompDirective) {
		return besides(names(cmd), nil, begun), cobra.ShellCompDirectiveNoFileComp
	})
}

// besides are the names that begin so and were not given yet.
func besides(names, given []string, begun string) []string {
	return slices.DeleteFunc(names, func(name string) bool {
		return !strings.HasPrefix(name, begun) || slices.Contains(given, name)
	})
}

func groupNames(cmd *cobra.Command) []string {
	return fromSidecar(cmd, (*sdk.Client).Groups)
}

// topicNames asks whom the command itself would ask.
func topicNames(cmd *cobra.Command) []string {
	if cmd.Flags().Lookup("bootstrap") == nil {
		return fromSidecar(cmd, func(c *sdk.Client, ctx context.Context) (names []string, err error) {
			topics, err := c.Topics(ctx)
			for _, t := range topics {
				names = append(names, t.Topic)
			}
			return names, err
		})
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	flag, _ := cmd.Flags().GetStringSlice("bootstrap") // it is there
	kafka, err := kgo.NewClient(kgo.SeedBrokers(seedsOf(cmd, flag)...), kgo.ClientID("sidestream-cli"), kgo.RetryTimeout(completionTime))
	if err != nil {
		return nil
	}
	defer kafka.Close()
	topics, err := kadm.NewClient(kafka).ListTopics(ctx)
	if err != nil {
		return nil
	}
	return topics.Names()
}

func fromSidecar(cmd *cobra.Command, ask func(*sdk.Client, context.Context) ([]string, error)) []string {
	flag, err := cmd.Flags().GetString("sidecar")
	if err != nil {
		return nil
	}
	c, err := client(cmd, flag)
	if err != nil {
		return nil
	}
	defer c.Close()
	ctx, cancel := context.WithTimeout(cmd.Context(), completionTime)
	defer cancel()
	names, _ := ask(c, ctx) // without an answer there is nothing to complete
	return names
}
