package compat

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// limitDownload is for all that one client needs, on a slow line.
const limitDownload = 5 * time.Minute

var workers = []*worker{confluentNew, confluentOld, kafkaPython, kafkaPythonOld, aiokafka, java39, java4}

func TestMain(m *testing.M) {
	code := m.Run()
	for _, w := range workers {
		w.stop(false)
	}
	os.Exit(code)
}

// present returns the clients that this machine can run; each of the others is
// a skipped subtest that tells what it misses.
func present[C interface{ Name() string }](t *testing.T, clients []C) []C {
	t.Helper()
	var found []C
	for _, c := range clients {
		w, ok := any(c).(*worker)
		if !ok {
			found = append(found, c)
			continue
		}
		ctx, cancel := context.WithTimeout(t.Context(), limitDownload)
		err := w.Prepare(ctx)
		cancel()
		switch {
		case errors.Is(err, errMissing):
			t.Run(w.Name(), func(t *testing.T) { leaveOut(t, err) })
		case err != nil:
			t.Errorf("%s: %v", w.Name(), err)
		default:
			found = append(found, c)
		}
	}
	return found
}

// leaveOut skips a test, and says so also where go test is not verbose.
func leaveOut(t *testing.T, err error) {
	t.Helper()
	fmt.Printf("left out: %s: %v\n", t.Name(), err)
	t.SkipNow()
}

// needJava skips a test where there is none, and downloads what a pom names.
func needJava(t *testing.T, pom string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limitDownload)
	defer cancel()
	_, err := jars(ctx, pom)
	if errors.Is(err, errMissing) {
		leaveOut(t, err)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// offered returns the request keys that the broker advertises.
func offered(ctx context.Context, t *testing.T, broker string) map[kmsg.Key]bool {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	answer, err := kmsg.NewPtrApiVersionsRequest().RequestWith(ctx, client)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[kmsg.Key]bool{}
	for _, k := range answer.ApiKeys {
		keys[kmsg.Key(k.ApiKey)] = true
	}
	return keys
}
