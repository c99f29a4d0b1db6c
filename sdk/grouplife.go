package sdk

import (
	"context"
	"net/http"

	"sidestream/sdk/api"
)

// Pause makes a group hand out nothing of the topics, or of any topic when none
// is named, on all sidecars and until Resume. What is out may be acknowledged.
func (c *Client) Pause(ctx context.Context, group string, topics ...string) (api.Group, error) {
	return c.pauseOrResume(ctx, "pause", group, topics)
}

// Resume ends the pause of the topics, or of all when none is named.
func (c *Client) Resume(ctx context.Context, group string, topics ...string) (api.Group, error) {
	return c.pauseOrResume(ctx, "resume", group, topics)
}

func (c *Client) pauseOrResume(ctx context.Context, verb, group string, topics []string) (answer api.Group, err error) {
	if len(topics) == 0 {
		err = c.call(ctx, request{method: http.MethodPost, path: pathOf("groups", group, verb), repeatable: true}, &answer)
		return answer, err
	}
	for _, topic := range topics {
		r := request{method: http.MethodPost, path: pathOf("groups", group, "topics", topic, verb), repeatable: true}
		if err = c.call(ctx, r, &answer); err != nil {
			return answer, err
		}
	}
	return answer, nil
}
