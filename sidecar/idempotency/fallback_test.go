package idempotency

import (
	"testing"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// The brokers were away, and the spool's disk failed while it took their place: the
// message is in the spool all the same, and its repeat finds it there.
func TestWhatTheSpoolMayHaveIsAskedFor(t *testing.T) {
	r := newRig(t, nil)
	instead := func(_ *publish.Message, o *publish.Options) { o.MaySpool = true }
	r.world.next(lostSpooled)
	if _, _, err := r.post("k", instead); !isCode(err, api.CodeUnknownOutcome) {
		t.Fatalf("got %v, want %s", err, api.CodeUnknownOutcome)
	}
	if got, again, err := r.post("k", instead); err != nil || !again || got.SpoolID != "spool-0" {
		t.Errorf("%+v, replayed %v, %v; want what the spool has", got, again, err)
	}
}
