package main

import (
	"bytes"
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sidestream/sdk"
)

// severalTopics answers as a sidecar does whose group pulls a pattern.
func severalTopics(t *testing.T) string {
	answers := map[string]string{
		"GET /groups/g": `{"group":"g","config":{},"members":[{"sidecar":"a","topics":["clicks","orders.*"],"joined":"2026-01-31T08:00:00Z"}],
			"partitions":[{"topic":"clicks","partition":0,"generation":1},{"topic":"orders.eu","partition":0,"generation":1}],"history":[]}`,
		"GET /groups/g/topics/clicks/offsets":    `{"group":"g","topic":"clicks","lag":0,"partitions":[]}`,
		"GET /groups/g/topics/orders.eu/offsets": `{"group":"g","topic":"orders.eu","lag":1,"partitions":[]}`,
		"GET /groups/g/topics/orders.*/offsets": `{"group":"g","topic":"orders.*","lag":3,"partitions":[],"topics":[
			{"group":"g","topic":"orders.eu","lag":1,"partitions":[]},{"group":"g","topic":"orders.us","lag":2,"partitions":[]}]}`,
		"PUT /groups/g/topics/orders.*/offsets": `{"seek_epoch":2,"offsets":{},"topics":{"orders.us":{"seek_epoch":2,"offsets":{"0":7}},"orders.eu":{"seek_epoch":1,"offsets":{"0":5,"1":6}}}}`,
		"POST /groups/cli/topics/none.*/pull":   `{"messages":[],"reason":"no_topic"}`,
	}
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		answer, ok := answers[r.Method+" "+r.URL.Path]
		if !ok {
			t.Errorf("%s %s", r.Method, r.URL.Path)
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, answer)
	}))
	t.Cleanup(s.Close)
	return s.URL
}

func TestGroupOfAPattern(t *testing.T) {
	base := severalTopics(t)
	c, err := sdk.New(base)
	if err != nil {
		t.Fatal(err)
	}
	v, err := describeGroup(t.Context(), c, "g", nil)
	if err != nil {
		t.Fatal(err)
	}
	var shown []string
	for _, o := range v.Offsets {
		shown = append(shown, o.Topic)
	}
	if got := strings.Join(shown, " "); got != "clicks orders.eu orders.us" {
		t.Errorf("shown are %s: each topic once, and no pattern", got)
	}

	var out bytes.Buffer
	cmd := newGroupSeek()
	cmd.SetOut(&out)
	cmd.SetArgs([]string{"g", "orders.*", "--to", "latest", "--sidecar", base})
	if err := cmd.ExecuteContext(context.Background()); err != nil {
		t.Fatal(err)
	}
	if got := strings.Join(strings.Fields(out.String()), " "); got != "TOPIC PARTITION OFFSET orders.eu 0 5 orders.eu 1 6 orders.us 0 7" {
		t.Errorf("%q", got)
	}

	if err := consume(t.Context(), c, "none.*", consumeOptions{group: "cli", untilEnd: true}, io.Discard, io.Discard); err != nil {
		t.Errorf("to the end of no topic: %v", err)
	}
}
