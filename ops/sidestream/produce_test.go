package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// batches is a sidecar that takes batches whose lines are not "bad".
type batches struct {
	queries []string   // of each request
	keys    []string   // Idempotency-Key
	lines   [][]string // that were taken, by request
}

func (s *batches) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	lines := strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")
	s.queries, s.keys = append(s.queries, r.URL.RawQuery), append(s.keys, r.Header.Get("Idempotency-Key"))
	if i := slices.Index(lines, "bad"); i >= 0 {
		e := api.NewError(api.CodeBadRecord, fmt.Sprintf("line %d: no (to send lines as they are use ?lines=1); nothing of this request was written", i+1))
		e.Line = i + 1
		w.WriteHeader(http.StatusUnprocessableEntity)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": e})
		return
	}
	if slices.Contains(lines, "lost") {
		w.WriteHeader(http.StatusNotFound)
		_ = json.NewEncoder(w).Encode(map[string]any{"error": api.NewError(api.CodeTopicNotFound, "no topic")})
		return
	}
	s.lines = append(s.lines, lines)
	answer := api.BatchPublished{Topic: "t", Written: len(lines), Results: make([]api.BatchResult, len(lines))}
	if r.URL.Query().Get("ack") == "spool" {
		answer.Written, answer.Spooled = 0, len(lines)
		for i := range answer.Results {
			answer.Results[i] = api.BatchResult{Partition: 1, Offset: -1, SpoolID: fmt.Sprint("id-", i)}
		}
		w.WriteHeader(http.StatusAccepted)
	}
	_ = json.NewEncoder(w).Encode(answer)
}

func produce(t *testing.T, stdin string, args ...string) (*batches, result) {
	t.Helper()
	s := &batches{}
	server := httptest.NewServer(s)
	defer func() { server.Close(); http.DefaultClient.CloseIdleConnections() }()
	return s, command(t.Context(), stdin, append([]string{"produce", "t", "--sidecar", server.URL}, args...)...)
}

// What is written does not depend on which lines came together.
func TestProduceWritesWhatComesBeforeABadLine(t *testing.T) {
	for _, size := range []string{"1", "2", "3", "100"} {
		s, r := produce(t, "a\n\nb\nbad\nc\n", "--json", "--batch", size)
		if got := slices.Concat(s.lines...); !slices.Equal(got, []string{"a", "b"}) {
			t.Errorf("batches of %s: written %q", size, got)
		}
		if want := "2 messages written to t\nline 4: not written: bad_record: no (to send lines as they are, leave out --json)\nnothing from line 4 on is written: mend the input, and the same command goes on with --resume 4"; r.code != exitFailed || !strings.Contains(r.err, want) || strings.Contains(r.err, "nothing of this request") {
			t.Errorf("batches of %s: %d %s", size, r.code, r.err)
		}
	}
}

// An error that is of no line names those that were sent together.
func TestProduceNamesTheLinesOfARequest(t *testing.T) {
	for in, want := range map[string]string{"\nlost\n": "\nline 2: not written: topic_not_found", "\nlost\n\nlost\n": "\nlines 2 to 4: not written: topic_not_found"} {
		if _, r := produce(t, in, "--idempotency-key", "k"); r.code != exitFailed || !strings.Contains(r.err, want) {
			t.Errorf("%q: %+v", in, r)
		}
	}
}

func TestProduceFlags(t *testing.T) {
	s, r := produce(t, "a\nb\n", "--ack", "spool", "--timeout", "2s", "--header", "n=v=w", "--header", "n=", "--partition", "0", "--print")
	want := []string{
		`{"value":"a","partition":0,"headers":[{"name":"n","value":"v=w"},{"name":"n","value":""}]}`,
		`{"value":"b","partition":0,"headers":[{"name":"n","value":"v=w"},{"name":"n","value":""}]}`,
	}
	if r.code != exitOK || !slices.Equal(slices.Concat(s.lines...), want) || s.queries[0] != "ack=spool&timeout=2s" {
		t.Errorf("%+v: sent %q to %q", r, s.lines, s.queries)
	}
	if !strings.HasPrefix(r.out, "t/1/spool:id-0\n") || !strings.Contains(r.err, "2 messages for t taken into the spool") {
		t.Errorf("%+v", r)
	}
	// A repeat makes the same requests.
	s, r = produce(t, "a\nb\n\nc\n", "--ack", "leader", "--idempotency-key", "k", "--batch", "2")
	if r.code != exitOK || !slices.Equal(s.keys, []string{"k/1", "k/4"}) || s.queries[0] != "ack=leader&lines=1" {
		t.Errorf("%+v: keys %q to %q", r, s.keys, s.queries)
	}
	s, _ = produce(t, "a\nbad\nc\n", "--idempotency-key", "k")
	if len(s.lines) != 0 || !slices.Equal(s.keys, []string{"k/1"}) {
		t.Errorf("another request under the key: %q %q", s.keys, s.lines)
	}
	for want, args := range map[string][]string{
		"use all, leader or spool":  {"--ack", "none"},
		"use name=value":            {"--header", "x"},
		"leave out --json":          {"--header", "x=y", "--json"},
		"have it chosen by the key": {"--partition", "-2"},
		"use 1ms or more":           {"--timeout", "0s"},
		"--resume: got":             {"--resume", "5-7"},
		"of the run that it resume": {"--resume", "5-7/k", "--once"},
		"leave out --json and":      {"--whole", "--json"},
		"takes each message's key":  {"--key-separator", ":", "--key", "k"},
		"makes repeats safe":        {"--once", "--idempotency-key", "k"},
	} {
		if s, r := produce(t, "a\n", args...); r.code != exitUsage || !strings.Contains(r.err, want) || len(s.queries) > 0 {
			t.Errorf("%v: %+v", args, r)
		}
	}
}
