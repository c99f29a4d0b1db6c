package main

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sidestream/sdk"
)

// consume --until-end once waited for ever where a partition stood still at
// records that nobody can read: no wait brings these to an end.
func TestConsumeUntilEndEndsAtWhatNobodyCanRead(t *testing.T) {
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"messages":[],"reason":"corrupt_record"}`)
	}))
	defer s.Close()
	c, err := sdk.New(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	err = consume(t.Context(), c, "orders", consumeOptions{group: "g", untilEnd: true}, io.Discard, io.Discard)
	if err == nil || !strings.Contains(err.Error(), "orders cannot be reached") {
		t.Errorf("got %v, want an error that says why the end cannot be reached", err)
	}
}
