package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// deadSidecar answers as a sidecar with three letters, two an answer.
func deadSidecar(t *testing.T) (address string, asked *[]api.RedriveRequest) {
	t.Helper()
	asked = new([]api.RedriveRequest)
	letter := func(n int) api.DeadLetter {
		value := strings.Repeat("long ", 40)
		return api.DeadLetter{ID: fmt.Sprint("g/t/0/", n), Reason: "max_attempts", Group: "g", Topic: "t", Offset: int64(n), Until: int64(n) + 1, Attempts: 3, Error: "no\nstock", Message: api.Message{Value: &value}}
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /groups/g/topics/t/dead", func(w http.ResponseWriter, r *http.Request) {
		answer := api.DeadLetters{Topic: "dead.g", Letters: []api.DeadLetter{letter(1), letter(2)}, Next: "0.3-4"}
		if r.URL.Query().Get("after") != "" {
			answer.Letters, answer.Next = answer.Letters[:1], ""
			answer.Letters[0].Redriven, answer.Letters[0].Until = true, 9
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	mux.HandleFunc("POST /groups/g/topics/t/dead/redrive", func(w http.ResponseWriter, r *http.Request) {
		var req api.RedriveRequest
		b, _ := io.ReadAll(r.Body)
		_ = json.Unmarshal(b, &req)
		*asked = append(*asked, req)
		answer := api.Redriven{Topic: "dead.g", Redriven: 2, Next: "0.3-4"}
		if len(req.IDs) > 0 {
			answer.NotFound = []string{"a", "b"}
		}
		switch {
		case req.Reason == "oversized":
			w.WriteHeader(http.StatusMultiStatus)
			answer.Error = api.NewError(api.CodeBrokersUnavailable, "away")
		case req.After != "":
			answer.Redriven, answer.Next = 1, ""
			if len(req.IDs) > 0 {
				answer.NotFound = []string{"b", "c"}
			}
			answer.Kept = []api.KeptLetter{{ID: "g/t/0/7", Error: api.NewError(api.CodeBadRecord, "nobody can read it")}}
		}
		_ = json.NewEncoder(w).Encode(answer)
	})
	s := httptest.NewServer(mux)
	t.Cleanup(func() { s.Close(); http.DefaultClient.CloseIdleConnections() })
	return s.URL, asked
}

func TestGroupDead(t *testing.T) {
	address, _ := deadSidecar(t)
	r := command(t.Context(), "", "group", "dead", "g", "t", "--sidecar", address)
	if r.code != 0 || strings.Count(r.out, "no stock") != 3 || !strings.Contains(r.out, "t/0/1-8") || !strings.Contains(r.out, "max_attempts (redriven)") || strings.Contains(r.out, "and more") {
		t.Errorf("%+v", r)
	}
	r = command(t.Context(), "", "group", "dead", "g", "t", "--sidecar", address, "--max", "2")
	if r.code != 0 || !strings.Contains(r.out, "and more") {
		t.Errorf("%+v", r)
	}
	if r = command(t.Context(), "", "group", "dead", "g", "t", "--sidecar", address, "--json"); r.code != 0 || strings.Count(r.out, `"max_attempts"`) != 3 {
		t.Errorf("%+v", r)
	}
}

func TestGroupRedrive(t *testing.T) {
	address, asked := deadSidecar(t)
	r := command(t.Context(), "", "group", "redrive", "g", "t", "--sidecar", address)
	if r.code != 0 || !strings.Contains(r.out, "brought back 3") || !strings.Contains(r.out, "nobody can read it") {
		t.Errorf("%+v", r)
	}
	if len(*asked) != 2 || (*asked)[1].After != "0.3-4" {
		t.Errorf("asked %+v", *asked)
	}
	*asked = nil
	r = command(t.Context(), "", "group", "redrive", "g", "t", "--sidecar", address, "--max", "2", "--id", "a", "--id", "b", "--discard")
	if r.code != 0 || !strings.Contains(r.out, "discarded 2") || len(*asked) != 1 || (*asked)[0].Max != 2 || len((*asked)[0].IDs) != 2 || !(*asked)[0].Discard {
		t.Errorf("%+v; asked %+v", r, *asked)
	}
	r = command(t.Context(), "", "group", "redrive", "g", "t", "--sidecar", address, "--id", "a", "--id", "b", "--id", "c")
	if r.code != 0 || !strings.Contains(r.out, "found no letter of 1 of the ids: b\n") {
		t.Errorf("%+v", r)
	}
	// What was done before an error is told.
	r = command(t.Context(), "", "group", "redrive", "g", "t", "--sidecar", address, "--reason", "oversized")
	if r.code == 0 || !strings.Contains(r.out, "brought back 2") || !strings.Contains(r.err, "away") {
		t.Errorf("%+v", r)
	}
}
