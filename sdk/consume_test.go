package sdk_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/sdk"
	"sidestream/sdk/api"
)

func TestConsumeHandlesInOrderAndAcknowledges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.values["t"] = []string{"a", "b", "c"}
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		err := newClient(t, f).Consume(ctx, "g", "t", sdk.ConsumeOptions{}, func(_ context.Context, m api.Message) error {
			if got = append(got, *m.Value); len(got) == 3 {
				time.AfterFunc(50*time.Second, cancel) // in the third pull that finds nothing
			}
			return nil
		})
		if err != nil || !slices.Equal(got, []string{"a", "b", "c"}) || f.low["t"] != 3 {
			t.Errorf("got %v, acknowledged below %d, %v", got, f.low["t"], err)
		}
		if n := f.called("/pull"); n != 5 {
			t.Errorf("%d pulls, want one with messages, three that waited, and a last one", n)
		}
	})
}

// What follows a failed message in its partition is not handled before it.
func TestFailedMessageComesAgainBeforeWhatFollows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.values["t"] = []string{"a", "b", "c"}
		ctx, cancel := context.WithCancel(t.Context())
		var got []string
		var heard []error
		err := newClient(t, f).Consume(ctx, "g", "t", sdk.ConsumeOptions{OnError: func(err error) { heard = append(heard, err) }},
			func(_ context.Context, m api.Message) error {
				got = append(got, *m.Value)
				if *m.Value == "b" && len(got) == 2 {
					return errors.New("not today")
				}
				if *m.Value == "c" {
					cancel()
				}
				return nil
			})
		if err != nil || !slices.Equal(got, []string{"a", "b", "b", "c"}) || f.low["t"] != 3 {
			t.Errorf("got %v, acknowledged below %d, %v", got, f.low["t"], err)
		}
		if len(heard) != 1 || f.called("/nack") != 2 {
			t.Errorf("heard %v, %d nacks", heard, f.called("/nack"))
		}
	})
}

func TestStopAcknowledgesWhatWasHandledAndGivesBackTheRest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.values["t"] = []string{"a", "b", "c"}
		ctx, cancel := context.WithCancel(t.Context())
		err := newClient(t, f).Consume(ctx, "g", "t", sdk.ConsumeOptions{}, func(context.Context, api.Message) error {
			cancel()
			return nil
		})
		// The last pull may take one once more, and gives it back.
		if n := f.called("/nack"); err != nil || f.low["t"] != 1 || f.out["t"] || n < 1 || n > 2 {
			t.Errorf("acknowledged below %d, %d nacks, %v", f.low["t"], f.called("/nack"), err)
		}
	})
}

func TestLeaseIsExtendedWhileTheHandlerWorks(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		f.values["t"] = []string{"a"}
		ctx, cancel := context.WithCancel(t.Context())
		err := newClient(t, f).Consume(ctx, "g", "t", sdk.ConsumeOptions{}, func(context.Context, api.Message) error {
			time.Sleep(65 * time.Second) // the lease is 30 s: extended after 10, 20, … 60
			cancel()
			return nil
		})
		if err != nil || f.called("/extend") != 6 || f.low["t"] != 1 {
			t.Errorf("%d extends, acknowledged below %d, %v", f.called("/extend"), f.low["t"], err)
		}
	})
}

func TestConsumeSurvivesWhatPassesAndEndsAtWhatDoesNot(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFake()
		reason := api.ReasonRebalancing
		f.fail = []func(http.ResponseWriter){
			refuse(api.CodeBrokersUnavailable, "3"),
			refuse(api.CodeInternal, ""),
			func(w http.ResponseWriter) { answer(w, 200, api.Pulled{Reason: &reason}) },
			refuse(api.CodeTopicNotFound, ""),
		}
		var heard []string
		start := time.Now()
		err := newClient(t, f).Consume(t.Context(), "g", "t", sdk.ConsumeOptions{OnError: func(err error) {
			e, _ := errors.AsType[*api.Error](err)
			heard = append(heard, string(e.Code))
		}}, func(context.Context, api.Message) error { return fmt.Errorf("never called") })
		if !errors.Is(err, &api.Error{Code: api.CodeTopicNotFound}) {
			t.Errorf("ended with %v", err)
		}
		if !slices.Equal(heard, []string{"brokers_unavailable", "internal"}) || time.Since(start) != 3600*time.Millisecond {
			t.Errorf("heard %v in %v, want 3 s as asked, then 200 and 400 ms", heard, time.Since(start))
		}
	})
}
