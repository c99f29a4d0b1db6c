package sdk

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"sidestream/sdk/api"
)

// DeadOptions of [Client.Dead]. Zero fields mean the sidecar's defaults.
type DeadOptions struct {
	Max    int    // letters at most, default 10, up to 1000
	After  string // Next of an earlier answer
	Reason string // letters of this reason only, such as max_attempts
	Dead   string // topic of the letters, in place of the group's
	All    bool   // those too that were brought back or discarded
}

// Dead shows messages of a topic that a group gave up. It changes nothing.
func (c *Client) Dead(ctx context.Context, group, topic string, o DeadOptions) (api.DeadLetters, error) {
	q := url.Values{}
	if o.Max > 0 {
		q.Set("max", strconv.Itoa(o.Max))
	}
	for name, value := range map[string]string{"after": o.After, "reason": o.Reason, "dead": o.Dead} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if o.All {
		q.Set("all", "1")
	}
	var answer api.DeadLetters
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("groups", group, "topics", topic, "dead"), query: q, repeatable: true}, &answer)
	return answer, err
}

// Redrive brings messages that a group gave up back to their topic, or counts
// them as done. Ask again with After set to Next until that is empty; an answer
// with an Error has done what it counts and stopped there. It may be repeated:
// what was brought back is noted.
func (c *Client) Redrive(ctx context.Context, group, topic string, body api.RedriveRequest) (api.Redriven, error) {
	r := request{method: http.MethodPost, path: pathOf("groups", group, "topics", topic, "dead", "redrive"), repeatable: true}
	var answer api.Redriven
	if err := r.jsonBody(body); err != nil {
		return answer, err
	}
	err := c.call(ctx, r, &answer)
	return answer, err
}
