package main

import (
	"context"
	"os"
	"path/filepath"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"sidestream/ops/bench/measure"
)

// theirs is a NATS server with JetStream.
type theirs struct {
	server *measure.Process
	made   bool // the stream
}

func startTheirs(ctx context.Context, dir, mode string) (system, error) {
	data := filepath.Join(dir, "jetstream-"+mode, "data")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return nil, err
	}
	p, err := measure.StartRole(ctx, "jetstream-"+mode, "jetstream", data, data, mode)
	return &theirs{server: p}, err
}

func (t *theirs) processes() []*measure.Process { return []*measure.Process{t.server} }
func (t *theirs) stop() error                   { return t.server.Stop() }

func (t *theirs) dial(ctx context.Context, l load) (callers []caller, err error) {
	values := measure.Payloads(eventSize, true)
	for i := range l.clients {
		nc, err := nats.Connect(t.server.Addr)
		if err != nil {
			return nil, err
		}
		js, err := jetstream.New(nc)
		if err != nil {
			return nil, err
		}
		if !t.made {
			_, err := js.CreateStream(ctx, jetstream.StreamConfig{
				Name: "single", Subjects: []string{"single"}, Storage: jetstream.FileStorage, Replicas: 1, MaxBytes: 1 << 30,
			})
			if err != nil {
				return nil, err
			}
			t.made = true
		}
		callers = append(callers, &jsCaller{nc, js, values[i%len(values)]})
	}
	return callers, nil
}

type jsCaller struct {
	nc    *nats.Conn
	js    jetstream.JetStream
	value []byte
}

// call publishes one event and waits until the server says that it has it.
func (c *jsCaller) call(ctx context.Context) error {
	_, err := c.js.Publish(ctx, "single", c.value)
	return err
}

func (c *jsCaller) close() { c.nc.Close() }
