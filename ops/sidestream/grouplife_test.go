package main

import (
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

func TestPauseDescribeResume(t *testing.T) {
	d := startDev(t, t.TempDir(), 2)
	at := []string{"--sidecar", d.Sidecars[0]}
	other := []string{"--sidecar", d.Sidecars[1]}
	sh := func(where []string, args ...string) string { return d.sh(t, "", append(args, where...)...) }
	request(t, "POST", d.Sidecars[0]+"/topics/hello", "one")
	sh(at, "consume", "hello", "--group", "g", "--until-end")
	request(t, "POST", d.Sidecars[0]+"/topics/hello", "two")

	if r := command(t.Context(), "", append([]string{"group", "pause", "nobody"}, at...)...); r.code != exitFailed || !strings.Contains(r.err, "group nobody does not exist") {
		t.Errorf("%d %q", r.code, r.err)
	}
	if out := sh(at, "group", "pause", "g", "hello"); out != "group g is paused in hello\n" {
		t.Errorf("%q", out)
	}
	if out := sh(other, "group", "pause", "g"); out != "group g is paused\n" {
		t.Errorf("%q", out)
	}
	out := sh(at, "group", "describe", "g", "hello")
	for _, want := range []string{"group g is paused\n", ", unreadable dead, ", "topic hello: lag 1, ", "s behind; ", "last moves", " joined"} {
		if !strings.Contains(out, want) {
			t.Errorf("%q is not in\n%s", want, out)
		}
	}
	if out := sh(other, "group", "configure", "g", "--ephemeral", "--lease", "45s"); !strings.HasPrefix(out, "group g: order partition, lease 45s, attempts 10, ") || !strings.HasSuffix(out, ", ephemeral\n") {
		t.Errorf("%q", out)
	}
	if out := sh(at, "group", "configure", "g", "--ephemeral=false", "--max-attempts", "0"); !strings.Contains(out, "lease 45s, attempts no limit, ") || strings.Contains(out, "ephemeral") {
		t.Errorf("%q", out)
	}
	if out := sh(at, "group", "resume", "g"); out != "group g goes on\n" {
		t.Errorf("%q", out)
	}
	if r := command(t.Context(), "", append([]string{"group", "pause", "g", "hello", "later"}, at...)...); r.code != 0 || r.err != "topic later does not exist: what was said of it holds once it does\n" {
		t.Errorf("%+v", r)
	}
	if out := sh(at, "group", "resume", "g", "hello"); out != "group g goes on in hello; group g is paused in later\n" {
		t.Errorf("%q", out)
	}
	for _, args := range [][]string{
		{"group", "configure", "g", "--lease", "soon"}, {"group", "seek", "g", "hello", "--to", "yesterday"}, {"consume", "hello", "--group", "new", "--from", "yesterday"},
	} {
		if r := command(t.Context(), "", append(args, at...)...); r.code != exitUsage {
			t.Errorf("%v: exit code %d, want %d: %s", args, r.code, exitUsage, r.err)
		}
	}
	if out := sh(other, "consume", "hello", "--group", "g", "--until-end"); !strings.Contains(out, "two") {
		t.Errorf("after the resume %q", out)
	}
}

func TestAge(t *testing.T) {
	for _, c := range []struct {
		seconds float64
		want    string
	}{{-1, "?"}, {0, "0.0s"}, {2.34, "2.3s"}, {75.2, "1m15s"}, {7200, "2h0m0s"}, {10 * 24 * 3600, "10.0d"}} {
		if got := age(c.seconds); got != c.want {
			t.Errorf("%v s: %q, want %q", c.seconds, got, c.want)
		}
	}
}

func TestGroupShowsWhatWasOmitted(t *testing.T) {
	var out strings.Builder
	yes := true
	err := printGroup(&out, groupView{Group: api.Group{
		Group: "g", Config: api.GroupConfig{Ephemeral: &yes}, PausedTopics: []string{"a", "b"},
		History: []api.Move{{Plan: 1, At: time.Unix(0, 0).UTC(), Cause: "x joined", Omitted: 500}, {Plan: 2, Topic: "t", Partition: 3, From: "x", Cause: "x left"}},
	}})
	for _, want := range []string{", ephemeral\n", "paused in a, b", "500 partitions", "x joined", "t/3", "none"} {
		if err != nil || !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
