package sdk

import (
	"context"
	"net/http"

	"sidestream/sdk/api"
)

// AckSpool makes the answer come when the event is on the disk of the sidecar's
// host, which sends it by itself, now or when the brokers are there again. The
// answer has a SpoolID, for [Client.Spooled].
func AckSpool() PublishOption {
	return func(o *publishOptions) { o.query.Set("ack", "spool") }
}

// OrSpool lets the sidecar take the event as with [AckSpool] where it would answer
// brokers_unavailable otherwise, if its configuration has spool.fallback. The
// answer has a SpoolID then, and Offset is -1.
func OrSpool() PublishOption {
	return func(o *publishOptions) { o.header.Set(api.HeaderPrefer, "respond-async") }
}

// Spooled tells what became of an event that the spool of this sidecar has taken.
// The error is not_found when the sidecar never had it, or has forgotten it.
func (c *Client) Spooled(ctx context.Context, id string) (api.SpoolEvent, error) {
	var answer api.SpoolEvent
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("spool", id), repeatable: true}, &answer)
	return answer, err
}

// Spool tells how much waits on the sidecar's host to be written.
func (c *Client) Spool(ctx context.Context) (api.SpoolStatus, error) {
	var answer api.SpoolStatus
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("spool"), repeatable: true}, &answer)
	return answer, err
}
