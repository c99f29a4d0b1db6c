package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

// trips answers each request of a client with the next of its answers, the last
// one again and again.
type trips []func() (*http.Response, error)

func (t *trips) RoundTrip(*http.Request) (*http.Response, error) {
	next := (*t)[0]
	if len(*t) > 1 {
		*t = (*t)[1:]
	}
	return next()
}

func coded(code api.Code) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		w := httptest.NewRecorder()
		answer(w, code.Status(), api.ErrorBody{Error: api.NewError(code, "said")})
		return w.Result(), nil
	}
}

func broken(err error) func() (*http.Response, error) {
	return func() (*http.Response, error) { return nil, err }
}

func foreign(status int) func() (*http.Response, error) {
	return func() (*http.Response, error) {
		w := httptest.NewRecorder()
		w.WriteHeader(status)
		return w.Result(), nil
	}
}

// An error of a publish is either of a message that is certainly not written or of
// one of which that is not known. The error codes alone did not tell: a connection
// that broke has none, and a repeat that was refused said "not written" of a message
// that the attempt before it may have written.
func TestEveryPublishErrorIsNotWrittenOrUnknown(t *testing.T) {
	refused := &net.OpError{Op: "dial", Err: errors.New("connection refused")}
	cut := &net.OpError{Op: "read", Err: errors.New("connection reset")}
	for name, c := range map[string]struct {
		answers trips
		want    api.Outcome
	}{
		"refused":                        {trips{coded(api.CodeTopicNotFound)}, api.NotWritten},
		"brokers away":                   {trips{coded(api.CodeBrokersUnavailable)}, api.NotWritten},
		"unknown":                        {trips{coded(api.CodeUnknownOutcome)}, api.Unknown},
		"a fault":                        {trips{coded(api.CodeInternal)}, api.Unknown},
		"a code of a later version":      {trips{coded("later")}, api.Unknown},
		"nobody listens":                 {trips{broken(refused)}, api.NotWritten},
		"the connection broke":           {trips{broken(cut)}, api.Unknown},
		"a proxy's answer":               {trips{foreign(502)}, api.Unknown},
		"unknown, then nobody listens":   {trips{coded(api.CodeUnknownOutcome), broken(refused)}, api.Unknown},
		"unknown, then refused":          {trips{coded(api.CodeUnknownOutcome), coded(api.CodeRateLimited)}, api.Unknown},
		"broken, then refused":           {trips{broken(cut), coded(api.CodeDraining)}, api.Unknown},
		"nobody listened, then refused":  {trips{broken(refused), coded(api.CodeDraining)}, api.NotWritten},
		"brokers away, then a bad topic": {trips{coded(api.CodeBrokersUnavailable), coded(api.CodeTopicNotFound)}, api.NotWritten},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				client, err := sdk.New("", sdk.WithHTTPClient(&http.Client{Transport: &c.answers}), sdk.WithRetry(sdk.Retry{Attempts: 3, Longest: time.Second}))
				if err != nil {
					t.Fatal(err)
				}
				_, err = client.Publish(context.Background(), "t", sdk.Message{Value: []byte("v")}, sdk.IdempotencyKey("k"))
				if sdk.OutcomeOf(err) != c.want || errors.Is(err, sdk.ErrNotWritten) != (c.want == api.NotWritten) || errors.Is(err, sdk.ErrUnknown) != (c.want == api.Unknown) {
					t.Errorf("%v is %q, want %q", err, sdk.OutcomeOf(err), c.want)
				}
				if wrapped := fmt.Errorf("orders: %w", err); sdk.OutcomeOf(wrapped) != c.want {
					t.Errorf("wrapped it is %q, want %q", sdk.OutcomeOf(wrapped), c.want)
				}
				if _, ok := errors.AsType[*sdk.PublishError](err); !ok {
					if _, ok := errors.AsType[*api.Error](err); !ok {
						t.Errorf("%T is neither type", err)
					}
				}
			})
		})
	}
	result := api.BatchResult{Error: api.NewError(api.CodeUnknownOutcome, "")}
	if !errors.Is(result.Error, sdk.ErrUnknown) || errors.Is(result.Error, sdk.ErrNotWritten) {
		t.Error("a result of a batch says nothing of its outcome")
	}
}

// The results of a batch are those of the last answer alone: an error that an
// attempt before had met stayed beside the offset of the repeat.
func TestResultsOfARepeatAreItsOwn(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		said := func(status int, b api.BatchPublished) func() (*http.Response, error) {
			return func() (*http.Response, error) {
				w := httptest.NewRecorder()
				answer(w, status, b)
				return w.Result(), nil
			}
		}
		answers := trips{
			said(504, api.BatchPublished{Failed: 2, Results: []api.BatchResult{
				{Offset: -1, Error: api.NewError(api.CodeUnknownOutcome, "a")}, {Offset: -1, Error: api.NewError(api.CodeUnknownOutcome, "b")}}}),
			said(200, api.BatchPublished{Written: 2, Results: []api.BatchResult{{Offset: 5}, {Offset: 6}}}),
		}
		client, err := sdk.New("", sdk.WithHTTPClient(&http.Client{Transport: &answers}), sdk.WithRetry(sdk.Retry{Attempts: 3, Longest: time.Second}))
		if err != nil {
			t.Fatal(err)
		}
		got, err := client.PublishLines(context.Background(), "t", []byte("a\nb\n"), sdk.IdempotencyKey("k"))
		if err != nil || got.Failed != 0 || got.Written != 2 || got.Results[0].Error != nil || got.Results[1].Error != nil || got.Results[1].Offset != 6 {
			t.Errorf("%+v, %v: %v", got, err, got.Results[0].Error)
		}
	})
}
