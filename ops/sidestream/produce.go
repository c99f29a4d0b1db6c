package main

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sidestream/sdk"
)

const (
	produceBatchBytes = 4 << 20  // a request stays well under the sidecar's limit
	produceLineBytes  = 16 << 20 // longest line that is read
	// produceLinger is how long a batch waits for more lines: long enough for a
	// program that writes into a pipe, and not noticed by a person.
	produceLinger = 10 * time.Millisecond
)

type produceOptions struct {
	key, keyField string
	keySeparator  string // between key and value of a line; "": the line is the value
	asJSON, show  bool
	whole         bool // all of the input is one message
	batch         int

	ack, idempotencyKey string
	headers             []string // name=value
	partition           int32    // -1: chosen by the key
	timeout             time.Duration

	once     bool          // each request is sent once, without an idempotency key
	patience time.Duration // how long a request is repeated
	resume   resumption    // from where on; zero: the beginning
}

// check refuses what cannot be, or not together.
func (o produceOptions) check(keyGiven, timeoutGiven bool) error {
	switch {
	case o.batch < 1 || o.batch > 10000:
		return fmt.Errorf("--batch: got %d: use 1 to 10000", o.batch)
	case o.whole && (o.asJSON || o.keySeparator != ""):
		return errors.New("--whole sends all of the input as one message: leave out --json and --key-separator, which are of lines")
	case o.keySeparator != "" && (keyGiven || o.keyField != "" || o.asJSON):
		return errors.New("--key-separator takes each message's key from its line: leave out --key, --key-field and --json")
	case o.once && o.idempotencyKey != "":
		return errors.New("--once sends each request once: leave out --idempotency-key, which makes repeats safe")
	case o.resume.key != "" && (o.once || o.idempotencyKey != "" && o.idempotencyKey != o.resume.key):
		return fmt.Errorf("--resume %s has the idempotency key of the run that it resumes: leave out --once and --idempotency-key", o.resume)
	case o.patience < 0:
		return fmt.Errorf("--patience: got %s: use 0s or more", o.patience)
	case keyGiven && (o.keyField != "" || o.asJSON):
		return errors.New("--key gives every message one key: leave out --key-field and --json, whose lines have their own")
	case o.asJSON && (len(o.headers) > 0 || o.partition >= 0):
		return errors.New("--header and --partition are for bare values: leave out --json, whose records have their own")
	case o.partition < -1:
		return fmt.Errorf("--partition: got %d: use 0 or more, or -1 to have it chosen by the key", o.partition)
	case timeoutGiven && o.timeout < time.Millisecond:
		return fmt.Errorf("--timeout: got %s: use 1ms or more", o.timeout)
	}
	for _, h := range o.headers {
		if name, _, found := strings.Cut(h, "="); !found || name == "" {
			return fmt.Errorf("--header: got %q: use name=value", h)
		}
	}
	return nil
}

// records tells that a request has records, which can say more than a line can.
func (o produceOptions) records() bool {
	return o.key != "" || o.keySeparator != "" || len(o.headers) > 0 || o.partition >= 0
}

// message is a line with what is given for every message.
func (o produceOptions) message(line []byte) sdk.Message {
	m := sdk.Message{Value: line}
	if o.keySeparator != "" {
		if key, value, found := bytes.Cut(line, []byte(o.keySeparator)); found {
			m.Key, m.Value = key, value
		}
	}
	if o.key != "" {
		m.Key = []byte(o.key)
	}
	if o.partition >= 0 {
		m.Partition = &o.partition
	}
	for _, h := range o.headers {
		name, value, _ := strings.Cut(h, "=")
		m.Headers = append(m.Headers, sdk.Header{Name: name, Value: value})
	}
	return m
}

// publish are the options of a request with that idempotency key, if any.
func (o produceOptions) publish(key string) (options []sdk.PublishOption) {
	if o.keyField != "" {
		options = append(options, sdk.KeyField(o.keyField))
	}
	switch o.ack {
	case "leader":
		options = append(options, sdk.AckLeader())
	case "spool":
		options = append(options, sdk.AckSpool())
	}
	if o.timeout > 0 {
		options = append(options, sdk.Timeout(o.timeout))
	}
	if key != "" {
		options = append(options, sdk.IdempotencyKey(key))
	}
	return options
}

var produceAcks = []string{"all", "leader", "spool"}

func newProduce() *cobra.Command {
	var o produceOptions
	cmd := &cobra.Command{
		Use:   "produce TOPIC [FILE]",
		Short: "Publish the lines of a file or of standard input",
		Long: `Publish each line of FILE, or of standard input, as one message, through a
sidecar. Of a line only the newline at its end is taken off; a carriage return
before it stays. Empty lines are skipped. Lines are sent as they come, several in
one request when they come fast (up to --batch). With --whole all of the input is
one message, as it is.

Of every line it says one of three things: written, not written (certainly), or
unknown. It ends at the first request of which not everything is written, and its
last line says with which --resume the same command goes on: with the same input
and flags, and to the same sidecar, nothing is then written twice or left out.

Each request has an idempotency key of its own. So one whose outcome is unknown (the
sidecar was restarted, brokers did not answer) is repeated under its key, which
writes nothing twice, and so is one that brokers do not take for now, both for as
long as --patience says. Its messages carry the header sidestream-id, by which they
are found again. --once sends each request once and without a key: no header, and
nothing for the sidecar's disk to keep; what is unknown then stays so.

With --idempotency-key the same command may be repeated from its beginning, with the
same input and flags and to the same sidecar, and writes nothing twice: each request
carries the key and the number of its first line. Requests are made of --batch lines
then, however slowly they come, and a bad line keeps the whole of its request from
being sent; otherwise the lines before it are written.

With --json each line is a record of the batch API instead of a bare value:
{"value":…,"key":…,"headers":{…},"partition":…,"ts":…}. With --key-separator the
first occurrence of it in a line stands between key and value; a line without it is
a value without a key.`,
		Example: `  echo hi | sidestream produce hello
  sidestream produce pageviews pageviews.ndjson --key-field visitor
  sidestream produce orders --json <<< '{"key":"42","value":{"total":3}}'
  echo 42:paid | sidestream produce orders --key-separator :
  sidestream produce pictures cat.png --whole --key cat
  sidestream produce orders orders.txt --resume 1501
  sidestream produce orders orders.txt --idempotency-key import-2026-01-31 --header source=import`,
		Args: arguments("TOPIC", "[FILE]"),
	}
	address := sidecarFlag(cmd)
	caller := cmd.Flags().String("caller", "", "name of the application that publishes, for the sidecar's limits")
	cmd.Flags().StringVar(&o.key, "key", "", "key of every message")
	cmd.Flags().StringVar(&o.keyField, "key-field", "", "field of each line's JSON object that is its key")
	separator := cmd.Flags().String("key-separator", "", `what stands between key and value of a line, such as : or '\t' (escapes as in C)`)
	cmd.Flags().BoolVar(&o.whole, "whole", false, "all of the input is one message")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "each line is a record of the batch API")
	cmd.Flags().BoolVar(&o.show, "print", false, "print partition and offset of each message")
	cmd.Flags().IntVar(&o.batch, "batch", 500, "most messages in one request")
	cmd.Flags().StringVar(&o.ack, "ack", "all", "when a message counts as taken: all (on the brokers' disks), leader (in the leader's log), spool (on this host's disk)")
	cmd.Flags().StringArrayVar(&o.headers, "header", nil, "name=value, a header of every message; may be repeated")
	cmd.Flags().Int32Var(&o.partition, "partition", -1, "partition of every message; -1 has it chosen by the key")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "how long the sidecar tries each request (default 10s)")
	cmd.Flags().StringVar(&o.idempotencyKey, "idempotency-key", "", "makes the command safe to repeat, see above")
	cmd.Flags().BoolVar(&o.once, "once", false, "send each request once, without an idempotency key: no repeats")
	cmd.Flags().DurationVar(&o.patience, "patience", time.Minute, "how long a request is repeated that is unknown, or that brokers do not take for now")
	resume := cmd.Flags().String("resume", "", "go on where a run ended: a line, or what its last line said")
	valuesOf(cmd, "ack", produceAcks...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := oneOf("ack", o.ack, produceAcks...); err != nil {
			return err
		}
		var err error
		if o.resume, err = readResumption(*resume); err != nil {
			return usageError{err}
		}
		o.keySeparator = unescaped(*separator)
		if err := o.check(cmd.Flags().Changed("key"), cmd.Flags().Changed("timeout")); err != nil {
			return usageError{err}
		}
		c, err := client(cmd, *address, sdk.WithCaller(*caller))
		if err != nil {
			return err
		}
		defer c.Close()
		in := cmd.InOrStdin()
		if len(args) == 2 && args[1] != "-" {
			file, err := os.Open(args[1])
			if err != nil {
				return err
			}
			defer func() { _ = file.Close() }() // only read
			in = file
		} else if f, ok := in.(*os.File); ok && term.IsTerminal(int(f.Fd())) {
			_, _ = fmt.Fprintln(cmd.ErrOrStderr(), "Type messages, one a line; Ctrl-D ends.")
		}
		p := newProducer(c, args[0], o, cmd.OutOrStdout(), cmd.ErrOrStderr())
		err = p.run(cmd.Context(), in)
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), p.summary())
		if err = stopped(cmd, err); err == nil && cmd.Context().Err() != nil {
			_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "stopped; the same command goes on with --resume %d\n", p.next)
		}
		return err
	}
	return cmd
}

// plural is a number with its noun.
func plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}
