package sidecar

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"sidestream/sdk/api"
)

func TestRateLimitIs429(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Limits.MaxWait = 0
		c.Limits.Topics = map[string]string{"one": "1"}
	})
	into[api.Published](t, r.do("POST", "/topics/one", "x"), 200)
	if a := r.do("POST", "/topics/one", "x"); a.status != 429 || a.code() != api.CodeRateLimited || a.header.Get("Retry-After") != "1" {
		t.Errorf("got %s %v", a, a.header)
	}
	into[api.Published](t, r.do("POST", "/topics/t", "x"), 200)
	if a := r.do("POST", "/topics/one/batch?lines=1", strings.Repeat("x\n", 11)); a.status != 413 || a.code() != api.CodeRequestTooLarge {
		t.Errorf("a batch that no wait would let pass: %s", a)
	}
	if a := r.do("GET", "/status", ""); !strings.Contains(a.compact(), `"limits":{"max_wait":"0s","topics":{"one":"1"}}`) {
		t.Errorf("status: %s", a)
	}
	if a := r.do("GET", "/metrics", ""); !strings.Contains(string(a.body), `sidestream_limit_refused_messages_total{name="one",scope="topic",unit="messages"} 12`) {
		t.Error("the metrics do not count what was refused")
	}
}

// What is refused and sends nothing takes nothing of any rate: the next message
// passes.
func TestRefusedPostsTakeNothingOfTheRates(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Limits.BytesPerSecond = 100_000
		c.Limits.Topics = map[string]string{"one": "5"}
	})
	for _, c := range []struct {
		path, body string
		status     int
	}{
		{"/topics/one", strings.Repeat("x", 1<<20+1), 413},
		{"/topics/one/batch", `[{"value":"` + strings.Repeat("x", 1<<20+1) + `"}]`, 413},
		{"/topics/one?partition=99", strings.Repeat("x", 900_000), 404},
		{"/topics/one/batch", `[{"value":"` + strings.Repeat("x", 900_000) + `"},{"value":"x","partition":99}]`, 422},
		{"/topics/nowhere", strings.Repeat("x", 900_000), 404},
	} {
		if a := r.do("POST", c.path, c.body); a.status != c.status {
			t.Fatalf("%s: %s, want %d", c.path, a, c.status)
		}
		into[api.Published](t, r.do("POST", "/topics/one", "x"), 200)
	}
}

func TestCallersAreLimitedByTheirHeader(t *testing.T) {
	r := newRig(t, func(c *Config) {
		c.Limits.MaxWait = 0
		c.Limits.Callers = map[string]string{"billing": "1", "shop": "10B"}
	})
	as := func(name string) string { return api.HeaderCaller + ": " + name }
	into[api.Published](t, r.do("POST", "/topics/one", "x", as("billing")), 200)
	if a := r.do("POST", "/topics/t", "x", as("billing")); a.status != 429 {
		t.Errorf("got %s", a)
	}
	into[api.Published](t, r.do("POST", "/topics/one", "12345678901234567890", as("shop")), 200)
	if a := r.do("POST", "/topics/one", "x", as("shop")); a.status != 429 || a.header.Get("Retry-After") != "2" {
		t.Errorf("got %s %v", a, a.header)
	}
	into[api.Published](t, r.do("POST", "/topics/one", "x", as("other")), 200)
	into[api.Published](t, r.do("POST", "/topics/one", "x"), 200)
	for _, headers := range [][]string{{as("no good")}, {as("")}, {as("a"), as("b")}, {as(strings.Repeat("x", 129))}} {
		if a := r.do("POST", "/topics/one", "x", headers...); a.status != 400 || !strings.Contains(string(a.body), "Sidestream-Caller") {
			t.Errorf("%q: got %s", headers, a)
		}
	}
}

// unixClient speaks to a UNIX socket.
func unixClient(t *testing.T, path string) *http.Client {
	client := &http.Client{Transport: &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{}).DialContext(ctx, "unix", path)
	}}}
	t.Cleanup(client.CloseIdleConnections)
	return client
}

func TestCallersAreKnownOnTheUnixSocket(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	uid := fmt.Sprint(os.Getuid())
	for name, c := range map[string]struct {
		callers, limits map[string]string
		headers         []string // of three requests
		want            []int
	}{
		"named by its user":  {map[string]string{uid: "shop"}, map[string]string{"shop": "1"}, []string{"", "", "shop"}, []int{200, 429, 429}},
		"cannot say another": {map[string]string{uid: "shop"}, map[string]string{"shop": "1"}, []string{"billing", "shop", "billing"}, []int{403, 200, 403}},
		"by its number":      {nil, map[string]string{"uid-" + uid: "1"}, []string{"", "", "x"}, []int{200, 429, 200}},
		"by what it says":    {nil, map[string]string{"x": "1"}, []string{"x", "x", ""}, []int{200, 429, 200}},
		"user not here":      {map[string]string{"nobody-of-that-name": "shop"}, map[string]string{"shop": "1"}, []string{"", "", ""}, []int{200, 200, 200}},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, func(cfg *Config) {
				cfg.ListenUnix, cfg.Callers = path, c.callers
				cfg.Limits.MaxWait, cfg.Limits.Callers = 0, c.limits
			})
			client := unixClient(t, path)
			for i, want := range c.want {
				req, err := http.NewRequest("POST", "http://anything/topics/one", strings.NewReader("x"))
				if err != nil {
					t.Fatal(err)
				}
				if c.headers[i] != "" {
					req.Header.Set(api.HeaderCaller, c.headers[i])
				}
				resp, err := client.Do(req)
				if err != nil {
					t.Fatal(err)
				}
				body, _ := io.ReadAll(resp.Body)
				_ = resp.Body.Close()
				if resp.StatusCode != want {
					t.Errorf("request %d: got %d %s, want %d", i, resp.StatusCode, body, want)
				}
			}
			client.CloseIdleConnections()
			if err := r.stop(); err != nil {
				t.Fatal(err)
			}
		})
	}
}

// The promise on a real clock, through HTTP: not more than 2 % above the rate
// over some seconds, and another topic goes its own way. How far below it stays
// is the machine's matter; what the limit itself gives is tested in its package.
func TestRateHoldsOnTheRealClock(t *testing.T) {
	r := newRig(t, func(c *Config) { c.Limits.Topics = map[string]string{"one": "100", "t": "20000"} })
	const length = 2 * time.Second
	var counts [2]atomic.Int64
	begun := time.Now()
	var wg sync.WaitGroup
	post := func(i int, path, body string, n int64) {
		wg.Go(func() {
			for time.Since(begun) < length {
				req, _ := http.NewRequest("POST", r.base+path, strings.NewReader(body))
				resp, err := http.DefaultClient.Do(req)
				if err != nil {
					t.Error(err)
					return
				}
				_ = resp.Body.Close()
				if resp.StatusCode == 200 && time.Since(begun) < length {
					counts[i].Add(n)
				}
			}
		})
	}
	for range 4 {
		post(0, "/topics/one", "x", 1)
	}
	for range 2 {
		post(1, "/topics/t/batch?lines=1", strings.Repeat("x\n", 100), 100)
	}
	wg.Wait()
	for i, rate := range []int64{100, 20_000} {
		got, most := counts[i].Load(), int64(length.Seconds()*float64(rate))*102/100+rate/50+100
		t.Logf("%d messages in %s at %d/s", got, length, rate)
		if got > most || got == 0 {
			t.Errorf("%d messages in %s at %d/s", got, length, rate)
		}
	}
}
