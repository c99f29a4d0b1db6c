package publish

import (
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// What is on its way is ahead until it has landed; what enters later is not waited
// for.
func TestAheadIsOnItsWayUntilItHasLanded(t *testing.T) {
	r := newRig(t, nil)
	if _, err := r.Publish(t.Context(), "one", Message{}, Options{}); err != nil {
		t.Fatal(err)
	}
	hold := make(chan struct{}, 3)
	r.cluster.ControlKey(kmsg.Produce.Int16(), func(kmsg.Request) (kmsg.Response, error, bool) {
		r.cluster.KeepControl()
		<-hold
		return nil, nil, false
	})
	defer close(hold)
	short := Options{Timeout: 100 * time.Millisecond}
	if _, err := r.Publish(t.Context(), "one", Message{}, short); codeOf(err) != api.CodeUnknownOutcome {
		t.Fatalf("got %v, want %s", err, api.CodeUnknownOutcome)
	}
	ahead := r.Ahead("one", "", 0)
	if len(ahead) != 1 {
		t.Fatalf("%d wait for the message that is on its way, want 1", len(ahead))
	}
	if _, err := r.Publish(t.Context(), "one", Message{}, short); codeOf(err) != api.CodeBrokersUnavailable {
		t.Fatalf("behind it: got %v, want %s", err, api.CodeBrokersUnavailable)
	}
	select {
	case <-ahead[0]:
		t.Fatal("it is through while its broker sleeps")
	default:
	}
	later := make(chan error, 1)
	go func() {
		_, err := r.Publish(t.Context(), "one", Message{}, Options{})
		later <- err
	}()
	hold <- struct{}{} // one request: the later one is held
	<-ahead[0]
	hold <- struct{}{}
	if err := <-later; err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(10 * time.Second); len(r.Ahead("one", "", 0)) > 0; time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("all has landed, and still something is ahead")
		}
	}
	if n := len(r.Ahead("t", "", 3)) + len(r.Ahead("one", "another", 0)) + len(r.Ahead("none", "", 0)); n > 0 {
		t.Errorf("%d are ahead where nothing ever was", n)
	}
}
