package publish

import (
	"context"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// Who was answered that the outcome is not known is told it when it is.
func TestLandedTellsTheFateThatCameTooLate(t *testing.T) {
	r := newRig(t, nil)
	var fates []api.BatchResult
	calls := 0
	o := Options{Landed: func(f []api.BatchResult) { calls, fates = calls+1, f }}
	if _, err := r.Publish(t.Context(), "one", Message{}, o); err != nil || calls != 1 || fates != nil {
		t.Fatalf("%v; Landed was called %d times with %v, want once with nil", err, calls, fates)
	}
	if _, err := r.Publish(t.Context(), "nope", Message{}, o); err == nil || calls != 2 || fates != nil {
		t.Fatalf("%v; Landed was called %d times with %v, want once more with nil", err, calls, fates)
	}
	hold := make(chan struct{})
	r.cluster.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		<-hold
		return nil, nil, false
	})
	landed := make(chan []api.BatchResult, 1)
	o = Options{Timeout: 100 * time.Millisecond, Landed: func(f []api.BatchResult) { landed <- f }}
	if _, err := r.Publish(t.Context(), "one", Message{}, o); codeOf(err) != api.CodeUnknownOutcome {
		t.Fatalf("got %v, want %s", err, api.CodeUnknownOutcome)
	}
	select {
	case f := <-landed:
		t.Fatalf("it landed with %v while the broker sleeps", f)
	default:
	}
	close(hold)
	if f := <-landed; len(f) != 1 || f[0].Error != nil || f[0].Offset != 1 {
		t.Errorf("landed with %+v, want offset 1", f)
	}
}

// A publisher that closes tells all who wait.
func TestCloseTellsWhoeverWaits(t *testing.T) {
	r := newRig(t, nil)
	if _, err := r.Publish(t.Context(), "one", Message{}, Options{}); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{})
	r.cluster.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		<-hold
		return nil, nil, false
	})
	defer close(hold)
	var fates []api.BatchResult
	o := Options{Timeout: 100 * time.Millisecond, Landed: func(f []api.BatchResult) { fates = f }}
	if _, err := r.Publish(t.Context(), "one", Message{}, o); codeOf(err) != api.CodeUnknownOutcome {
		t.Fatalf("got %v, want %s", err, api.CodeUnknownOutcome)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	r.Close(ctx)
	if len(fates) != 1 || fates[0].Error == nil || fates[0].Error.Code != api.CodeUnknownOutcome {
		t.Errorf("told %+v, want %s", fates, api.CodeUnknownOutcome)
	}
}
