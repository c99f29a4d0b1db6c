package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"net/http"
	"slices"
	"time"

	"sidestream/sdk/api"
)

// stream sends a batch line by line, so that faults meet it on its way, while it
// reads the answers as they come. Of lines without an answer nothing is known.
func (w *publisher) stream(what string, r request, count int) []outcome {
	outcomes := slices.Repeat([]outcome{{why: "no answer"}}, count)
	ctx, cancel := context.WithTimeout(context.Background(), streamLimit)
	defer cancel()
	body, in := io.Pipe()
	defer func() { _ = body.Close() }() // ends who writes
	go func() {
		for line := range bytes.Lines(r.body) {
			if _, err := in.Write(line); err != nil {
				return
			}
			time.Sleep(streamPause)
		}
		_ = in.Close()
	}()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, r.url, body)
	if err != nil {
		w.Checker.Break(ruleAnswer, "%s: %v", what, err)
		return outcomes
	}
	req.Header.Set("Accept", api.ContentTypeNDJSON)
	sent := time.Now()
	resp, err := httpClient.Do(req)
	if err != nil {
		if !w.excused(w.p, sent) {
			w.Checker.Break(ruleAnswer, "%s: no answer of a sidecar that is well: %v after %v", what, err, time.Since(sent))
		}
		return slices.Repeat([]outcome{unanswered(err)}, count)
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		var e api.ErrorBody
		if err := json.NewDecoder(resp.Body).Decode(&e); err != nil || e.Error == nil {
			w.Checker.Break(ruleAnswer, "%s: status %d: %v", what, resp.StatusCode, err)
			return outcomes
		}
		return slices.Repeat([]outcome{w.fateOf(what, r, e.Error)}, count)
	}
	if !w.answers(what, r, json.NewDecoder(resp.Body), outcomes) && !w.excused(w.p, sent) {
		w.Checker.Break(ruleAnswer, "%s: the answer of a sidecar that is well was cut off after %v", what, time.Since(sent))
	}
	return outcomes
}

const (
	streamPause = 10 * time.Millisecond // between lines
	streamLimit = 30 * time.Second      // in which a stream must be answered
)

// answers reads the answer to a stream into the outcomes. It is false when it was
// cut off.
func (w *publisher) answers(what string, r request, lines *json.Decoder, outcomes []outcome) (ended bool) {
	last := 0
	for {
		var a struct {
			api.BatchLine
			Status string `json:"status"`
		}
		if err := lines.Decode(&a); err != nil {
			return false
		}
		if a.Status != "" {
			if a.Error == nil && last != len(outcomes) {
				w.Checker.Break(ruleAnswer, "%s: ended after %d of %d lines", what, last, len(outcomes))
			}
			return a.Error == nil
		}
		if a.Line != last+1 || a.Line > len(outcomes) {
			w.Checker.Break(ruleAnswer, "%s: line %d is answered after line %d of %d", what, a.Line, last, len(outcomes))
			return true
		}
		last = a.Line
		o := outcome{fate: fateWritten, partition: a.Partition, offset: a.Offset, spool: a.SpoolID}
		switch {
		case a.BatchResult.Error != nil:
			o = w.fateOf(what, r, a.BatchResult.Error)
		case a.SpoolID != "":
			o.fate = fateSpooled
		}
		outcomes[last-1] = o
		w.Checker.Count("streamed", 1)
	}
}
