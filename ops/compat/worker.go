package compat

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"sync"
)

// worker is a client in another language: a program that serves requests by
// its standard input and output (python/worker.py says how), so that starting
// a JVM or an interpreter is paid once. It serves one request at a time.
type worker struct {
	name string
	// command makes the program's command line and downloads first what it
	// needs; errMissing when that cannot be on this machine.
	command func(ctx context.Context) (*exec.Cmd, error)

	running *exec.Cmd
	in      io.WriteCloser
	out     *bufio.Reader
	errs    *tail
}

func (w *worker) Name() string { return w.name }

// Prepare downloads what the client needs and starts it.
func (w *worker) Prepare(ctx context.Context) error {
	if w.running != nil {
		return nil
	}
	cmd, err := w.command(ctx)
	if err != nil {
		return err
	}
	in, err := cmd.StdinPipe()
	if err != nil {
		return err
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		return err
	}
	errs := &tail{limit: 8 << 10}
	cmd.Stderr = errs
	if err := cmd.Start(); err != nil {
		return err
	}
	w.running, w.in, w.out, w.errs = cmd, in, bufio.NewReader(out), errs
	return nil
}

// stop ends the program: kindly by the end of its input, or at once.
func (w *worker) stop(kill bool) {
	if w.running == nil {
		return
	}
	_ = w.in.Close()
	if kill {
		_ = w.running.Process.Kill()
	}
	_ = w.running.Wait()
	w.running = nil
}

func (w *worker) Produce(ctx context.Context, broker, topic, codec string, records []Record) error {
	_, _, err := w.do(ctx, "produce", broker, topic, codec, records)
	return err
}

func (w *worker) Consume(ctx context.Context, broker, topic string) ([]Record, error) {
	records, _, err := w.do(ctx, "consume", broker, topic, "", nil)
	return records, err
}

// ask has an operation carried out that answers with a text.
func (w *worker) ask(ctx context.Context, operation, broker, topic string) (string, error) {
	_, text, err := w.do(ctx, operation, broker, topic, "", nil)
	return text, err
}

func (w *worker) do(ctx context.Context, operation, broker, topic, codec string, records []Record) ([]Record, string, error) {
	if err := w.Prepare(ctx); err != nil {
		return nil, "", err
	}
	errs := w.errs
	errs.reset()
	stopWatching := context.AfterFunc(ctx, func() { _ = w.running.Process.Kill() })
	got, text, err := w.exchange(operation, broker, topic, codec, records)
	if !stopWatching() { // it was killed; the next request starts another
		w.stop(true)
		return got, "", fmt.Errorf("%s: %w\n%s", operation, ctx.Err(), errs)
	}
	var refused refusal
	switch {
	case errors.As(err, &refused):
		return got, "", fmt.Errorf("%s: %w\n%s", operation, err, errs)
	case err != nil: // it ended or speaks nonsense
		w.stop(true)
		return got, "", fmt.Errorf("%s: the client's program: %w\n%s", operation, err, errs)
	}
	return got, text, nil
}

// refusal is an error that the client itself reported.
type refusal string

func (r refusal) Error() string { return string(r) }

func (w *worker) exchange(operation, broker, topic, codec string, records []Record) ([]Record, string, error) {
	request := fmt.Sprintf("%s\t%s\t%s\t%s\t%d\n%s", operation, broker, topic, codec, len(records), toLines(records))
	if _, err := io.WriteString(w.in, request); err != nil {
		return nil, "", err
	}
	var got []Record
	for {
		line, err := w.out.ReadString('\n')
		if err != nil {
			return got, "", err
		}
		kind, rest, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		switch kind {
		case "r":
			more, err := fromLines(rest)
			if err != nil {
				return got, "", err
			}
			got = append(got, more...)
		case "ok":
			return got, rest, nil
		case "error":
			return got, "", refusal(rest)
		default:
			return got, "", fmt.Errorf("printed %q, want r, ok or error", line)
		}
	}
}

// tail keeps the last bytes that were written to it.
type tail struct {
	limit int
	mu    sync.Mutex // guards kept
	kept  []byte
}

func (t *tail) Write(p []byte) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = append(t.kept, p...)
	if over := len(t.kept) - t.limit; over > 0 {
		t.kept = append([]byte(nil), t.kept[over:]...)
	}
	return len(p), nil
}

func (t *tail) reset() {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.kept = nil
}

func (t *tail) String() string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return string(t.kept)
}
