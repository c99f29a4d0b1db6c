package main

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"time"
)

// input is one line with its number, or the error that ended the reading.
type input struct {
	number int
	line   []byte
	err    error
}

// reading is how the input becomes messages.
type reading struct {
	whole bool // it is one message
	blank bool // lines of spaces are none, as JSON has it
	first int  // line to begin at; those before are skipped
}

// read sends the lines from the first one on, and then the error that ended it.
func (o reading) read(ctx context.Context, in io.Reader, lines chan<- input) {
	send := func(i input) bool {
		select {
		case lines <- i:
			return true
		case <-ctx.Done():
			return false
		}
	}
	if o.whole {
		all, err := io.ReadAll(io.LimitReader(in, produceLineBytes+1))
		if len(all) > produceLineBytes {
			err = fmt.Errorf("the input is longer than the %d bytes that one message may have here", produceLineBytes)
		}
		if err == nil && o.first <= 1 {
			if !send(input{number: 1, line: all}) {
				return
			}
		}
		if err == nil {
			err = io.EOF
		}
		send(input{err: err})
		return
	}
	scanner := bufio.NewScanner(in)
	scanner.Buffer(nil, produceLineBytes)
	scanner.Split(splitLines)
	number := 0
	for scanner.Scan() {
		number++
		line := scanner.Bytes()
		if number < o.first || len(line) == 0 || o.blank && len(bytes.TrimSpace(line)) == 0 {
			continue
		}
		if !send(input{number, bytes.Clone(line), nil}) {
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

// splitLines is bufio.ScanLines without taking a carriage return off: it is the
// message's.
func splitLines(data []byte, atEOF bool) (advance int, token []byte, err error) {
	if i := bytes.IndexByte(data, '\n'); i >= 0 {
		return i + 1, data[:i], nil
	}
	if atEOF && len(data) > 0 {
		return len(data), data, nil
	}
	return 0, nil, nil
}

// collecting is when a request is full.
type collecting struct {
	most  int  // lines
	last  int  // the number of a line that ends it; 0: none
	hurry bool // it is sent after a moment, full or not
}

// collect waits for a line, and a moment for those that follow it, or without hurry
// for as many as there may be.
func (c collecting) collect(ctx context.Context, lines <-chan input) (batch []input, err error) {
	size := 0
	var linger <-chan time.Time // nil, so never, until there is a line
	for len(batch) < c.most && size < produceBatchBytes {
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
		if next.number == c.last {
			return batch, nil
		}
		if linger == nil && c.hurry {
			linger = time.After(produceLinger)
		}
	}
	return batch, nil
}

// span names the lines of a batch.
func span(batch []input) string {
	first, last := batch[0].number, batch[len(batch)-1].number
	if first == last {
		return fmt.Sprintf("line %d", first)
	}
	return fmt.Sprintf("lines %d to %d", first, last)
}

func joinLines(batch []input) []byte {
	var b bytes.Buffer
	for _, in := range batch {
		b.Write(in.line)
		b.WriteByte('\n')
	}
	return b.Bytes()
}

// unescaped reads escapes such as \t and \x00, which shells make hard to give.
func unescaped(s string) string {
	if !strings.Contains(s, `\`) {
		return s
	}
	if text, err := strconv.Unquote(`"` + strings.ReplaceAll(s, `"`, `\"`) + `"`); err == nil {
		return text
	}
	return s
}

// resumption is where a run goes on: at a line or, where an earlier run had sent a
// request of which not everything is known to be written, with the same request
// under the same idempotency key.
type resumption struct {
	first, last int // last is 0 where there is no such request
	key         string
}

func (r resumption) String() string {
	if r.key == "" {
		return strconv.Itoa(r.first)
	}
	return fmt.Sprintf("%d-%d/%s", r.first, r.last, r.key)
}

// readResumption reads 501 or 501-750/KEY; nothing is the beginning.
func readResumption(s string) (r resumption, err error) {
	if s == "" {
		return r, nil
	}
	wrong := fmt.Errorf("--resume: got %q: use a number of a line, or what the last line of the run to resume said, such as 501-750/KEY", s)
	lines, key, keyed := strings.Cut(s, "/")
	first, last, ranged := strings.Cut(lines, "-")
	if keyed != ranged || keyed && key == "" {
		return r, wrong
	}
	if r.first, err = strconv.Atoi(first); err != nil || r.first < 1 {
		return r, wrong
	}
	if keyed {
		if r.last, err = strconv.Atoi(last); err != nil || r.last < r.first {
			return r, wrong
		}
		r.key = key
	}
	return r, nil
}
