package sdk

import (
	"context"
	"net/http"
	"net/url"
	"strconv"

	"sidestream/sdk/api"
)

// Topics lists the topics of the cluster.
func (c *Client) Topics(ctx context.Context) ([]api.Topic, error) {
	var answer api.TopicList
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("topics"), repeatable: true}, &answer)
	return answer.Topics, err
}

// Topic tells a topic's partitions, their leaders and offsets.
func (c *Client) Topic(ctx context.Context, topic string) (api.Topic, error) {
	var answer api.Topic
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("topics", topic), repeatable: true}, &answer)
	return answer, err
}

// CreateTopic creates a topic; zero fields of spec mean the defaults. The
// error has code topic_exists when it is there already.
func (c *Client) CreateTopic(ctx context.Context, topic string, spec api.TopicSpec) (api.Topic, error) {
	r := request{method: http.MethodPut, path: pathOf("topics", topic)}
	var answer api.Topic
	if err := r.jsonBody(spec); err != nil {
		return answer, err
	}
	err := c.call(ctx, r, &answer)
	return answer, err
}

// Peek reads up to max messages of a partition from an offset (max 0: the
// sidecar's default), with no group and no lease.
func (c *Client) Peek(ctx context.Context, topic string, partition int32, offset int64, max int) (api.Peeked, error) {
	q := url.Values{"offset": {strconv.FormatInt(offset, 10)}}
	if max > 0 {
		q.Set("max", strconv.Itoa(max))
	}
	var answer api.Peeked
	err := c.call(ctx, request{method: http.MethodGet, path: pathOf("topics", topic, "partitions", strconv.Itoa(int(partition)), "messages"),
		query: q, repeatable: true}, &answer)
	return answer, err
}

// Ready asks whether the sidecar can serve; the error tells why not.
func (c *Client) Ready(ctx context.Context) error {
	return c.call(ctx, request{method: http.MethodGet, path: pathOf("readyz"), repeatable: true}, nil)
}

// Status decodes what the sidecar says of itself (GET /status) into v. It is for
// people and tools: fields may be added.
func (c *Client) Status(ctx context.Context, v any) error {
	return c.call(ctx, request{method: http.MethodGet, path: pathOf("status"), repeatable: true}, v)
}
