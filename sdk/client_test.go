package sdk_test

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"go.uber.org/goleak"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func newClient(t *testing.T, f *fake, options ...sdk.Option) *sdk.Client {
	t.Helper()
	c, err := sdk.New("", append([]sdk.Option{sdk.WithHTTPClient(&http.Client{Transport: f})}, options...)...)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestAddresses(t *testing.T) {
	for _, bad := range []string{"ftp://x", "http://", "http://h:1/path", "unix:", "://", "http://h?x=1"} {
		if _, err := sdk.New(bad); err == nil || !strings.Contains(err.Error(), "use ") {
			t.Errorf("%q: got %v, want an error that says what to use", bad, err)
		}
	}
	for _, good := range []string{"", "127.0.0.1:4100", "http://127.0.0.1:4100", "http://127.0.0.1:4100/", "unix:/tmp/x", "unix:///tmp/x", "localhost:1"} {
		if _, err := sdk.New(good); err != nil {
			t.Errorf("%q: %v", good, err)
		}
	}
}

func TestUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s.sock")
	listener, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	server := &http.Server{Handler: newFake()}
	done := make(chan struct{})
	go func() {
		defer close(done)
		_ = server.Serve(listener)
	}()
	defer func() { _ = server.Close(); <-done }()
	c, err := sdk.New("unix:" + path)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Publish(t.Context(), "t", sdk.Message{Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
}

func TestWithCallerNamesTheApplication(t *testing.T) {
	var names []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		names = append(names, r.Method+" "+strings.Join(r.Header.Values(api.HeaderCaller), ","))
		answer(w, 200, api.Published{})
	}))
	defer server.Close()
	for _, options := range [][]sdk.Option{{sdk.WithCaller("billing")}, nil} {
		c, err := sdk.New(server.URL, options...)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := c.Publish(t.Context(), "t", sdk.Message{Value: []byte("x")}); err != nil {
			t.Fatal(err)
		}
		if _, err := c.PublishBatch(t.Context(), "t", []sdk.Message{{Value: []byte("x")}}); err != nil {
			t.Fatal(err)
		}
	}
	if got := strings.Join(names, "|"); got != "POST billing|POST billing|POST |POST " {
		t.Errorf("got %q", got)
	}
}

// What is sent for each field of a message, and that names cannot escape
// their place in the path.
func TestPublishSpellsTheRequest(t *testing.T) {
	var got *http.Request
	var body []byte
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		got = r
		body, _ = io.ReadAll(r.Body)
		answer(w, 200, api.Published{Topic: "a/b", Partition: 3, Offset: 7})
	}))
	defer server.Close()
	c, err := sdk.New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	at, err := c.Publish(t.Context(), "a/b", sdk.Message{
		Key: []byte("k&1"), Value: []byte{0, 1, 0xff}, Partition: new(int32(3)), Timestamp: time.UnixMilli(1500),
		Headers: []sdk.Header{{"trace", "1"}, {"trace", "2=x"}},
	}, sdk.AckLeader(), sdk.Timeout(2*time.Second))
	if err != nil {
		t.Fatal(err)
	}
	if at.Partition != 3 || at.Offset != 7 {
		t.Errorf("answer: %+v", at)
	}
	q := got.URL.Query()
	for name, want := range map[string]string{"key": "k&1", "partition": "3", "ts": "1500", "ack": "leader", "timeout": "2s"} {
		if q.Get(name) != want {
			t.Errorf("%s: got %q, want %q", name, q.Get(name), want)
		}
	}
	if got.URL.EscapedPath() != "/topics/a%2Fb" || string(body) != "\x00\x01\xff" {
		t.Errorf("path %s, body %q", got.URL.EscapedPath(), body)
	}
	if h := got.Header.Values("Record-Header"); len(h) != 2 || h[1] != "trace=2=x" {
		t.Errorf("headers: %v", got.Header)
	}
	for _, odd := range []sdk.Header{{"n", "\x00\n"}, {"n=", "v"}, {"n", " v"}, {"\xff", ""}} {
		if _, err := c.Publish(t.Context(), "t", sdk.Message{Headers: []sdk.Header{{"n", "v"}, odd}}); err != nil {
			t.Fatalf("%q: %v", odd, err)
		}
		encode := base64.RawStdEncoding.EncodeToString
		want := []string{"bg=dg", encode([]byte(odd.Name)) + "=" + encode([]byte(odd.Value))}
		if h := got.Header.Values("Record-Header64"); !slices.Equal(h, want) || got.Header.Get("Record-Header") != "" {
			t.Errorf("%q went as %q", odd, got.Header)
		}
	}
	if _, err := c.Publish(t.Context(), "t", sdk.Message{Key: []byte{0xff}}); err != nil {
		t.Fatal(err)
	}
	if got.URL.Query().Get("key64") != base64.StdEncoding.EncodeToString([]byte{0xff}) {
		t.Errorf("a key that is not UTF-8 went as %s", got.URL.RawQuery)
	}
}

// A publish whose outcome is not known is repeated if it has a key to be known by.
func TestRepeatsWithAnIdempotencyKey(t *testing.T) {
	var keys []string
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		keys = append(keys, r.Header.Get("Idempotency-Key"))
		switch len(keys) {
		case 1:
			refuse(api.CodeUnknownOutcome, "")(w)
		case 2:
			panic(http.ErrAbortHandler) // the connection breaks
		default:
			answer(w, 200, api.Published{Offset: 7})
		}
	}))
	defer server.Close()
	c, err := sdk.New(server.URL, sdk.WithRetry(sdk.Retry{Attempts: 5, Longest: time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if at, err := c.Publish(t.Context(), "t", sdk.Message{Value: []byte("x")}, sdk.IdempotencyKey("k 1")); err != nil || at.Offset != 7 {
		t.Errorf("%+v, %v", at, err)
	}
	if !slices.Equal(keys, []string{"k 1", "k 1", "k 1"}) {
		t.Errorf("sent %q", keys)
	}
	keys = nil
	if _, err := c.PublishLines(t.Context(), "t", []byte("x")); !errors.Is(err, &api.Error{Code: api.CodeUnknownOutcome}) || len(keys) != 1 {
		t.Errorf("without a key: %v, sent %d times", err, len(keys))
	}
}

func TestBatchSpellsEveryKindOfBytes(t *testing.T) {
	var lines []api.Record
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		for d := json.NewDecoder(r.Body); ; {
			var record api.Record
			if d.Decode(&record) != nil {
				break
			}
			lines = append(lines, record)
		}
		answer(w, 207, api.BatchPublished{Written: 1, Failed: 2, Results: []api.BatchResult{{Offset: 1}, {Error: api.NewError(api.CodeMessageTooLarge, "x")}, {}}})
	}))
	defer server.Close()
	c, err := sdk.New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	result, err := c.PublishBatch(t.Context(), "t", []sdk.Message{
		{Key: []byte("k"), Value: []byte("line\n\"quoted\"\u2028"), Headers: []sdk.Header{{"a", "b"}}},
		{Key: []byte{0xfe}, Value: []byte{0xff}, Timestamp: time.UnixMilli(9)},
		{Key: []byte("gone")},
	})
	if err != nil || result.Failed != 2 || result.Results[1].Error.Code != api.CodeMessageTooLarge {
		t.Fatalf("%+v, %v", result, err)
	}
	if len(lines) != 3 || string(lines[0].Value) == "" || *lines[0].Key != "k" || lines[0].Headers["a"] != "b" ||
		*lines[1].Value64 != "/w==" || *lines[1].Key64 != "/g==" || *lines[1].Timestamp != 9 || lines[2].Value != nil {
		t.Errorf("sent %+v", lines)
	}
	var text string
	if err := json.Unmarshal(lines[0].Value, &text); err != nil || text != "line\n\"quoted\"\u2028" {
		t.Errorf("value arrived as %q, %v", text, err)
	}
	lines = nil
	if _, err := c.PublishBatch(t.Context(), "t", []sdk.Message{
		{Headers: []sdk.Header{{"b", "1"}, {"a", "2"}, {"b", "\xff"}}},
		{Headers: []sdk.Header{{"x", "\xff"}}},
	}); err != nil || len(lines) != 2 {
		t.Fatalf("sent %+v, %v", lines, err)
	}
	sent, err := json.Marshal([][]api.HeaderPair{lines[0].HeaderList, lines[1].HeaderList})
	if want := `[[{"name":"b","value":"1"},{"name":"a","value":"2"},{"name":"b","value64":"/w=="}],[{"name":"x","value64":"/w=="}]]`; err != nil || string(sent) != want {
		t.Errorf("headers went as %s, %v; want %s", sent, err, want)
	}
	// Names of any bytes go, as values do: they were refused.
	lines = nil
	if _, err := c.PublishBatch(t.Context(), "t", []sdk.Message{{Headers: []sdk.Header{{"\xff", "x"}}}}); err != nil || len(lines) != 1 {
		t.Fatalf("sent %+v, %v", lines, err)
	}
	if sent, err := json.Marshal(lines[0].HeaderList); err != nil || string(sent) != `[{"name":"","name64":"/w==","value":"x"}]` {
		t.Errorf("headers went as %s, %v", sent, err)
	}
}

func TestErrorsAreTyped(t *testing.T) {
	f := newFake()
	c := newClient(t, f)
	_, err := c.Publish(t.Context(), "nowhere", sdk.Message{})
	if !errors.Is(err, &api.Error{Code: api.CodeTopicNotFound}) {
		t.Errorf("got %v", err)
	}
	f.fail = append(f.fail, refuse(api.CodeBrokersUnavailable, "7"))
	_, err = c.Publish(t.Context(), "t", sdk.Message{})
	if sdk.RetryAfter(err) != 7*time.Second {
		t.Errorf("Retry-After of %v is %v", err, sdk.RetryAfter(err))
	}
	f.fail = append(f.fail, func(w http.ResponseWriter) { w.WriteHeader(502); _, _ = io.WriteString(w, "<html>bad gateway") })
	_, err = c.Publish(t.Context(), "t", sdk.Message{})
	if e, ok := errors.AsType[*sdk.StatusError](err); !ok || e.Status != 502 || !strings.Contains(err.Error(), "bad gateway") {
		t.Errorf("got %v", err)
	}
	f.fail = append(f.fail, func(w http.ResponseWriter) { _, _ = io.WriteString(w, "hello") })
	if _, err = c.Publish(t.Context(), "t", sdk.Message{}); err == nil || !strings.Contains(err.Error(), "something else") {
		t.Errorf("got %v", err)
	}
}

// When all of a batch failed alike the error is the common one, and the
// results are there too.
func TestAllFailedAlike(t *testing.T) {
	c := newClient(t, newFake())
	response, err := c.Ack(t.Context(), "g", "t", "bogus", "bogus2")
	if !errors.Is(err, &api.Error{Code: api.CodeLeaseLost}) || response.Failed != 2 {
		t.Errorf("got %+v, %v", response, err)
	}
	response, err = c.Ack(t.Context(), "g", "t", "bogus", "r0")
	if err != nil || response.Failed != 1 || response.OK != 1 {
		t.Errorf("mixed: %+v, %v", response, err)
	}
}

func TestRetryWaitsAsAskedAndOnlyWhereItCannotHarm(t *testing.T) {
	for name, tt := range map[string]struct {
		fail  []func(http.ResponseWriter)
		calls int
		took  time.Duration
		fails bool
	}{
		"asked to wait":           {fail: []func(http.ResponseWriter){refuse(api.CodeRateLimited, "2")}, calls: 2, took: 2 * time.Second},
		"no longer than allowed":  {fail: []func(http.ResponseWriter){refuse(api.CodeDraining, "60")}, calls: 2, took: 5 * time.Second},
		"doubling":                {fail: []func(http.ResponseWriter){refuse(api.CodeBrokersUnavailable, ""), refuse(api.CodeBrokersUnavailable, "")}, calls: 3, took: 300 * time.Millisecond},
		"attempts used up":        {fail: []func(http.ResponseWriter){refuse(api.CodeRateLimited, ""), refuse(api.CodeRateLimited, ""), refuse(api.CodeRateLimited, "")}, calls: 3, took: 300 * time.Millisecond, fails: true},
		"no use":                  {fail: []func(http.ResponseWriter){refuse(api.CodeTopicNotFound, "")}, calls: 1, fails: true},
		"may have been written":   {fail: []func(http.ResponseWriter){refuse(api.CodeUnknownOutcome, "")}, calls: 1, fails: true},
		"not the sidecar's words": {fail: []func(http.ResponseWriter){func(w http.ResponseWriter) { w.WriteHeader(503) }}, calls: 1, fails: true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFake()
				f.fail = tt.fail
				c := newClient(t, f, sdk.WithRetry(sdk.Retry{Attempts: 3, Longest: 5 * time.Second}))
				start := time.Now()
				_, err := c.Publish(t.Context(), "t", sdk.Message{Value: []byte("x")})
				if (err != nil) != tt.fails || f.called("/topics/t") != tt.calls || time.Since(start) != tt.took {
					t.Errorf("err %v, %d calls, took %v", err, f.called("/topics/t"), time.Since(start))
				}
			})
		})
	}
}

func TestNothingListensIsRetried(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := l.Addr().String()
	_ = l.Close()
	c, err := sdk.New(address, sdk.WithRetry(sdk.Retry{Attempts: 3, Longest: time.Millisecond}))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Publish(context.Background(), "t", sdk.Message{}); err == nil || !strings.Contains(err.Error(), "refused") || !strings.Contains(err.Error(), "is one running there?") {
		t.Errorf("got %v", err)
	}
}

// A program that names no address follows its environment.
func TestAddressFromTheEnvironment(t *testing.T) {
	server := httptest.NewServer(newFake())
	defer server.Close()
	t.Setenv(sdk.EnvAddress, server.URL)
	c, err := sdk.New("")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := c.Publish(t.Context(), "t", sdk.Message{Value: []byte("x")}); err != nil {
		t.Fatal(err)
	}
	t.Setenv(sdk.EnvAddress, "ftp://x")
	if _, err := sdk.New(""); err == nil || !strings.Contains(err.Error(), "ftp://x") {
		t.Errorf("got %v", err)
	}
}
