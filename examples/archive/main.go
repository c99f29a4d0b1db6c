// Command archive appends messages to a file, each exactly once: it writes them
// in batches, each with its ID, and at a start it looks which the file has. A
// message that comes again (after a crash between writing and acknowledging) is
// recognised by its ID, which never changes.
//
//	sidestream dev                     # in another terminal
//	go run ./examples/archive -topic hello -file hello.ndjson
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"log"
	"os"
	"os/signal"
	"syscall"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

func main() {
	log.SetFlags(log.Ltime)
	topic := flag.String("topic", "hello", "topic to archive; a pattern such as orders.* takes several")
	group := flag.String("group", "archive", "group to consume in")
	file := flag.String("file", "archive.ndjson", "file to append to, one JSON object a line")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := run(ctx, *group, *topic, *file); err != nil {
		log.Fatal(err)
	}
}

func run(ctx context.Context, group, topic, file string) error {
	client, err := sdk.New("") // SIDESTREAM_SIDECAR, else 127.0.0.1:4100
	if err != nil {
		return err
	}
	defer client.Close()
	a, err := open(file)
	if err != nil {
		return err
	}
	defer a.close()
	options := sdk.ConsumeOptions{
		BatchMax:  500,
		BatchWait: 200 * time.Millisecond, // for a batch to become full
		OnError:   func(err error) { log.Print(err) },
	}
	return client.ConsumeBatch(ctx, group, topic, options, func(_ context.Context, messages []api.Message) error {
		return a.write(messages) // an error gives all of them back
	})
}

// Line is one message in the file.
type Line struct {
	ID    string `json:"id"`
	Time  int64  `json:"ts"` // Unix milliseconds
	Key   []byte `json:"key,omitempty"`
	Value []byte `json:"value"` // base64; null for a tombstone
}

// archive is the file. One handler at a time uses it.
type archive struct {
	file *os.File
	size int64               // of what is whole
	has  map[string]struct{} // IDs; a real one would keep the highest of each partition, or a database's unique index
}

// open reads which messages the file has; a last line that a crash cut is
// overwritten.
func open(name string) (*archive, error) {
	file, err := os.OpenFile(name, os.O_RDWR|os.O_CREATE, 0o644)
	if err != nil {
		return nil, err
	}
	a := &archive{file: file, has: map[string]struct{}{}}
	for r := bufio.NewReader(file); ; {
		text, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return a, file.Truncate(a.size)
		}
		var line Line
		if err == nil {
			err = json.Unmarshal(text, &line)
		}
		if err != nil {
			a.close()
			return nil, fmt.Errorf("%s at byte %d: %w", name, a.size, err)
		}
		a.has[line.ID] = struct{}{}
		a.size += int64(len(text))
	}
}

// write appends those messages that the file does not have. They are on disk
// when it returns nil.
func (a *archive) write(messages []api.Message) error {
	var text bytes.Buffer
	for _, m := range messages {
		if _, again := a.has[m.ID]; again {
			continue
		}
		key, err := m.KeyBytes()
		if err != nil {
			return err
		}
		value, err := m.ValueBytes()
		if err != nil {
			return err
		}
		line, err := json.Marshal(Line{m.ID, m.Timestamp, key, value})
		if err != nil {
			return err
		}
		text.Write(append(line, '\n'))
	}
	if _, err := a.file.WriteAt(text.Bytes(), a.size); err != nil {
		return err
	}
	if err := a.file.Sync(); err != nil {
		return err
	}
	a.size += int64(text.Len())
	for _, m := range messages {
		a.has[m.ID] = struct{}{}
	}
	return nil
}

func (a *archive) close() { _ = a.file.Close() } // what counts is synced
