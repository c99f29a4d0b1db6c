package main

import (
	"context"
	"strings"
	"testing"
	"time"
)

// A look into a topic took a group and moved it: "consume" was all there was.
func TestTopicRead(t *testing.T) {
	d := startDev(t, t.TempDir(), 1)
	t.Setenv(envSidecar, d.Sidecars[0])
	t.Setenv(envBootstrap, d.Broker)
	d.sh(t, "", "topic", "create", "orders", "--partitions", "3")
	d.sh(t, `{"partition":0,"ts":1000,"key":"a","value":"one","headers":{"h":"1","i":"2"}}
{"partition":1,"ts":2000,"value":"two"}
{"partition":0,"ts":3000,"key":"a","value":"three"}
{"partition":2,"ts":4000,"key":"b","value":"four"}
{"partition":0,"ts":5000,"value64":"/w=="}
`, "produce", "orders", "--json", "--once") // without a header of its own

	for _, c := range []struct {
		args []string
		want string
	}{
		{nil, "one\ntwo\nthree\nfour\n\xff\n"}, // by their timestamps, over partitions
		{[]string{"-n", "2"}, "one\ntwo\n"},
		{[]string{"--partition", "0", "--keys"}, "a\tone\na\tthree\n\t\xff\n"},
		{[]string{"--partition", "0,2", "--headers", "--keys", "-n", "1"}, "h=1 i=2 \ta\tone\n"},
		{[]string{"--partition", "0", "--offset", "1"}, "three\n\xff\n"},
		{[]string{"--last", "1"}, "two\nfour\n\xff\n"},
		{[]string{"--from", "1970-01-01T00:00:03Z"}, "three\nfour\n\xff\n"},
		{[]string{"--from", "latest"}, ""},
		{[]string{"--format", `%p/%o %k=%v{hex};`}, "0/0 a=6f6e65;1/0 =74776f;0/1 a=7468726565;2/0 b=666f7572;0/2 =ff;"},
	} {
		if out := d.sh(t, "", append([]string{"topic", "read", "orders"}, c.args...)...); out != c.want {
			t.Errorf("%v printed %q, want %q", c.args, out, c.want)
		}
	}
	if out := d.sh(t, "", "topic", "read", "orders", "--json", "--partition", "0", "--offset", "2"); !strings.Contains(out, `"id":"orders/0/2"`) || !strings.Contains(out, `"value64":"/w=="`) || strings.Contains(out, "receipt") {
		t.Errorf("as JSON: %s", out)
	}
	if out := d.sh(t, "", "group", "list"); out != "" {
		t.Errorf("reading made a group: %q", out)
	}
	if r := command(t.Context(), "", "topic", "read", "nowhere"); r.code != exitFailed || !strings.Contains(r.err, "nowhere") {
		t.Errorf("a topic that is not there: %d %s", r.code, r.err)
	}
	if r := command(t.Context(), "", "topic", "read", "orders", "--partition", "7"); r.code != exitUsage || !strings.Contains(r.err, "it has 3, from 0") {
		t.Errorf("a partition that is not there: %d %s", r.code, r.err)
	}

	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	followed := make(chan result, 1)
	go func() {
		followed <- command(ctx, "", "topic", "read", "orders", "--from", "latest", "--follow", "-n", "2")
	}()
	for more := true; more; { // it may not have begun yet when the first are written
		d.sh(t, "later\n", "produce", "orders")
		select {
		case r := <-followed:
			if r.failure != nil || r.out != "later\nlater\n" {
				t.Errorf("followed: %v %q", r.failure, r.out)
			}
			more = false
		case <-time.After(50 * time.Millisecond):
		}
	}
}

func TestReadFlags(t *testing.T) {
	for want, args := range map[string][]string{
		"use earliest, latest or a time such as": {"--from", "yesterday"},
		"name it with --partition":               {"--offset", "1"},
		"--offset: got -1: use 0 or more":        {"--offset", "-1", "--partition", "0"},
		"--from and --last are both given":       {"--from", "latest", "--last", "1"},
		"use one of --json, --format":            {"--json", "--keys"},
		`--format: got "%q"`:                     {"--format", "%q"},
		"--max: got -1":                          {"-n", "-1"},
		"--partition: got -1":                    {"--partition", "-1"},
		"--last: got 0":                          {"--last", "0"},
	} {
		r := command(t.Context(), "", append([]string{"topic", "read", "t", "--bootstrap", "127.0.0.1:1"}, args...)...)
		if r.code != exitUsage || !strings.Contains(r.err, want) {
			t.Errorf("%v: %d %q lacks %q", args, r.code, r.err, want)
		}
	}
}

// Pressing Tab where a topic or a group is wanted offered nothing.
func TestCompletionOfNames(t *testing.T) {
	d := startDev(t, t.TempDir(), 1)
	t.Setenv(envSidecar, d.Sidecars[0])
	t.Setenv(envBootstrap, d.Broker)
	d.sh(t, "", "topic", "create", "orders")
	d.sh(t, "", "topic", "create", "refunds")
	d.sh(t, "", "group", "configure", "billing")
	for _, c := range []struct {
		args []string
		want string
	}{
		{[]string{"topic", "describe", ""}, "orders\nrefunds\n:4\n"},
		{[]string{"topic", "delete", "orders", ""}, "refunds\n:4\n"},
		{[]string{"produce", "o"}, "orders\n:4\n"},
		{[]string{"produce", "orders", ""}, ":0\n"}, // a file
		{[]string{"consume", "orders", "--group", ""}, "billing\n:4\n"},
		{[]string{"group", "describe", "b"}, "billing\n:4\n"},
		{[]string{"group", "pause", "billing", "r"}, "refunds\n:4\n"},
		{[]string{"group", "list", ""}, ":4\n"},
		{[]string{"topic", "create", "orders", ""}, ":4\n"},
	} {
		r := command(t.Context(), "", append([]string{"__complete"}, c.args...)...)
		if r.out != c.want {
			t.Errorf("%v: %q, want %q", c.args, r.out, c.want)
		}
	}
	t.Setenv(envSidecar, "127.0.0.1:1")
	if r := command(t.Context(), "", "__complete", "group", "describe", ""); r.out != ":4\n" {
		t.Errorf("with nobody there: %q %s", r.out, r.err)
	}
}
