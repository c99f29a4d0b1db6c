package discovery_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"sidestream/discovery"
)

func newMemory(t *testing.T) *discovery.Memory {
	t.Helper()
	m, err := discovery.NewMemory(discovery.MemoryOptions{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { m.Close() })
	return m
}

func TestFollowDeliversEachChangeAndSurvivesOutageAndWipe(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		m := newMemory(t)
		ctx, cancel := context.WithCancel(t.Context())
		set := func(key, value string) {
			t.Helper()
			if _, err := m.Commit(ctx, discovery.Set(key, []byte(value))); err != nil {
				t.Fatal(err)
			}
		}
		var calls [][]discovery.Entry
		failures := 0
		ended := make(chan error)
		go func() {
			ended <- discovery.Follow(ctx, m, "a/", func(es []discovery.Entry) { calls = append(calls, es) },
				discovery.OnError(func(err error) {
					if !errors.Is(err, discovery.ErrUnavailable) {
						t.Errorf("error %v, want ErrUnavailable", err)
					}
					failures++
				}))
		}()
		expect := func(n int, values ...string) {
			t.Helper()
			synctest.Wait()
			if len(calls) != n {
				t.Fatalf("%d calls, want %d", len(calls), n)
			}
			got := calls[n-1]
			if len(got) != len(values) {
				t.Fatalf("call %d has %d entries, want %d", n, len(got), len(values))
			}
			for i, v := range values {
				if string(got[i].Value) != v {
					t.Fatalf("call %d, entry %d is %q, want %q", n, i, got[i].Value, v)
				}
			}
		}
		expect(1)
		set("a/1", "x")
		expect(2, "x")
		set("b/1", "elsewhere")
		set("a/1", "x") // identical: no change
		expect(2, "x")
		time.Sleep(5 * discovery.MaxWait) // re-lists without news
		expect(2, "x")

		m.SetDown(true)
		time.Sleep(time.Minute)
		synctest.Wait()
		if failures < 5 {
			t.Fatalf("%d failures were reported in a minute of outage", failures)
		}
		m.SetDown(false)
		set("a/2", "y")
		time.Sleep(6 * time.Second)
		expect(3, "x", "y")

		m.Wipe()
		expect(4)
		set("a/1", "after")
		expect(5, "after")

		cancel()
		if err := <-ended; !errors.Is(err, context.Canceled) {
			t.Fatalf("Follow ended with %v", err)
		}
	})
}
