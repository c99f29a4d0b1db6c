package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"golang.org/x/term"

	"sidestream/sdk"
	"sidestream/sdk/api"
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
	asJSON, show  bool
	batch         int

	ack, idempotencyKey string
	headers             []string // name=value
	partition           int32    // -1: chosen by the key
	timeout             time.Duration
}

// check refuses what cannot be, or not together.
func (o produceOptions) check(keyGiven, timeoutGiven bool) error {
	switch {
	case o.batch < 1 || o.batch > 10000:
		return fmt.Errorf("--batch: got %d: use 1 to 10000", o.batch)
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

// whole tells that a request has records, which can say more than a line can.
func (o produceOptions) whole() bool {
	return o.key != "" || len(o.headers) > 0 || o.partition >= 0
}

// message is a line with what is given for every message.
func (o produceOptions) message(line []byte) sdk.Message {
	m := sdk.Message{Value: line}
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

// publish are the options of a request whose first line has this number.
func (o produceOptions) publish(first int) (options []sdk.PublishOption) {
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
	if o.idempotencyKey != "" {
		options = append(options, sdk.IdempotencyKey(fmt.Sprintf("%s/%d", o.idempotencyKey, first)))
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
sidecar. Empty lines are skipped. Lines are sent as they come, several in one
request when they come fast (up to --batch).

It ends at the first line that cannot be sent: the lines before it are written, the
line and those after it are not. What a topic does not take (larger than its
max.message.bytes, say) is told too, and ends it after the lines of that request.

With --idempotency-key the same command may be repeated, with the same input and
flags and to the same sidecar, and writes nothing twice: each request carries the
key and the number of its first line. Requests are made of --batch lines then,
however slowly they come, and a bad line keeps the whole of its request from being
sent.

With --json each line is a record of the batch API instead of a bare value:
{"value":…,"key":…,"headers":{…},"partition":…,"ts":…}.`,
		Example: `  echo hi | sidestream produce hello
  sidestream produce pageviews pageviews.ndjson --key-field visitor
  sidestream produce orders --json <<< '{"key":"42","value":{"total":3}}'
  sidestream produce orders orders.txt --idempotency-key import-2026-01-31 --header source=import`,
		Args: arguments("TOPIC", "[FILE]"),
	}
	address := sidecarFlag(cmd)
	caller := cmd.Flags().String("caller", "", "name of the application that publishes, for the sidecar's limits")
	cmd.Flags().StringVar(&o.key, "key", "", "key of every message")
	cmd.Flags().StringVar(&o.keyField, "key-field", "", "field of each line's JSON object that is its key")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "each line is a record of the batch API")
	cmd.Flags().BoolVar(&o.show, "print", false, "print partition and offset of each message")
	cmd.Flags().IntVar(&o.batch, "batch", 500, "most messages in one request")
	cmd.Flags().StringVar(&o.ack, "ack", "all", "when a message counts as taken: all (on the brokers' disks), leader (in the leader's log), spool (on this host's disk)")
	cmd.Flags().StringArrayVar(&o.headers, "header", nil, "name=value, a header of every message; may be repeated")
	cmd.Flags().Int32Var(&o.partition, "partition", -1, "partition of every message; -1 has it chosen by the key")
	cmd.Flags().DurationVar(&o.timeout, "timeout", 0, "how long the sidecar tries each request (default 10s)")
	cmd.Flags().StringVar(&o.idempotencyKey, "idempotency-key", "", "makes the command safe to repeat, see above")
	valuesOf(cmd, "ack", produceAcks...)
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if err := oneOf("ack", o.ack, produceAcks...); err != nil {
			return err
		}
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
		p := producer{client: c, topic: args[0], options: o, out: cmd.OutOrStdout()}
		err = p.run(cmd.Context(), in)
		_, _ = fmt.Fprintln(cmd.ErrOrStderr(), p.summary())
		return stopped(cmd, err)
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

type producer struct {
	client  *sdk.Client
	topic   string
	options produceOptions
	out     io.Writer

	written, spooled int
}

func (p *producer) summary() string {
	if p.spooled == 0 {
		return fmt.Sprintf("%s written to %s", plural(p.written, "message"), p.topic)
	}
	text := fmt.Sprintf("%s for %s taken into the spool", plural(p.spooled, "message"), p.topic)
	if p.written > 0 {
		text += fmt.Sprintf(", %d written", p.written)
	}
	return text
}

// input is one line with its number, or the error that ended the reading.
type input struct {
	number int
	line   []byte
	err    error
}

// run publishes batches until the input ends.
func (p *producer) run(ctx context.Context, in io.Reader) error {
	lines := make(chan input, p.options.batch)
	// A read of standard input cannot be interrupted: when ctx ends first the
	// reader stays in it until the process ends.
	go read(ctx, in, lines)
	for {
		// A repeat with an idempotency key has to make the same requests.
		batch, err := collect(ctx, lines, p.options.batch, p.options.idempotencyKey == "")
		if len(batch) > 0 {
			if err := p.publish(ctx, batch); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}

func read(ctx context.Context, in io.Reader, lines chan<- input) {
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, produceLineBytes)
	number := 0
	send := func(i input) bool {
		select {
		case lines <- i:
			return true
		case <-ctx.Done():
			return false
		}
	}
	for scanner.Scan() {
		number++
		if line := bytes.TrimRight(scanner.Bytes(), "\r"); len(line) > 0 && !send(input{number, bytes.Clone(line), nil}) {
			return
		}
	}
	err := scanner.Err()
	switch {
	case errors.Is(err, bufio.ErrTooLong):
		err = fmt.Errorf("line %d is longer than %d bytes", number+1, produceLineBytes)
	case err == nil:
		err = io.EOF
	}
	send(input{err: err})
}

// collect waits for a line, and a moment for those that follow it, or without hurry
// for as many as there may be.
func collect(ctx context.Context, lines <-chan input, most int, hurry bool) (batch []input, err error) {
	size := 0
	var linger <-chan time.Time // nil, so never, until there is a line
	for len(batch) < most && size < produceBatchBytes {
		var next input
		select {
		case next = <-lines:
		case <-linger:
			return batch, nil
		case <-ctx.Done():
			return nil, ctx.Err()
		}
		if next.err != nil {
			return batch, next.err
		}
		batch = append(batch, next)
		size += len(next.line)
		if linger == nil && hurry {
			linger = time.After(produceLinger)
		}
	}
	return batch, nil
}

// publish sends a batch. At a bad line, of which the sidecar says that it kept the
// whole request from being sent, the lines before it are sent by themselves: what
// is written does not depend on which lines came together.
func (p *producer) publish(ctx context.Context, batch []input) error {
	result, err := p.send(ctx, batch)
	p.written += result.Written
	p.spooled += result.Spooled
	if err != nil {
		e, ok := errors.AsType[*api.Error](err)
		if !ok || e.Line <= 0 || e.Line > len(batch) {
			return fmt.Errorf("%s: %w", span(batch), err)
		}
		bad := fmt.Errorf("line %d: %w", batch[e.Line-1].number, lineError(e))
		before := batch[:e.Line-1]
		if len(before) == 0 || p.options.idempotencyKey != "" || e.Code != api.CodeBadRecord && e.Code != api.CodeMessageTooLarge {
			return bad
		}
		return errors.Join(p.publish(ctx, before), bad)
	}
	var failures []error
	for i, r := range result.Results {
		switch {
		case r.Error != nil && i < len(batch):
			failures = append(failures, fmt.Errorf("line %d was not written: %w", batch[i].number, r.Error))
		case p.options.show:
			if err := p.print(r); err != nil {
				return err
			}
		}
	}
	return errors.Join(failures...)
}

func (p *producer) print(r api.BatchResult) error {
	place := fmt.Sprint(r.Offset)
	if r.SpoolID != "" {
		place = "spool:" + r.SpoolID
	}
	_, err := fmt.Fprintf(p.out, "%s/%d/%s\n", p.topic, r.Partition, place)
	return err
}

// span names the lines of a batch.
func span(batch []input) string {
	first, last := batch[0].number, batch[len(batch)-1].number
	if first == last {
		return fmt.Sprintf("line %d", first)
	}
	return fmt.Sprintf("lines %d to %d", first, last)
}

// lineError is the sidecar's error about a line in the words of the command: its
// number is of the request, and options of the query are flags here.
func lineError(e *api.Error) *api.Error {
	own := *e
	own.Message = strings.TrimPrefix(own.Message, fmt.Sprintf("line %d: ", e.Line))
	own.Message = strings.NewReplacer(" use ?lines=1", ", leave out --json", ", or use ?lines=1", ", or leave out --json",
		"; nothing of this request was written", "").Replace(own.Message)
	return &own
}

func (p *producer) send(ctx context.Context, batch []input) (api.BatchPublished, error) {
	options := p.options.publish(batch[0].number)
	switch {
	case p.options.asJSON:
		return p.client.PublishNDJSON(ctx, p.topic, joinLines(batch), options...)
	case !p.options.whole():
		return p.client.PublishLines(ctx, p.topic, joinLines(batch), options...)
	}
	messages := make([]sdk.Message, len(batch))
	for i, in := range batch {
		messages[i] = p.options.message(in.line)
	}
	return p.client.PublishBatch(ctx, p.topic, messages, options...)
}

func joinLines(batch []input) []byte {
	var b bytes.Buffer
	for _, in := range batch {
		b.Write(in.line)
		b.WriteByte('\n')
	}
	return b.Bytes()
}
