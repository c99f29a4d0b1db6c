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
}

func newProduce() *cobra.Command {
	var o produceOptions
	cmd := &cobra.Command{
		Use:   "produce TOPIC [FILE]",
		Short: "Publish the lines of a file or of standard input",
		Long: `Publish each line of FILE, or of standard input, as one message, through a
sidecar. Empty lines are skipped. Lines are sent as they come, several in one
request when they come fast.

With --json each line is a record of the batch API instead of a bare value:
{"value":…,"key":…,"headers":{…},"partition":…,"ts":…}.`,
		Example: `  echo hi | sidestream produce hello
  sidestream produce pageviews pageviews.ndjson --key-field visitor
  sidestream produce orders --json <<< '{"key":"42","value":{"total":3}}'`,
		Args:              arguments("TOPIC", "[FILE]"),
		ValidArgsFunction: filesFrom(1),
	}
	address := sidecarFlag(cmd)
	caller := cmd.Flags().String("caller", "", "name of the application that publishes, for the sidecar's limits")
	cmd.Flags().StringVar(&o.key, "key", "", "key of every message")
	cmd.Flags().StringVar(&o.keyField, "key-field", "", "field of each line's JSON object that is its key")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "each line is a record of the batch API")
	cmd.Flags().BoolVar(&o.show, "print", false, "print partition and offset of each message")
	cmd.Flags().IntVar(&o.batch, "batch", 500, "most messages in one request")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		if o.batch < 1 || o.batch > 10000 {
			return usageError{fmt.Errorf("--batch: got %d: use 1 to 10000", o.batch)}
		}
		if cmd.Flags().Changed("key") && (cmd.Flags().Changed("key-field") || o.asJSON) {
			return usageError{errors.New("--key gives every message one key: leave out --key-field and --json, whose lines have their own")}
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
		_, _ = fmt.Fprintf(cmd.ErrOrStderr(), "%s written to %s\n", plural(p.written, "message"), p.topic)
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
	written int
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
		batch, err := collect(ctx, lines, p.options.batch)
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

// collect waits for a line, and a moment for those that follow it.
func collect(ctx context.Context, lines <-chan input, most int) (batch []input, err error) {
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
		if linger == nil {
			linger = time.After(produceLinger)
		}
	}
	return batch, nil
}

func (p *producer) publish(ctx context.Context, batch []input) error {
	result, err := p.send(ctx, batch)
	p.written += result.Written
	if err != nil {
		if e, ok := errors.AsType[*api.Error](err); ok && e.Line > 0 && e.Line <= len(batch) {
			e.Message = strings.TrimPrefix(e.Message, fmt.Sprintf("line %d: ", e.Line)) // of the request
			return fmt.Errorf("line %d: %w", batch[e.Line-1].number, e)
		}
		return fmt.Errorf("lines %d to %d: %w", batch[0].number, batch[len(batch)-1].number, err)
	}
	var failures []error
	for i, r := range result.Results {
		switch {
		case r.Error != nil && i < len(batch):
			failures = append(failures, fmt.Errorf("line %d was not written: %w", batch[i].number, r.Error))
		case p.options.show:
			if _, err := fmt.Fprintf(p.out, "%s/%d/%d\n", p.topic, r.Partition, r.Offset); err != nil {
				return err
			}
		}
	}
	return errors.Join(failures...)
}

func (p *producer) send(ctx context.Context, batch []input) (api.BatchPublished, error) {
	var options []sdk.PublishOption
	if p.options.keyField != "" {
		options = append(options, sdk.KeyField(p.options.keyField))
	}
	if !p.options.asJSON && p.options.key == "" {
		return p.client.PublishLines(ctx, p.topic, joinLines(batch), options...)
	}
	if p.options.asJSON {
		return p.client.PublishNDJSON(ctx, p.topic, joinLines(batch), options...)
	}
	messages := make([]sdk.Message, len(batch))
	for i, in := range batch {
		messages[i] = sdk.Message{Key: []byte(p.options.key), Value: in.line}
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
