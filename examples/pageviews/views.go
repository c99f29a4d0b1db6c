// Package pageviews is an example application: it posts the page views of a
// web site as events, and counts which pages were viewed most.
package pageviews

import (
	"bytes"
	"cmp"
	_ "embed" // the data below
	"encoding/json"
	"fmt"
	"iter"
	"slices"
	"time"
)

// Topic and Group are the names that the example uses.
const (
	Topic = "pageviews"
	Group = "top-pages"
)

// Data is pageviews.ndjson: 9,999 views, one JSON object a line.
//
//go:embed pageviews.ndjson
var Data []byte

// View is one page view.
type View struct {
	Time    time.Time `json:"time"`
	Visitor string    `json:"visitor"`
	Path    string    `json:"path"`
	Status  int       `json:"status"`
	Bytes   int64     `json:"bytes"`
}

// Parse reads a view from the value of a message.
func Parse(value []byte) (View, error) {
	var v View
	if err := json.Unmarshal(value, &v); err != nil {
		return v, fmt.Errorf("not a page view: %w", err)
	}
	return v, nil
}

// Lines yields the lines of a text without their ends, skipping empty ones.
func Lines(text []byte) iter.Seq[[]byte] {
	return func(yield func([]byte) bool) {
		for line := range bytes.Lines(text) {
			if line = bytes.TrimRight(line, "\r\n"); len(line) > 0 && !yield(line) {
				return
			}
		}
	}
}

// Page is a path with the number of its views.
type Page struct {
	Path  string
	Views int
}

// Top returns the n paths with the most views; equals in the order of the path.
func Top(views map[string]int, n int) []Page {
	pages := make([]Page, 0, len(views))
	for path, count := range views {
		pages = append(pages, Page{path, count})
	}
	slices.SortFunc(pages, func(a, b Page) int {
		return cmp.Or(cmp.Compare(b.Views, a.Views), cmp.Compare(a.Path, b.Path))
	})
	return pages[:min(n, len(pages))]
}
