package sdk

import (
	"context"
	"net/http"

	"sidestream/sdk/api"
)

// Groups lists the names of the groups that the sidecar's store knows.
func (c *Client) Groups(ctx context.Context) ([]string, error) {
	var answer api.GroupList
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("groups"), repeatable: true}, &answer)
	return answer.Groups, err
}

// Group tells a group's configuration, members, owners and last moves.
func (c *Client) Group(ctx context.Context, group string) (api.Group, error) {
	var answer api.Group
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("groups", group), repeatable: true}, &answer)
	return answer, err
}

// ConfigureGroup creates a group or changes it; zero fields stay as they are.
func (c *Client) ConfigureGroup(ctx context.Context, group string, config api.GroupConfig) (api.Group, error) {
	r := request{method: http.MethodPut, path: pathOf("groups", group), repeatable: true}
	var answer api.Group
	if err := r.jsonBody(config); err != nil {
		return answer, err
	}
	err := c.call(ctx, r, &answer)
	return answer, err
}

// DeleteGroup forgets a group with all its positions. While it has members, idle
// ones too, the error is group_config: a sidecar leaves 30 s (consume.leave_after)
// after the last pull there.
func (c *Client) DeleteGroup(ctx context.Context, group string) error {
	return c.call(ctx, request{method: http.MethodDelete, path: pathOf("groups", group), repeatable: true}, nil)
}

// Offsets tells where a group stands in a topic, partition by partition.
func (c *Client) Offsets(ctx context.Context, group, topic string) (api.Offsets, error) {
	var answer api.Offsets
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("groups", group, "topics", topic, "offsets"), repeatable: true}, &answer)
	return answer, err
}

// Seek moves a group, live or not, to "earliest", "latest" or a time (RFC
// 3339) in all partitions of a topic.
func (c *Client) Seek(ctx context.Context, group, topic, to string) (api.Sought, error) {
	return c.seek(ctx, group, topic, api.SeekRequest{To: to})
}

// SeekOffsets moves a group to exact offsets, by partition number as text.
// Partitions that are not named stay where they are.
func (c *Client) SeekOffsets(ctx context.Context, group, topic string, offsets map[string]int64) (api.Sought, error) {
	return c.seek(ctx, group, topic, api.SeekRequest{Offsets: offsets})
}

// A repeated seek moves the group again, so it is not repeated by itself.
func (c *Client) seek(ctx context.Context, group, topic string, body api.SeekRequest) (api.Sought, error) {
	r := request{method: http.MethodPut, path: pathOf("groups", group, "topics", topic, "offsets")}
	var answer api.Sought
	if err := r.jsonBody(body); err != nil {
		return answer, err
	}
	err := c.call(ctx, r, &answer)
	return answer, err
}
