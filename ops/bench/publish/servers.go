package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"sidestream/ops/bench/measure"
	"sidestream/sdk"
	"sidestream/sdk/api"
)

// The servers, as the table names them.
const (
	bare            = "bare HTTP"
	sidestream      = "sidestream"
	jetStream       = "JetStream"
	jetStreamAlways = "JetStream sync always"
)

// system is a server under measurement.
type system interface {
	processes() []*measure.Process
	// dial makes the callers of a load, ready to begin.
	dial(ctx context.Context, l load) ([]caller, error)
	stop() error
}

// web is a server that is spoken to by HTTP: ours or the bare handler.
type web struct {
	all    []*measure.Process // the one that is spoken to is the last
	topics map[string]bool
	dir    string
}

// partitions of the topics that are written to.
const partitions = 8

func (w *web) start(ctx context.Context, name string, args func(data, profile string) []string) error {
	data, profile := filepath.Join(w.dir, name, "data"), filepath.Join(w.dir, name, "cpu.pprof")
	if err := os.MkdirAll(data, 0o755); err != nil {
		return err
	}
	p, err := measure.StartRole(ctx, name, name, data, args(data, profile)...)
	if err != nil {
		return err
	}
	p.Profile = profile
	w.all = append(w.all, p)
	return nil
}

func startBare(ctx context.Context, dir string) (system, error) {
	w := &web{dir: dir}
	return w, w.start(ctx, "bare", func(_, profile string) []string { return []string{profile} })
}

func startOurs(ctx context.Context, dir string) (system, error) {
	w := &web{dir: dir, topics: map[string]bool{}}
	err := w.start(ctx, "agent", func(data, profile string) []string { return []string{data, profile} })
	if err == nil {
		err = w.start(ctx, "sidecar", func(data, profile string) []string { return []string{data, profile, w.all[0].Addr} })
	}
	if err != nil {
		return nil, errors.Join(err, w.stop())
	}
	return w, nil
}

func (w *web) processes() []*measure.Process { return w.all }

func (w *web) stop() error {
	var errs []error
	for i := len(w.all) - 1; i >= 0; i-- {
		errs = append(errs, w.all[i].Stop())
	}
	return errors.Join(errs...)
}

// paths of the steps.
var paths = map[string]string{
	"single": "/topics/single",
	"lines":  "/topics/lines/batch?lines=1",
	"ndjson": "/topics/ndjson/batch",
	"spool":  "/topics/spool/batch?lines=1&ack=spool",
}

func (w *web) dial(ctx context.Context, l load) (callers []caller, err error) {
	server := w.all[len(w.all)-1]
	if w.topics != nil && !w.topics[l.step] {
		client, err := sdk.New(server.Addr)
		if err != nil {
			return nil, err
		}
		defer client.Close()
		spec := api.TopicSpec{Partitions: partitions, Configs: map[string]string{"retention.bytes": fmt.Sprint(128 << 20), "segment.bytes": fmt.Sprint(64 << 20)}}
		if _, err := client.CreateTopic(ctx, l.step, spec); err != nil {
			return nil, err
		}
		w.topics[l.step] = true
	}
	values := measure.Payloads(eventSize, true)
	body := bodyOf(l.step, l.events, values)
	for i := range l.clients {
		if l.events == 1 {
			body = values[i%len(values)]
		}
		p, err := newPoster(server.Addr, requestOf(server.Addr, paths[l.step], body))
		if err != nil {
			return nil, err
		}
		callers = append(callers, &httpCaller{p, l.events})
	}
	return callers, nil
}

type httpCaller struct {
	*poster
	events int
}

func (c *httpCaller) call(context.Context) error {
	if err := c.post(); err != nil {
		return err
	}
	if c.events > 1 && !bytes.Contains(c.body[:min(len(c.body), 100)], []byte(`"failed":0`)) {
		return fmt.Errorf("a batch was answered %.200s", c.body)
	}
	return nil
}

func (c *httpCaller) close() { _ = c.conn.Close() }
