package main

import (
	"context"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// keeping is a sidecar that writes each line once a key, and whose answers may be
// lost. It is what produce repeats to.
type keeping struct {
	mu      sync.Mutex          // guards what follows
	log     []string            // lines that are written, in order
	done    map[string]int      // lines of the request, by idempotency key
	bodies  map[string]string   // by idempotency key
	answers []func(keep) answer // of each request in turn; nil and beyond: written
	keys    []string
}

// keep is a request; write writes its lines if they are not.
type keep struct {
	key   string
	lines []string
	write func()
}

// answer is a status and what is beside it; 0 breaks the connection.
type answer struct {
	status int
	body   any
}

func codeAnswer(code api.Code, text string) answer {
	return answer{code.Status(), api.ErrorBody{Error: api.NewError(code, text)}}
}

func (s *keeping) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.done == nil {
		s.done, s.bodies = map[string]int{}, map[string]string{}
	}
	key := r.Header.Get(api.HeaderIdempotencyKey)
	if before, there := s.bodies[key]; key != "" && there && before != string(body) {
		w.WriteHeader(http.StatusConflict)
		_ = json.NewEncoder(w).Encode(api.ErrorBody{Error: api.NewError(api.CodeIdempotencyConflict, "another request")})
		return
	}
	k := keep{key: key, lines: strings.Split(strings.TrimSuffix(string(body), "\n"), "\n")}
	k.write = func() {
		if key == "" || s.done[key] == 0 {
			s.log = append(s.log, k.lines...)
			s.done[key], s.bodies[key] = len(k.lines), string(body)
		}
	}
	s.keys = append(s.keys, key)
	next := func(k keep) answer {
		k.write()
		return answer{200, api.BatchPublished{Topic: "t", Written: len(k.lines), Results: make([]api.BatchResult, len(k.lines))}}
	}
	if len(s.answers) > 0 {
		if s.answers[0] != nil {
			next = s.answers[0]
		}
		s.answers = s.answers[1:]
	}
	a := next(k)
	if a.status == 0 {
		panic(http.ErrAbortHandler)
	}
	w.WriteHeader(a.status)
	_ = json.NewEncoder(w).Encode(a.body)
}

// lost writes the request and breaks the connection before the answer.
func lost(k keep) answer { k.write(); return answer{} }

// forgetful writes the request and says that it does not know.
func forgetful(k keep) answer {
	k.write()
	return codeAnswer(api.CodeUnknownOutcome, "no broker told")
}

func produceTo(ctx context.Context, t *testing.T, s http.Handler, stdin string, args ...string) result {
	t.Helper()
	server := httptest.NewServer(s)
	defer func() { server.Close(); http.DefaultClient.CloseIdleConnections() }()
	return command(ctx, stdin, append([]string{"produce", "t", "--sidecar", server.URL}, args...)...)
}

// 392 lines were told to be "not written" of which nobody knew, and all were there:
// whoever resumed as told doubled them. What is unknown is repeated under the
// request's own key, however often its answer is lost.
func TestProduceRepeatsWhatIsUnknownUnderItsKey(t *testing.T) {
	failures := slices.Repeat([]func(keep) answer{forgetful, lost}, 5)
	s := &keeping{answers: append([]func(keep) answer{nil}, failures...)}
	r := produceTo(t.Context(), t, s, "a\nb\nc\nd\n", "--batch", "2")
	if want := []string{"a", "b", "c", "d"}; r.code != exitOK || !slices.Equal(s.log, want) || !strings.Contains(r.err, "4 messages written") {
		t.Errorf("written %q, %+v", s.log, r)
	}
	if len(s.keys) != 12 || s.keys[0] == s.keys[1] || s.keys[1] != s.keys[11] || s.keys[0] == "" {
		t.Errorf("keys %q: want one a request, and the same for its repeats", s.keys)
	}
	if !strings.Contains(r.err, "lines 3 to 4: unknown, trying again") {
		t.Errorf("nothing was said while it was repeated: %s", r.err)
	}
}

var resumes = regexp.MustCompile(`--resume (\S+?),? `)

// What stays unknown is called so, not "not written", and the last line says how to
// go on: the same request under the same key, so that it is there once whichever of
// the two it was.
func TestProduceResumesWhatStaysUnknown(t *testing.T) {
	const in = "a\n\nb\nc\nd\ne\n"
	for _, first := range []func(keep) answer{forgetful, func(keep) answer { return codeAnswer(api.CodeUnknownOutcome, "no broker told") }} {
		s := &keeping{answers: append([]func(keep) answer{nil}, slices.Repeat([]func(keep) answer{first}, 40)...)}
		r := produceTo(t.Context(), t, s, in, "--batch", "2", "--patience", "0s")
		last := r.err[strings.LastIndex(strings.TrimSuffix(r.err, "\n"), "\n")+1:]
		if r.code != exitFailed || !strings.Contains(r.err, "lines 4 to 5: unknown whether written: unknown_outcome: no broker told") || strings.Contains(r.err, ": not written") {
			t.Errorf("%+v", r)
		}
		found := resumes.FindStringSubmatch(last)
		if found == nil || !strings.HasPrefix(found[1], "4-5/") {
			t.Fatalf("the last line names no lines to go on with: %q", last)
		}
		s.answers = nil
		// Another --batch: the request that is repeated is the same all the same.
		r = produceTo(t.Context(), t, s, in, "--batch", "10", "--resume", found[1])
		if want := []string{"a", "b", "c", "d", "e"}; r.code != exitOK || !slices.Equal(s.log, want) {
			t.Errorf("written %q after %+v", s.log, r)
		}
	}
}

// A refusal that comes after an attempt of which nobody knows is no proof that
// nothing is written.
func TestProduceStaysInDoubt(t *testing.T) {
	refuse := func(keep) answer { return codeAnswer(api.CodeIdempotencyConflict, "another request") }
	s := &keeping{answers: append(slices.Repeat([]func(keep) answer{forgetful}, 4), refuse)}
	r := produceTo(t.Context(), t, s, "a\n")
	if r.code != exitFailed || !strings.Contains(r.err, "line 1: unknown whether written") {
		t.Errorf("%+v", r)
	}
}

func TestProduceOnce(t *testing.T) {
	s := &keeping{answers: []func(keep) answer{nil, forgetful}}
	r := produceTo(t.Context(), t, s, "a\nb\nc\n", "--batch", "1", "--once")
	if r.code != exitFailed || !slices.Equal(s.keys, []string{"", ""}) || !strings.Contains(r.err, "line 2: unknown whether written") || !strings.Contains(r.err, "look whether line 2 is there; the same command goes on behind with --resume 3") {
		t.Errorf("keys %q, %+v", s.keys, r)
	}
}

// Of a batch some lines may be written, some not, and some unknown.
func TestProduceTellsTheThreeApart(t *testing.T) {
	mixed := func(k keep) answer {
		results := make([]api.BatchResult, len(k.lines))
		results[1].Error = api.NewError(api.CodeMessageTooLarge, "too large")
		results[2].Error = api.NewError(api.CodeUnknownOutcome, "no broker told")
		results[3].Error = results[2].Error
		return answer{http.StatusMultiStatus, api.BatchPublished{Written: len(k.lines) - 3, Failed: 3, Results: results}}
	}
	s := &keeping{answers: slices.Repeat([]func(keep) answer{mixed}, 9)}
	r := produceTo(t.Context(), t, s, "a\nb\nc\nd\ne\n", "--patience", "0s")
	for _, want := range []string{"2 messages written to t\nline 2: not written: message_too_large", "\nlines 3 to 4: unknown whether written: unknown_outcome", "--resume 1-5/"} {
		if r.code != exitFailed || !strings.Contains(r.err, want) {
			t.Errorf("no %q in %+v", want, r)
		}
	}
	// What may be taken later is repeated, and of the whole request only that.
	later := func(k keep) answer {
		results := make([]api.BatchResult, len(k.lines))
		results[1].Error = api.NewError(api.CodeBrokersUnavailable, "away")
		return answer{http.StatusMultiStatus, api.BatchPublished{Written: 1, Failed: 1, Results: results}}
	}
	s = &keeping{answers: []func(keep) answer{later, later}}
	if r := produceTo(t.Context(), t, s, "a\nb\n"); r.code != exitOK || !strings.Contains(r.err, "2 messages written") || len(s.keys) != 3 || s.keys[0] != s.keys[2] {
		t.Errorf("keys %q, %+v", s.keys, r)
	}
}

// A signal in the middle waits for the answer to what is under way, and says from
// where the rest goes on.
func TestProduceIsStoppedInTheMiddle(t *testing.T) {
	ctx, stop := context.WithCancel(t.Context())
	s := &keeping{}
	s.answers = []func(keep) answer{nil, func(k keep) answer {
		stop()
		time.Sleep(50 * time.Millisecond) // the command has seen it when the answer comes
		k.write()
		return answer{200, api.BatchPublished{Written: 1, Results: make([]api.BatchResult, 1)}}
	}}
	r := produceTo(ctx, t, s, "a\nb\nc\nd\n", "--batch", "1")
	if r.code != exitOK || !slices.Equal(s.log, []string{"a", "b"}) || !strings.HasSuffix(r.err, "2 messages written to t\nstopped; the same command goes on with --resume 3\n") {
		t.Errorf("written %q, %+v", s.log, r)
	}
	// Without an answer it is unknown, and not "not written".
	ctx, stop = context.WithCancel(t.Context())
	s = &keeping{answers: []func(keep) answer{nil, func(k keep) answer { stop(); time.Sleep(50 * time.Millisecond); return lost(k) }, lost, lost, lost, lost}}
	r = produceTo(ctx, t, s, "a\nb\nc\nd\n", "--batch", "1")
	if r.code != exitFailed || !strings.Contains(r.err, "line 2: unknown whether written") || !strings.Contains(r.err, "--resume 2-2/") {
		t.Errorf("%+v", r)
	}
}

// A carriage return is the message's: only the newline is taken off.
func TestProduceLeavesCarriageReturns(t *testing.T) {
	s, r := produce(t, "a\r\n\n\r\nb\r")
	if got := slices.Concat(s.lines...); r.code != exitOK || !slices.Equal(got, []string{"a\r", "\r", "b\r"}) {
		t.Errorf("%+v: sent %q", r, got)
	}
	s, r = produce(t, "{}\r\n \r\n{}\n", "--json")
	if got := slices.Concat(s.lines...); r.code != exitOK || len(got) != 2 {
		t.Errorf("%+v: sent %q", r, got)
	}
}

func TestProduceKeySeparator(t *testing.T) {
	s, r := produce(t, "k\tv\tw\nnone\n\tv\nk\t\n", "--key-separator", `\t`)
	want := []string{`{"value":"v\tw","key":"k"}`, `{"value":"none"}`, `{"value":"v","key":""}`, `{"value":"","key":"k"}`}
	if got := slices.Concat(s.lines...); r.code != exitOK || !slices.Equal(got, want) {
		t.Errorf("%+v: sent\n%q, want\n%q", r, got, want)
	}
}

// With --whole the input is one message, newlines, carriage returns, zeros and all.
func TestProduceWhole(t *testing.T) {
	const in = "a\r\n\nb\x00\xff\n"
	var path, query, body, key string
	r := produceTo(t.Context(), t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		b, _ := io.ReadAll(r.Body)
		path, query, body, key = r.URL.Path, r.URL.RawQuery, string(b), r.Header.Get(api.HeaderIdempotencyKey)
		_ = json.NewEncoder(w).Encode(api.Published{Topic: "t", Partition: 2, Offset: 7})
	}), in, "--whole", "--key", "k", "--print")
	if r.code != exitOK || path != "/topics/t" || query != "key=k" || body != in || key == "" || r.out != "t/2/7\n" {
		t.Errorf("%+v: %s?%s %q under %q", r, path, query, body, key)
	}
}

func TestResumption(t *testing.T) {
	for _, s := range []string{"1", "501", "501-750/K", "5-5/a/b"} {
		r, err := readResumption(s)
		if err != nil || r.String() != s {
			t.Errorf("%q is %+v, %v", s, r, err)
		}
	}
	for _, s := range []string{"0", "-1", "x", "5-", "5-7", "5/k", "7-5/k", "5-7/", "/k"} {
		if r, err := readResumption(s); err == nil {
			t.Errorf("%q is taken as %+v", s, r)
		}
	}
	for in, want := range map[string]string{":": ":", `\t`: "\t", `\x00`: "\x00", `"`: `"`, `\`: `\`, `::`: "::"} {
		if got := unescaped(in); got != want {
			t.Errorf("%q is %q, want %q", in, got, want)
		}
	}
}
