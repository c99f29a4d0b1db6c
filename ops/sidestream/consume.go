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
stopped, unless --max or --until-end says otherwise.

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
	consumeWait  = 20 * time.Second
	// endWait is the wait of a pull with --until-end. The sidecar answers at_end
	// only when it has handed out all that the brokers told it of, and a message
	// that was just written gets a moment to become known.
	endWait      = 250 * time.Millisecond
	lastAckLimit = 5 * time.Second
	pauseEmpty   = 200 * time.Millisecond // after an empty answer that came early
)

// consume prints messages to out, and to notes what it waits for when that
// takes long.
func consume(ctx context.Context, c *sdk.Client, topic string, o consumeOptions, out, notes io.Writer) error {
	wait := consumeWait
	if o.untilEnd {
		wait = endWait
	}
	waiting := waitNote{out: notes}
	for printed := 0; o.most == 0 || printed < o.most; {
		most := consumeBatch
		if o.most > 0 {
			most = min(most, o.most-printed)
		}
		answered := after(wait, notes, "the sidecar has not answered yet: it may be waiting for brokers")
		pulled, err := c.Pull(ctx, o.group, topic, sdk.PullOptions{Max: most, Wait: wait, From: o.from})
		answered()
		if err != nil {
			return err
		}
		n, err := printMessages(ctx, c, topic, o, pulled.Messages, out)
		printed += n
		if err != nil {
			return err
		}
		if len(pulled.Messages) > 0 {
			waiting = waitNote{out: notes}
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
		waiting.tell(pulled.Reason, time.Now())
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(pauseEmpty):
		}
	}
	return nil
}

// waitNote tells people why nothing comes: once a reason, and not before it
// has lasted for a while. Being at the end needs no word.
type waitNote struct {
	out    io.Writer
	reason api.Reason
	since  time.Time // of the reason
	told   bool
}

func (w *waitNote) tell(reason *api.Reason, now time.Time) {
	if reason == nil {
		return
	}
	if *reason != w.reason {
		w.reason, w.since, w.told = *reason, now, false
	}
	if w.told || *reason == api.ReasonAtEnd || now.Sub(w.since) < patience {
		return
	}
	w.told = true
	_, _ = fmt.Fprintf(w.out, "nothing to print: %s (the reasons are in ops/docs/http-reference.md)\n", *reason) // only for people
}

// printMessages prints and acknowledges messages; those that could not be
// printed are given back.
func printMessages(ctx context.Context, c *sdk.Client, topic string, o consumeOptions, messages []api.Message, out io.Writer) (int, error) {
	if len(messages) == 0 {
		return 0, nil
	}
	var receipts []string
	var failure error
	for _, m := range messages {
		if failure = printMessage(m, o.asJSON, out); failure != nil {
			break
		}
		receipts = append(receipts, m.Receipt)
	}
	// What was printed is acknowledged even when a stop was asked for.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), lastAckLimit)
	defer cancel()
	if len(receipts) > 0 {
		acked, err := c.Ack(ctx, o.group, topic, receipts...)
		if err == nil && acked.Failed > 0 {
			err = fmt.Errorf("%d of %d printed messages could not be acknowledged and will come again", acked.Failed, len(receipts))
		}
		failure = errors.Join(failure, err)
	}
	if rest := messages[len(receipts):]; len(rest) > 0 {
		back := make([]string, len(rest))
		for i, m := range rest {
			back[i] = m.Receipt
		}
		_, err := c.Nack(ctx, o.group, topic, 0, "not printed", back...)
		failure = errors.Join(failure, err)
	}
	return len(receipts), failure
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
