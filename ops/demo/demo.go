package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"time"

	"sidestream/examples/pageviews"
	"sidestream/ops/devserver"
	"sidestream/sdk"
	"sidestream/sdk/api"
)

// errChecks: the demo ran, and something that it promises did not hold.
var errChecks = errors.New("a check failed")

// demo is one run: what to post, and what must come out of it.
type demo struct {
	binary    string
	dir       string
	input     []byte // posted
	reference []byte // what was meant to be posted
	out       io.Writer
}

func (d demo) say(format string, args ...any) { _, _ = fmt.Fprintf(d.out, format+"\n", args...) }

func (d demo) run(ctx context.Context) (err error) {
	start := time.Now()
	server, err := devserver.Start(ctx, devserver.Options{Binary: d.binary, Dir: d.dir, Sidecars: 2})
	if err != nil {
		return err
	}
	defer func() {
		stopCtx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		err = errors.Join(err, server.Stop(stopCtx))
	}()
	d.say("sidestream dev serves: broker %s, sidecars %v (%.1f s)", server.Info.Broker, server.Info.Sidecars, time.Since(start).Seconds())

	sides := make([]side, len(server.Info.Sidecars))
	for i, address := range server.Info.Sidecars {
		client, err := sdk.New(address)
		if err != nil {
			return err
		}
		defer client.Close()
		sides[i] = side{name: string(rune('A' + i)), client: client}
	}
	return d.flow(ctx, sides, start)
}

// flow is the demo proper, once two sidecars serve.
func (d demo) flow(ctx context.Context, sides []side, start time.Time) error {
	topic, group := pageviews.Topic, pageviews.Group
	if _, err := sides[0].client.CreateTopic(ctx, topic, api.TopicSpec{Partitions: 4}); err != nil {
		return fmt.Errorf("creating topic %s: %w", topic, err)
	}
	if err := join(ctx, sides, group, topic); err != nil {
		return err
	}
	d.say("both sidecars are in group %s (%.1f s)", group, time.Since(start).Seconds())

	posted, err := pageviews.Post(ctx, sides[0].client, topic, d.input)
	if err != nil {
		return fmt.Errorf("posting: %w", err)
	}
	d.say("%d page views posted through sidecar A (%.1f s)", posted, time.Since(start).Seconds())

	var reference [][]byte
	for line := range pageviews.Lines(d.reference) {
		reference = append(reference, line)
	}
	ok := true
	since := func() string { return fmt.Sprintf("(%.1f s)", time.Since(start).Seconds()) }
	arrivals, err := gather(ctx, sides, group, topic, posted)
	if err != nil {
		return err
	}
	d.topPages(arrivals)
	ok = d.report(fmt.Sprintf("group %s, through A and B at once %s", group, since()), append(checks(reference, arrivals), both(sides, arrivals)...)) && ok
	ok = d.report("acknowledged", []Check{lag(ctx, sides[1], group, topic)}) && ok

	if arrivals, err = gather(ctx, sides[1:], "audit", topic, posted); err != nil {
		return err
	}
	ok = d.report("group audit sees all again "+since(), checks(reference, arrivals)) && ok

	if _, err := sides[1].client.Seek(ctx, group, topic, "earliest"); err != nil {
		return fmt.Errorf("seeking %s to earliest: %w", group, err)
	}
	if arrivals, err = gather(ctx, sides, group, topic, posted); err != nil {
		return err
	}
	ok = d.report(fmt.Sprintf("group %s, sought to earliest, sees all again %s", group, since()), checks(reference, arrivals)) && ok
	d.say("\n%.1f s in all", time.Since(start).Seconds())
	if !ok {
		return errChecks
	}
	return nil
}

// topPages prints the ten most viewed pages.
func (d demo) topPages(arrivals []Arrival) {
	views := map[string]int{}
	for _, a := range arrivals {
		if v, err := pageviews.Parse([]byte(a.Value)); err == nil {
			views[v.Path]++
		}
	}
	d.say("\nThe ten most viewed pages:")
	for _, p := range pageviews.Top(views, 10) {
		d.say("%6d  %s", p.Views, p.Path)
	}
}

func (d demo) report(title string, list []Check) bool {
	d.say("\n%s:", title)
	ok := true
	for _, c := range list {
		mark := "ok  "
		if !c.OK {
			mark, ok = "FAIL", false
		}
		d.say("  %s  %-14s %s", mark, c.Name, c.Detail)
	}
	return ok
}

// both: every side must have delivered something.
func both(sides []side, arrivals []Arrival) []Check {
	delivered := map[string]int{}
	for _, a := range arrivals {
		delivered[a.Sidecar]++
	}
	var list []Check
	for _, s := range sides {
		list = append(list, Check{"sidecar " + s.name, fmt.Sprintf("delivered %d", delivered[s.name]), delivered[s.name] > 0})
	}
	return list
}

// checkpointed is how long the positions of the other sidecar may take to be
// told: its checkpoints are a second apart.
const checkpointed = 10 * time.Second

// lag must be 0 once all is acknowledged and written to the coordination store,
// from where a sidecar knows the positions of another.
func lag(ctx context.Context, s side, group, topic string) Check {
	offsets, err := s.client.Offsets(ctx, group, topic)
	for begun := time.Now(); err == nil && (offsets.Lag != 0 || offsets.Partial) && time.Since(begun) < checkpointed; {
		select {
		case <-time.After(50 * time.Millisecond):
			offsets, err = s.client.Offsets(ctx, group, topic)
		case <-ctx.Done():
			err = ctx.Err()
		}
	}
	if err != nil {
		return Check{"lag", err.Error(), false}
	}
	position := int64(0)
	for _, p := range offsets.Partitions {
		position += p.Position + p.Acked
	}
	return Check{"lag", fmt.Sprintf("%d messages, positions add up to %d", offsets.Lag, position), offsets.Lag == 0 && !offsets.Partial}
}
