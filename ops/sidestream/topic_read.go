package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	delivered "sidestream/sidecar/consume"
	"sidestream/sidecar/upstream"
)

type readOptions struct {
	from          string
	partitions    []int32
	offset        int64 // -1: not given
	last          int64 // 0: not given
	most          int   // 0: no limit
	follow        bool
	asJSON        bool
	keys, headers bool
	format        string
}

func newTopicRead() *cobra.Command {
	var o readOptions
	cmd := &cobra.Command{
		Use:   "read TOPIC",
		Short: "Print a topic's messages, without any group",
		Long: `Print messages as they are in the topic, each one's value on a line. Nothing is
remembered and nothing is acknowledged: no group is needed, and none notices.
It ends at what was the end when it began; with --follow it goes on with what
comes. Messages of several partitions are printed by their timestamps, as far as
they are there.

--format is a layout of franz-go's record formatter: %v value, %k key, %t topic,
%p partition, %o offset, %d timestamp in milliseconds, %h{%k=%v } headers, and
\n, \t; "%v{base64}" and "%v{hex}" are for bytes that are no text.

A partition that cannot be read (its leader is away, or it holds records that
nobody can read) is told on standard error, and the exit code is 1.`,
		Example: `  sidestream topic read orders
  sidestream topic read orders --last 10 --keys
  sidestream topic read orders --from 2026-01-31T08:00:00Z -n 100 --json
  sidestream topic read orders --partition 3 --offset 812 -n 1 --headers
  sidestream topic read orders --from latest --follow --format '%p/%o %k %v\n'`,
		Args: arguments("TOPIC"),
	}
	bootstrap := bootstrapFlag(cmd)
	cmd.Flags().StringVar(&o.from, "from", "earliest", "where to begin: earliest, latest or a time (RFC 3339)")
	cmd.Flags().Int32SliceVar(&o.partitions, "partition", nil, "partitions to read, with commas between them (default: all)")
	cmd.Flags().Int64Var(&o.offset, "offset", -1, "offset to begin at, of the one --partition (default: see --from)")
	cmd.Flags().Int64Var(&o.last, "last", 0, "begin so many offsets before the end of each partition")
	cmd.Flags().IntVarP(&o.most, "max", "n", 0, "stop after this many messages (0: no limit)")
	cmd.Flags().BoolVarP(&o.follow, "follow", "f", false, "go on with what comes")
	cmd.Flags().BoolVar(&o.asJSON, "json", false, "print each message as a JSON object")
	cmd.Flags().BoolVar(&o.keys, "keys", false, "print the key and a tab before each value")
	cmd.Flags().BoolVar(&o.headers, "headers", false, "print the headers, name=value each, and a tab first")
	cmd.Flags().StringVar(&o.format, "format", "", "layout of each message in place of its value and a line end, see above")
	valuesOf(cmd, "from", "earliest", "latest")
	cmd.RunE = func(cmd *cobra.Command, args []string) error {
		begin, print, err := o.check(cmd.Flags().Changed)
		if err != nil {
			return usageError{err}
		}
		cfg := upstream.DefaultConfig()
		cfg.Bootstrap, cfg.ClientID = seedsOf(cmd, *bootstrap), "sidestream-cli"
		up, err := upstream.New(cfg, nil, nil)
		if err != nil {
			return usageError{err}
		}
		defer up.Close()
		out := bufio.NewWriterSize(cmd.OutOrStdout(), 64<<10)
		r := topicReader{up: up, topic: args[0], most: o.most, follow: o.follow, print: print, out: out, notes: cmd.ErrOrStderr()}
		err = r.open(cmd.Context(), o.partitions, begin)
		if err == nil {
			err = r.run(cmd.Context())
		}
		return stopped(cmd, errors.Join(err, out.Flush()))
	}
	return cmd
}

// begin is where reading begins in a partition.
type begin struct {
	at     time.Time // zero: by the other fields
	latest bool
	offset int64 // -1: not given
	last   int64 // 0: not given
}

// check says what is wrong with the flags, or where to begin and how to print.
func (o readOptions) check(given func(string) bool) (begin, func([]byte, *kgo.Record) ([]byte, error), error) {
	b := begin{offset: -1}
	switch {
	case o.most < 0:
		return b, nil, fmt.Errorf("--max: got %d: use 1 or more, or 0 for no limit", o.most)
	case given("offset") && o.offset < 0:
		return b, nil, fmt.Errorf("--offset: got %d: use 0 or more", o.offset)
	case given("offset") && len(o.partitions) != 1:
		return b, nil, errors.New("--offset is of one partition: name it with --partition")
	case given("last") && o.last < 1:
		return b, nil, fmt.Errorf("--last: got %d: use 1 or more", o.last)
	}
	var ways []string
	for _, flag := range []string{"from", "offset", "last"} {
		if given(flag) {
			ways = append(ways, "--"+flag)
		}
	}
	if len(ways) > 1 {
		return b, nil, fmt.Errorf("%s are both given: say once where to begin", strings.Join(ways[:2], " and "))
	}
	for _, p := range o.partitions {
		if p < 0 {
			return b, nil, fmt.Errorf("--partition: got %d: use 0 or more", p)
		}
	}
	switch {
	case given("offset"):
		b.offset = o.offset
	case given("last"):
		b.last = o.last
	case o.from == "latest":
		b.latest = true
	case o.from != "earliest":
		at, err := time.Parse(time.RFC3339, o.from)
		if err != nil {
			return b, nil, fmt.Errorf("--from: got %q: use earliest, latest or a time such as 2026-01-31T08:00:00Z", o.from)
		}
		b.at = at
	}
	print, err := o.printer()
	return b, print, err
}

// printer makes what writes a message as the flags ask for.
func (o readOptions) printer() (func([]byte, *kgo.Record) ([]byte, error), error) {
	if o.asJSON && (o.format != "" || o.keys || o.headers) || o.format != "" && (o.keys || o.headers) {
		return nil, errors.New("use one of --json, --format, and --keys with --headers")
	}
	if o.asJSON {
		return func(b []byte, r *kgo.Record) ([]byte, error) {
			line, err := messageLine(delivered.MessageOf(r))
			return append(b, line...), err
		}, nil
	}
	layout := o.format
	if layout == "" {
		if o.headers {
			layout += `%h{%k=%v }\t`
		}
		if o.keys {
			layout += `%k\t`
		}
		layout += `%v\n`
	}
	f, err := kgo.NewRecordFormatter(layout)
	if err != nil {
		return nil, fmt.Errorf("--format: got %q: %w", layout, err)
	}
	return func(b []byte, r *kgo.Record) ([]byte, error) { return f.AppendRecord(b, r), nil }, nil
}

const (
	readCount     = 1000                   // messages that are asked for at a time
	readBytes     = 16 << 20               // of all partitions together, about
	readAtOnce    = 1 << 20                // of one partition
	readLeast     = 64 << 10               // of one partition
	followPause   = 200 * time.Millisecond // between looks at a partition that had nothing
	followTrouble = time.Second            // the same after a failure
)

// topicReader prints what partitions hold.
type topicReader struct {
	up     *upstream.Upstream
	topic  string
	most   int
	follow bool
	print  func([]byte, *kgo.Record) ([]byte, error)
	out    *bufio.Writer
	notes  io.Writer

	partitions []*readPartition
	failed     int // partitions that could not be read to their end
}

// readPartition is one partition on its way from next to until.
type readPartition struct {
	id          int32
	next, until int64
	ahead       []*kgo.Record // read and not printed
	look        time.Time     // not before
	trouble     string        // what was told last
	done        bool
}

// open finds the partitions and where to begin in each.
func (r *topicReader) open(ctx context.Context, ids []int32, b begin) error {
	t, err := r.up.Topic(ctx, r.topic)
	if err != nil {
		return err
	}
	starts, err := r.up.StartOffsets(ctx, r.topic)
	if err = unlessPartial(err); err != nil {
		return err
	}
	ends, err := r.up.EndOffsets(ctx, r.topic)
	if err = unlessPartial(err); err != nil {
		return err
	}
	var times map[int32]int64
	if !b.at.IsZero() {
		times, err = r.up.OffsetsAt(ctx, r.topic, b.at)
		if err = unlessPartial(err); err != nil {
			return err
		}
	}
	for _, id := range ids {
		if _, there := t.Partition(id); !there {
			return usageError{fmt.Errorf("--partition: topic %s has no partition %d: it has %d, from 0", r.topic, id, len(t.Partitions))}
		}
	}
	for _, p := range t.Partitions {
		if len(ids) > 0 && !slices.Contains(ids, p.ID) {
			continue
		}
		q := &readPartition{id: p.ID, until: math.MaxInt64}
		start, haveStart := starts[p.ID]
		end, haveEnd := ends[p.ID]
		at, haveAt := times[p.ID]
		known := haveStart && haveEnd && (haveAt || b.at.IsZero())
		if !known && b.offset < 0 && !(r.follow && b == (begin{offset: -1})) {
			r.give(q, "its leader does not answer")
			continue
		}
		switch {
		case b.offset >= 0:
			q.next = b.offset
		case b.latest:
			q.next = end
		case b.last > 0:
			q.next = max(start, end-b.last)
		case !b.at.IsZero():
			q.next = at
		default:
			q.next = start
		}
		if !r.follow && haveEnd {
			q.until = end
		}
		r.partitions = append(r.partitions, q)
	}
	return nil
}

// unlessPartial is the error unless some partitions answered all the same:
// those that did not are told one by one.
func unlessPartial(err error) error {
	if _, partial := errors.AsType[*upstream.PartialError](err); partial {
		return nil
	}
	return err
}

// give gives a partition up.
func (r *topicReader) give(p *readPartition, why string) {
	r.tell(p, why)
	p.done = true
	r.failed++
}

// tell says once what is amiss with a partition.
func (r *topicReader) tell(p *readPartition, why string) {
	if p.trouble != why {
		p.trouble = why
		_, _ = fmt.Fprintf(r.notes, "partition %d: %s\n", p.id, why) // only for people
	}
}

func (r *topicReader) run(ctx context.Context) error {
	var line []byte
	for printed := 0; r.most == 0 || printed < r.most; {
		for _, p := range r.partitions {
			if err := r.fill(ctx, p); err != nil {
				return err
			}
		}
		p, bound := r.oldest()
		if p == nil {
			if !slices.ContainsFunc(r.partitions, func(p *readPartition) bool { return !p.done }) {
				break
			}
			if err := r.out.Flush(); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
				return nil
			case <-time.After(followPause):
			}
			continue
		}
		for len(p.ahead) > 0 && !p.ahead[0].Timestamp.After(bound) && (r.most == 0 || printed < r.most) {
			var err error
			if line, err = r.print(line[:0], p.ahead[0]); err != nil {
				return err
			}
			if _, err = r.out.Write(line); err != nil {
				return err
			}
			p.ahead = p.ahead[1:]
			printed++
		}
	}
	if r.failed > 0 {
		return fmt.Errorf("%d of the partitions of %s could not be read to the end", r.failed, r.topic)
	}
	return nil
}

// oldest is the partition whose first message is the oldest, and up to which
// time it stays so.
func (r *topicReader) oldest() (first *readPartition, bound time.Time) {
	bound = time.UnixMilli(math.MaxInt64)
	for _, p := range r.partitions {
		switch {
		case len(p.ahead) == 0:
		case first == nil:
			first = p
		case p.ahead[0].Timestamp.Before(first.ahead[0].Timestamp):
			first, bound = p, first.ahead[0].Timestamp
		case p.ahead[0].Timestamp.Before(bound):
			bound = p.ahead[0].Timestamp
		}
	}
	return first, bound
}

// fill reads on in a partition of which nothing is there to print.
func (r *topicReader) fill(ctx context.Context, p *readPartition) error {
	if p.done || len(p.ahead) > 0 || time.Now().Before(p.look) {
		return nil
	}
	if p.next >= p.until {
		p.done = true
		return nil
	}
	room := max(readLeast, min(readAtOnce, readBytes/len(r.partitions)))
	records, next, _, err := r.up.Peek(ctx, r.topic, p.id, p.next, readCount, room)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	p.ahead = slices.DeleteFunc(records, func(rec *kgo.Record) bool { return rec.Offset >= p.until })
	switch {
	case errors.Is(err, &api.Error{Code: api.CodeCorruptRecord}):
		r.give(p, err.Error()+"; --partition and --offset begin behind it")
	case errors.Is(err, &api.Error{Code: api.CodeTopicNotFound}):
		return err
	case err != nil && r.follow:
		r.tell(p, err.Error()+": trying again")
		p.look = time.Now().Add(followTrouble)
	case err != nil:
		r.give(p, err.Error())
	default:
		if p.trouble != "" {
			r.tell(p, "it can be read again")
			p.trouble = ""
		}
		if next == p.next && len(records) == 0 { // nothing more for now
			p.look, p.done = time.Now().Add(followPause), !r.follow
		}
		p.next = next
	}
	return nil
}
