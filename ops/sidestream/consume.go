package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"time"

	"github.com/spf13/cobra"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

type consumeOptions struct {
	group, from      string
	most             int
	asJSON, untilEnd bool
}

func newConsume() *cobra.Command {
	var o consumeOptions
	cmd := &cobra.Command{
		Use:   "consume TOPIC",
		Short: "Print a topic's messages and acknowledge them",
		Long: `Pull a topic's messages for a group through a sidecar, print each one's value
on a line, and acknowledge them once they are printed. It goes on until it is
stopped, unless --max or --until-end says otherwise, also over a restart of its
sidecar. Why nothing comes it says on standard error, once for each reason.

TOPIC may be several names and patterns with commas between them; in a pattern
* stands for any run of characters (quote it for the shell).

The group remembers where it is: a second run goes on where the first stopped.
Use another --group, or "sidestream group seek", to see messages again.`,
		Example: `  sidestream consume hello
  sidestream consume orders --group audit --from latest --json
  sidestream consume orders --until-end > orders.txt
  sidestream consume 'orders.*,returns' --json`,
		Args: arguments("TOPIC"),
	}
	address := sidecarFlag(cmd)
	cmd.Flags().StringVarP(&o.group, "group", "g", "cli", "group to consume in")
	cmd.Flags().StringVar(&o.from, "from", "", "where a new group starts: earliest (default), latest or a time (RFC 3339)")
	cmd.Flags().IntVarP(&o.most, "max", "n", 0, "stop after this many messages (0: no limit)")
	cmd.Flags().BoolVar(&o.untilEnd, "until-end", false, "stop when nothing more is there")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print each message as a JSON object")
	valuesOf(cmd, "from", "earliest", "latest")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.most < 0 {
			return usageError{fmt.Errorf("--max: got %d: use 1 or more, or 0 for no limit", o.most)}
		}
		c, err := client(cmd, *address)
		if err != nil {
			return err
		}
		defer c.Close()
		return stopped(cmd, consume(cmd.Context(), c, args[0], o, cmd.OutOrStdout(), cmd.ErrOrStderr()))
	}
	badRequestIsUsage(cmd)
	return cmd
}

const (
	consumeBatch = 100
	// consumeWait is how long a pull waits. One a second costs nothing, and each
	// answer says why nothing comes.
	consumeWait = time.Second
	// endWait is the wait of a pull with --until-end. The sidecar answers at_end
	// only when it has handed out all that the brokers told it of, and a message
	// that was just written gets a moment to become known.
	endWait      = 250 * time.Millisecond
	lastAckLimit = 5 * time.Second
	pauseEmpty   = 200 * time.Millisecond // after an empty answer that came early
	pauseAway    = time.Second            // before a sidecar that does not answer is asked again
)

// consumption prints a topic's messages for a group.
type consumption struct {
	client  *sdk.Client
	topic   string
	options consumeOptions
	out     io.Writer
	notes   waitNotes
	heard   bool // a sidecar has answered

	// unacked are messages that were printed and could not be acknowledged: they
	// come again, and are not printed again.
	unacked map[string]bool // by ID
}

// consume prints messages to out, and to notes why none come, and goes on while
// the sidecar is away once it has answered.
func consume(ctx context.Context, c *sdk.Client, topic string, o consumeOptions, out, notes io.Writer) error {
	k := consumption{client: c, topic: topic, options: o, out: out, notes: waitNotes{out: notes}, unacked: map[string]bool{}}
	wait := consumeWait
	if o.untilEnd {
		wait = endWait
	}
	for printed := 0; o.most == 0 || printed < o.most; {
		most := consumeBatch
		if o.most > 0 {
			most = min(most, o.most-printed)
		}
		begun := time.Now()
		answered := after(notesWithin-patience, notes, "nothing comes: the sidecar has not answered yet, it may be waiting for brokers")
		pulled, err := c.Pull(ctx, o.group, topic, sdk.PullOptions{Max: most, Wait: wait, From: o.from})
		answered()
		if err != nil {
			if ctx.Err() != nil || !k.survives(err) {
				return err
			}
			k.notes.away(err)
			if !pause(ctx, max(pauseAway, min(sdk.RetryAfter(err), endlessAway))) {
				return nil
			}
			continue
		}
		k.heard = true
		k.notes.answered()
		n, err := k.print(ctx, pulled.Messages)
		printed += n
		if err != nil {
			return err
		}
		if len(pulled.Messages) > 0 {
			k.notes.came(pulled.Away)
			continue
		}
		if o.untilEnd && pulled.Reason != nil {
			switch *pulled.Reason {
			case api.ReasonAtEnd, api.ReasonNoPartition, api.ReasonNoTopic:
				return nil
			case api.ReasonCorruptRecord: // no waiting brings these to an end
				return fmt.Errorf("the end of %s cannot be reached: a partition stands still at records that nobody can read; the sidecar's log names them and the offset to seek to", topic)
			}
		}
		k.notes.empty(pulled, begun, time.Now())
		if !pause(ctx, pauseEmpty) {
			return nil
		}
	}
	return nil
}

// endlessAway is the longest wait before a sidecar that is away is asked again,
// whatever it said itself.
const endlessAway = 5 * time.Second

// pause waits; false when ctx ends first.
func pause(ctx context.Context, d time.Duration) bool {
	select {
	case <-ctx.Done():
		return false
	case <-time.After(d):
		return true
	}
}

// survives tells whether it may go on by itself after an error. Where no sidecar has
// answered yet, its address may be wrong.
func (k *consumption) survives(err error) bool {
	if e, ok := errors.AsType[*api.Error](err); ok {
		return e.Retryable || k.heard && e.Code == api.CodeInternal
	}
	_, foreign := errors.AsType[*sdk.StatusError](err)
	return k.heard && !foreign
}

// print prints and acknowledges messages; those that could not be printed are
// given back. It returns how many it printed. A failure to acknowledge is told and
// survived: the messages come again, to be acknowledged then.
func (k *consumption) print(ctx context.Context, messages []api.Message) (printed int, failure error) {
	if len(messages) == 0 {
		return 0, nil
	}
	var receipts []string
	for _, m := range messages {
		if !k.unacked[m.ID] {
			if failure = printMessage(m, k.options.asJSON, k.out); failure != nil {
				break
			}
			printed++
		}
		receipts = append(receipts, m.Receipt)
	}
	done := messages[:len(receipts)]
	// What was printed is acknowledged even when a stop was asked for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAckLimit)
	defer cancel()
	if len(receipts) > 0 {
		acked, err := k.client.Ack(ctx, k.options.group, k.topic, receipts...)
		failed := k.noteAcks(done, acked, err)
		if failed > 0 {
			k.notes.say("not acknowledged: %s printed; that is done when they come again, without printing them twice%s", plural(failed, "message"), because(err))
		}
	}
	if rest := messages[len(receipts):]; len(rest) > 0 {
		back := make([]string, len(rest))
		for i, m := range rest {
			back[i] = m.Receipt
		}
		_, err := k.client.Nack(ctx, k.options.group, k.topic, 0, "not printed", back...)
		failure = errors.Join(failure, err)
	}
	return printed, failure
}

// unackedMost bounds what is remembered of messages that may never come again:
// another of the group may have them.
const unackedMost = 10_000

// noteAcks remembers which messages come again, and counts them.
func (k *consumption) noteAcks(messages []api.Message, acked api.ReceiptResponse, err error) (failed int) {
	for i, m := range messages {
		bad := err != nil && len(acked.Results) != len(messages)
		if len(acked.Results) == len(messages) {
			bad = acked.Results[i].Error != nil
		}
		if !bad {
			delete(k.unacked, m.ID)
			continue
		}
		failed++
		if len(k.unacked) < unackedMost {
			k.unacked[m.ID] = true
		}
	}
	return failed
}

func because(err error) string {
	if err == nil {
		return ""
	}
	return ": " + err.Error()
}

func printMessage(m api.Message, asJSON bool, out io.Writer) error {
	var line []byte
	var err error
	if asJSON {
		line, err = messageLine(m)
	} else {
		line, err = m.ValueBytes()
		line = append(line, '\n')
	}
	if err != nil {
		return err
	}
	_, err = out.Write(line)
	return err
}

// messageLine is a pulled message as --json prints it, without its receipt.
func messageLine(m api.Message) ([]byte, error) {
	m.Receipt, m.LeaseUntil = "", nil
	line, err := json.Marshal(m)
	return append(line, '\n'), err
}
