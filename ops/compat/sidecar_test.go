package compat

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os/exec"
	"testing"
	"time"
)

// sidecar is a running `sidestream sidecar`.
type sidecar struct {
	*process
	t   *testing.T // where its calls fail
	url string
}

// in is the sidecar with its failures in a subtest.
func (s sidecar) in(t *testing.T) sidecar {
	s.t = t
	return s
}

// startSidecar runs the real binary with settings in its environment's form,
// such as SIDESTREAM_KAFKA_BOOTSTRAP=…, and waits until it is ready.
func startSidecar(t *testing.T, name, consul string, settings ...string) sidecar {
	t.Helper()
	s := launchSidecar(t, name, consul, settings...)
	s.ready(t.Context(), func(ctx context.Context) error { return call(ctx, "GET", s.url+"/readyz", nil, nil) })
	return s
}

// launchSidecar does not wait until it is ready, only until it answers.
func launchSidecar(t *testing.T, name, consul string, settings ...string) sidecar {
	t.Helper()
	addr := freeAddresses(t, 1)[0]
	cmd := exec.Command(sidestream(t), "sidecar")
	cmd.Env = append([]string{ // nothing of the test's own, such as SIDESTREAM_BIN
		"SIDESTREAM_ID=" + name, "SIDESTREAM_DATA_DIR=" + t.TempDir(), "SIDESTREAM_LISTEN=" + addr,
		"SIDESTREAM_CONSUL_ADDRESS=" + consul, "SIDESTREAM_CONSUL_CLUSTER=compat"}, settings...)
	s := sidecar{launch(t, "sidecar-"+name, cmd), t, "http://" + addr}
	s.ready(t.Context(), func(ctx context.Context) error { return call(ctx, "GET", s.url+"/healthz", nil, nil) })
	return s
}

// httpRefusal is an answer of another status than 200 or 201.
type httpRefusal struct {
	status  int
	Code    string
	Message string
}

func (r *httpRefusal) Error() string { return fmt.Sprintf("%d %s: %s", r.status, r.Code, r.Message) }

// call sends body (bytes as they are, anything else as JSON) and reads a JSON
// answer into answer, if there is one.
func call(ctx context.Context, method, url string, body, answer any) error {
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	sent, raw := body.([]byte)
	if !raw && body != nil {
		var err error
		if sent, err = json.Marshal(body); err != nil {
			return err
		}
	}
	req, err := http.NewRequestWithContext(ctx, method, url, bytes.NewReader(sent))
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	defer func() { _ = resp.Body.Close() }()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		return err
	}
	if resp.StatusCode != http.StatusOK && resp.StatusCode != http.StatusCreated {
		var said struct{ Error httpRefusal }
		if json.Unmarshal(text, &said) != nil || said.Error.Code == "" {
			said.Error.Message = string(text)
		}
		said.Error.status = resp.StatusCode
		return &said.Error
	}
	if answer == nil {
		return nil
	}
	return json.Unmarshal(text, answer)
}

// do is a call that must succeed.
func (s sidecar) do(method, path string, body, answer any) {
	s.t.Helper()
	if err := call(s.t.Context(), method, s.url+path, body, answer); err != nil {
		s.t.Fatalf("%s: %s %s: %v", s.name, method, path, err)
	}
}

// message is one that was pulled.
type message struct {
	ID        string
	Receipt   string
	Partition int32
	Offset    int64
	Key       string
	Value     *string // nil: a tombstone
	Attempt   int
}

func (m message) text() string {
	if m.Value == nil {
		return "(tombstone)"
	}
	return *m.Value
}

type pulled struct {
	Messages []message
	Reason   string
}

func (s sidecar) publish(topic, key, value string) {
	s.t.Helper()
	query := ""
	if key != "" {
		query = "?key=" + url.QueryEscape(key)
	}
	s.do("POST", "/topics/"+topic+query, []byte(value), nil)
}

// pull takes what is there, and waits a little for the first.
func (s sidecar) pull(group, topic, options string) pulled {
	s.t.Helper()
	var got pulled
	s.do("POST", "/groups/"+group+"/topics/"+topic+"/pull?wait=1s&"+options, nil, &got)
	return got
}

// next pulls until there is something.
func (s sidecar) next(group, topic, options string) []message {
	s.t.Helper()
	var got pulled
	for end := time.Now().Add(limitStart); time.Now().Before(end); {
		if got = s.pull(group, topic, options); len(got.Messages) > 0 {
			return got.Messages
		}
	}
	s.t.Fatalf("%s: group %s got nothing of %s, the last reason is %q", s.name, group, topic, got.Reason)
	return nil
}

func (s sidecar) ack(group, topic string, messages ...message) {
	s.t.Helper()
	s.settle("ack", group, topic, map[string]any{}, messages)
}

func (s sidecar) nack(group, topic string, messages ...message) {
	s.t.Helper()
	s.settle("nack", group, topic, map[string]any{"error": "no stock"}, messages)
}

func (s sidecar) settle(how, group, topic string, body map[string]any, messages []message) {
	s.t.Helper()
	var receipts []string
	for _, m := range messages {
		receipts = append(receipts, m.Receipt)
	}
	body["receipts"] = receipts
	s.do("POST", "/groups/"+group+"/topics/"+topic+"/"+how, body, nil)
}

// drain acknowledges all that comes until the end of the topic, and returns it.
func (s sidecar) drain(group, topic string) []message {
	s.t.Helper()
	var all []message
	var got pulled
	for end := time.Now().Add(limitStart); time.Now().Before(end); {
		got = s.pull(group, topic, "max=1000")
		if len(got.Messages) > 0 {
			s.ack(group, topic, got.Messages...)
			all = append(all, got.Messages...)
		} else if got.Reason == "at_end" {
			return all
		}
	}
	s.t.Fatalf("%s: group %s got %d messages of %s and did not come to its end, the last reason is %q", s.name, group, len(all), topic, got.Reason)
	return nil
}

// gather acknowledges what comes until there are count different messages and
// nothing is left.
func (s sidecar) gather(group, topic string, count int) []message {
	s.t.Helper()
	var all []message
	seen := map[string]bool{}
	waitFor(s.t, fmt.Sprintf("%d messages of %s", count, topic), func() bool {
		for _, m := range s.drain(group, topic) {
			all, seen[m.ID] = append(all, m), true
		}
		return len(seen) >= count
	})
	return all
}

// settled checks that the group has acknowledged all of a topic. What needs no
// acknowledgement, such as the marker of a transaction, may be passed over a
// moment later.
func (s sidecar) settled(group, topic string, partitions int) {
	s.t.Helper()
	var got struct {
		Lag        int64
		Partial    bool
		Partitions []struct{ Position, End, Lag int64 }
	}
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(100 * time.Millisecond) {
		s.do("GET", "/groups/"+group+"/topics/"+topic+"/offsets", nil, &got)
		if got.Lag == 0 && !got.Partial && len(got.Partitions) == partitions {
			return
		}
	}
	s.t.Errorf("%s: the offsets of group %s in %s are %+v after everything is acknowledged, want no lag in %d partitions", s.name, group, topic, got, partitions)
}
