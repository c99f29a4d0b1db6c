package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

func newGroupDead() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "dead GROUP TOPIC",
		Short: "Show messages of a topic that a group gave up",
		Long: `Show messages of a topic that a group gave up: they were handed out as often as
the group allows (max_attempts), or nobody can read them. Those that were
brought back or discarded are left out, unless --all is given.`,
		Example: "  sidestream group dead mailer orders\n  sidestream group dead mailer orders --json | jq -r .message.value",
		Args:    arguments("GROUP", "TOPIC"),
	}
	address := sidecarFlag(cmd)
	most := cmd.Flags().Int("max", 20, "letters at most")
	reason := reasonFlag(cmd)
	dead := cmd.Flags().String("dead", "", "topic of the letters, in place of the group's")
	all := cmd.Flags().Bool("all", false, "show those too that were brought back or discarded")
	asJSON := cmd.Flags().Bool("json", false, "print one JSON object a letter")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if *most < 1 {
			return usageError{fmt.Errorf("--max: got %d: use 1 or more", *most)}
		}
		if err := oneOf("reason", *reason, deadReasons...); err != nil {
			return err
		}
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		letters, more, unread, err := deadLetters(cmd.Context(), c, args[0], args[1], sdk.DeadOptions{Max: *most, Reason: *reason, Dead: *dead, All: *all})
		if err != nil {
			return err
		}
		if *asJSON {
			for _, l := range letters {
				if err := printJSON(cmd.OutOrStdout(), l); err != nil {
					return err
				}
			}
		} else if err := printLetters(cmd.OutOrStdout(), letters, more); err != nil {
			return err
		}
		return unreadError(unread)
	}
	return cmd
}

func reasonFlag(cmd *cobra.Command) *string {
	reason := cmd.Flags().String("reason", "", "letters of this reason only: max_attempts, window_full, undecodable or oversized")
	valuesOf(cmd, "reason", deadReasons...)
	return reason
}

// deadReasons are those that letters have.
var deadReasons = []string{"max_attempts", "window_full", "undecodable", "oversized"}

// deadLetters asks until there are enough, or none are left: one answer is
// bounded in what it looks through.
func deadLetters(ctx context.Context, c *sdk.Client, group, topic string, o sdk.DeadOptions) (letters []api.DeadLetter, more bool, unread []int32, err error) {
	for want := o.Max; ; {
		o.Max = min(want-len(letters), 1000)
		answer, err := c.Dead(ctx, group, topic, o)
		if err != nil {
			return nil, false, nil, err
		}
		letters, unread = append(letters, answer.Letters...), append(unread, answer.Unread...)
		if answer.Next == "" || len(letters) >= want {
			return letters, answer.Next != "", unread, nil
		}
		o.After = answer.Next
	}
}

func printLetters(w io.Writer, letters []api.DeadLetter, more bool) error {
	if len(letters) == 0 {
		_, err := fmt.Fprintln(w, "no dead letters")
		return err
	}
	if err := table(w, "AT\tMESSAGE\tREASON\tATTEMPTS\tKEY\tVALUE\tERROR", func(row func(...any)) {
		for _, l := range letters {
			reason := l.Reason
			if l.Redriven {
				reason += " (redriven)"
			}
			row(l.At.Local().Format(time.RFC3339), placeOf(l), reason, l.Attempts, glimpse(l.Message.Key, l.Message.Key64), glimpse(l.Message.Value, l.Message.Value64), short(l.Error))
		}
	}); err != nil {
		return err
	}
	if more {
		_, err := fmt.Fprintln(w, "and more: --max shows them")
		return err
	}
	return nil
}

// placeOf is the id of the message that a letter is of.
func placeOf(l api.DeadLetter) string {
	place := fmt.Sprintf("%s/%d/%d", l.Topic, l.Partition, l.Offset)
	if l.Until > l.Offset+1 {
		place += fmt.Sprintf("-%d", l.Until-1)
	}
	return place
}

// glimpse is the beginning of bytes, on one line.
func glimpse(text, base *string) string {
	switch {
	case text != nil:
		return short(*text)
	case base != nil:
		return short("base64:" + *base)
	}
	return "-"
}

func short(s string) string {
	s = strings.Join(strings.Fields(s), " ")
	if r := []rune(s); len(r) > 60 {
		s = string(r[:59]) + "…"
	}
	return s
}

func unreadError(partitions []int32) error {
	if len(partitions) == 0 {
		return nil
	}
	return fmt.Errorf("partitions %v of the dead letters could not be read: their leaders are away", partitions)
}

func newGroupRedrive() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "redrive GROUP TOPIC",
		Short: "Bring messages that a group gave up back to their topic",
		Long: `Bring messages that a group gave up back to their topic, behind what is there,
where every group that consumes the topic gets them. Each is brought back once,
however often the command is run; if it is interrupted, a few may be brought
back twice. Letters that come meanwhile are left for the next time.

--discard counts them as done in place of that: they are shown no more.`,
		Example: "  sidestream group redrive mailer orders\n  sidestream group redrive mailer orders --max 1\n  sidestream group redrive mailer orders --reason undecodable --discard",
		Args:    arguments("GROUP", "TOPIC"),
	}
	address := sidecarFlag(cmd)
	most := cmd.Flags().Int("max", 0, "letters at most; 0: all")
	var body api.RedriveRequest
	reason := reasonFlag(cmd)
	cmd.Flags().StringSliceVar(&body.IDs, "id", nil, "this letter only; may be repeated")
	cmd.Flags().StringVar(&body.To, "to", "", "topic, in place of the one where the messages were")
	cmd.Flags().StringVar(&body.Dead, "dead", "", "topic of the letters, in place of the group's")
	cmd.Flags().BoolVar(&body.Discard, "discard", false, "count the letters as done and bring nothing back")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if body.To != "" && body.Discard {
			return usageError{errors.New("--to and --discard are both given: letters are brought back or discarded")}
		}
		if *most < 0 {
			return usageError{fmt.Errorf("--max: got %d: use 1 or more, or 0 for all", *most)}
		}
		if err := oneOf("reason", *reason, deadReasons...); err != nil {
			return err
		}
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		body.Reason = *reason
		sum, err := redriveAll(cmd.Context(), c, args[0], args[1], body, *most)
		if err == nil || sum.Redriven > 0 {
			if err := printRedriven(cmd.OutOrStdout(), sum, body.Discard); err != nil {
				return err
			}
		}
		if err != nil {
			return err
		}
		return unreadError(sum.Unread)
	}
	return cmd
}

// redriveAll asks until nothing is left of what was there at the beginning, or
// most are done. The sum holds what was done before an error too.
func redriveAll(ctx context.Context, c *sdk.Client, group, topic string, body api.RedriveRequest, most int) (sum api.Redriven, err error) {
	for first := true; ; first = false {
		body.Max = 1000
		if most > 0 {
			body.Max = min(body.Max, most-sum.Redriven)
		}
		answer, err := c.Redrive(ctx, group, topic, body)
		if answer.Topic != "" {
			sum.Topic = answer.Topic
		}
		sum.Redriven += answer.Redriven
		sum.Copies += answer.Copies
		sum.Kept = append(sum.Kept, answer.Kept...)
		sum.Unread = append(sum.Unread, answer.Unread...)
		if first {
			sum.NotFound = answer.NotFound
		} else {
			sum.NotFound = slices.DeleteFunc(sum.NotFound, func(id string) bool { return !slices.Contains(answer.NotFound, id) })
		}
		sum.Next = answer.Next
		switch {
		case err != nil:
			return sum, err
		case answer.Error != nil:
			return sum, answer.Error
		case answer.Next == "" || most > 0 && sum.Redriven >= most:
			return sum, nil
		}
		body.After = answer.Next
	}
}

func printRedriven(w io.Writer, r api.Redriven, discard bool) error {
	did := "brought back"
	if discard {
		did = "discarded"
	}
	if _, err := fmt.Fprintf(w, "%s %d\n", did, r.Redriven); err != nil {
		return err
	}
	if n := len(r.NotFound); n > 0 && r.Next == "" && r.Error == nil {
		if _, err := fmt.Fprintf(w, "found no letter of %d of the ids: %s\n", n, strings.Join(r.NotFound, ", ")); err != nil {
			return err
		}
	}
	if len(r.Kept) == 0 {
		return nil
	}
	if _, err := fmt.Fprintf(w, "kept %d that cannot be brought back:\n", len(r.Kept)); err != nil {
		return err
	}
	return table(w, "LETTER\tWHY", func(row func(...any)) {
		for _, k := range r.Kept {
			row(k.ID, k.Error.Message)
		}
	})
}
