package pageviews

import (
	"context"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"

	"sidestream/sdk"
)

// The facts that the note beside the data states.
func TestData(t *testing.T) {
	lines, sum, ok := 0, int64(0), 0
	visitors := map[string]int{}
	for line := range Lines(Data) {
		v, err := Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		lines++
		sum += v.Bytes
		visitors[v.Visitor]++
		if v.Status == 200 {
			ok++
		}
	}
	busiest := 0
	for _, n := range visitors {
		busiest = max(busiest, n)
	}
	if lines != 9999 || sum != 2747282505 || len(visitors) != 1753 || busiest != 482 || ok != 9125 {
		t.Errorf("%d lines, %d bytes, %d visitors, busiest %d, %d with status 200", lines, sum, len(visitors), busiest, ok)
	}
}

func TestTop(t *testing.T) {
	got := Top(map[string]int{"/b": 2, "/a": 2, "/c": 5, "/d": 1}, 3)
	want := []Page{{"/c", 5}, {"/a", 2}, {"/b", 2}}
	if !slices.Equal(got, want) {
		t.Errorf("got %v, want %v", got, want)
	}
}

func TestPostTellsWhatWasNotWritten(t *testing.T) {
	requests := 0
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if q := r.URL.Query(); q.Get("key_field") != "visitor" || q.Get("lines") != "1" {
			t.Errorf("query %s", r.URL.RawQuery)
		}
		if requests++; requests == 1 {
			_, _ = w.Write([]byte(`{"written":500,"failed":0}`))
			return
		}
		w.WriteHeader(207)
		_, _ = w.Write([]byte(`{"written":1,"failed":1,"results":[{"offset":1},{"error":{"code":"message_too_large","message":"big"}}]}`))
	}))
	defer server.Close()
	client, err := sdk.New(server.URL)
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	written, err := Post(context.Background(), client, "t", []byte(strings.Repeat("{}\n\n", 502)))
	if written != 501 || err == nil || !strings.Contains(err.Error(), "1 of 2 views were not written, the first because: message_too_large: big") {
		t.Errorf("written %d, %v", written, err)
	}
}
