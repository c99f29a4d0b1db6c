package pageviews

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"sidestream/sdk"
)

// BatchLines is how many views go into one request.
const BatchLines = 500

// Post publishes each line of text as an event whose key is its visitor, so
// that one visitor's views stay in order. It returns how many were written.
func Post(ctx context.Context, client *sdk.Client, topic string, text []byte) (int, error) {
	written := 0
	var batch bytes.Buffer
	lines := 0
	flush := func() error {
		if lines == 0 {
			return nil
		}
		result, err := client.PublishLines(ctx, topic, batch.Bytes(), sdk.KeyField("visitor"))
		written += result.Written
		if err == nil && result.Failed > 0 {
			what := "were not written"
			var first error
			for _, r := range result.Results {
				if r.Error == nil {
					continue
				}
				if first == nil {
					first = r.Error
				}
				if errors.Is(r.Error, sdk.ErrUnknown) {
					what = "were not written, or are not known to be"
				}
			}
			err = fmt.Errorf("%d of %d views %s, the first because: %w", result.Failed, lines, what, first)
		}
		batch.Reset()
		lines = 0
		return err
	}
	for line := range Lines(text) {
		batch.Write(line)
		batch.WriteByte('\n')
		if lines++; lines == BatchLines {
			if err := flush(); err != nil {
				return written, err
			}
		}
	}
	return written, flush()
}
