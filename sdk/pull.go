package sdk

import (
	"context"
	"net/http"
	"net/url"
	"strconv"
	"time"

	"sidestream/sdk/api"
)

// PullOptions of [Client.Pull]. Zero fields mean the sidecar's or the group's
// defaults.
type PullOptions struct {
	Max     int           // messages at most, default 100
	Wait    time.Duration // how long to wait for the first message, default 0: not at all
	Lease   time.Duration // time to acknowledge, default 30 s
	From    string        // where a new group starts: earliest (default), latest or RFC 3339
	AutoAck bool          // count the messages as acknowledged when they are handed out
	Ack     []string      // receipts to acknowledge on the way
	Nack    []string      // receipts to give back on the way
	// AttemptToken is a name of your own for this pull, up to 128 bytes. When the
	// answer does not arrive, a pull with the same token gets the same messages
	// once more, under the same receipts. The next pull needs another one.
	AttemptToken string
}

// Pull takes messages of a topic for a group, each under a lease: acknowledge
// its receipt before the lease is over, or it is delivered again. An answer
// without messages has a Reason.
func (c *Client) Pull(ctx context.Context, group, topic string, o PullOptions) (api.Pulled, error) {
	q := url.Values{}
	if o.Max > 0 {
		q.Set("max", strconv.Itoa(o.Max))
	}
	if o.Wait > 0 {
		q.Set("wait", o.Wait.String())
	}
	if o.Lease > 0 {
		q.Set("lease", o.Lease.String())
	}
	if o.From != "" {
		q.Set("from", o.From)
	}
	if o.AutoAck {
		q.Set("ack", "auto")
	}
	if o.AttemptToken != "" {
		q.Set("attempt_token", o.AttemptToken)
	}
	// Messages that a lost answer carried come again when their lease ends, or by
	// the token.
	r := request{method: http.MethodPost, path: pathOf("groups", group, "topics", topic, "pull"), query: q, repeatable: !o.AutoAck}
	if len(o.Ack) > 0 || len(o.Nack) > 0 {
		if err := r.jsonBody(api.PullBody{Ack: o.Ack, Nack: o.Nack}); err != nil {
			return api.Pulled{}, err
		}
	}
	var answer api.Pulled
	err := c.call(ctx, r, &answer)
	return answer, err
}

// Ack acknowledges messages by their receipts: they are not delivered again.
// With mixed results the error is nil and Failed counts; it is the common
// error when all failed alike.
func (c *Client) Ack(ctx context.Context, group, topic string, receipts ...string) (api.ReceiptResponse, error) {
	return c.receipts(ctx, group, topic, "ack", api.Receipts{Receipts: receipts})
}

// Nack gives messages back, to be delivered again after delay. reason is for
// people and for dead letters; it may be empty.
func (c *Client) Nack(ctx context.Context, group, topic string, delay time.Duration, reason string, receipts ...string) (api.ReceiptResponse, error) {
	body := api.Receipts{Receipts: receipts, Error: reason}
	if delay > 0 {
		body.Delay = delay.String()
	}
	return c.receipts(ctx, group, topic, "nack", body)
}

// Return gives messages back that the application took and did not begin, say
// because it stops: they are delivered again at once, and no attempt is spent.
func (c *Client) Return(ctx context.Context, group, topic string, receipts ...string) (api.ReceiptResponse, error) {
	return c.receipts(ctx, group, topic, "nack", api.Receipts{Receipts: receipts, Unhandled: true})
}

// Extend makes leases end that long from now; 0 is the group's lease.
func (c *Client) Extend(ctx context.Context, group, topic string, lease time.Duration, receipts ...string) (api.ReceiptResponse, error) {
	body := api.Receipts{Receipts: receipts}
	if lease > 0 {
		body.Lease = lease.String()
	}
	return c.receipts(ctx, group, topic, "extend", body)
}

func (c *Client) receipts(ctx context.Context, group, topic, verb string, body api.Receipts) (api.ReceiptResponse, error) {
	r := request{method: http.MethodPost, path: pathOf("groups", group, "topics", topic, verb), repeatable: true}
	var answer api.ReceiptResponse
	if err := r.jsonBody(body); err != nil {
		return answer, err
	}
	err := c.call(ctx, r, &answer)
	return answer, err
}
