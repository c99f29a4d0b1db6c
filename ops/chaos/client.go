package chaos

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"testing"
	"time"

	"sidestream/sdk/api"
)

var httpClient = &http.Client{Timeout: 60 * time.Second, Transport: &http.Transport{MaxIdleConnsPerHost: 64}}

// call speaks JSON to a daemon. An answer that is not 2xx is an *api.Error;
// no answer is another kind of error.
func call(method, target string, body []byte, into any) (status int, err error) {
	return callUntil(context.Background(), method, target, body, into)
}

func callUntil(ctx context.Context, method, target string, body []byte, into any) (status int, err error) {
	req, err := http.NewRequestWithContext(ctx, method, target, bytes.NewReader(body))
	if err != nil {
		return 0, err
	}
	resp, err := httpClient.Do(req)
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		return 0, err
	}
	if resp.StatusCode >= 300 {
		var e api.ErrorBody
		if json.Unmarshal(data, &e) == nil && e.Error != nil {
			return resp.StatusCode, e.Error
		}
		return resp.StatusCode, fmt.Errorf("status %d: %.200s", resp.StatusCode, data)
	}
	if into != nil {
		if err := json.Unmarshal(data, into); err != nil {
			return resp.StatusCode, fmt.Errorf("%w in %.200s", err, data)
		}
	}
	return resp.StatusCode, nil
}

func publish(base, topic, key, value, query string) (api.Published, error) {
	var p api.Published
	q := url.Values{}
	if key != "" {
		q.Set("key", key)
	}
	_, err := call("POST", base+"/topics/"+topic+"?"+q.Encode()+query, []byte(value), &p)
	return p, err
}

func pull(base, group, topic, query string) (api.Pulled, error) {
	var p api.Pulled
	_, err := call("POST", base+"/groups/"+group+"/topics/"+topic+"/pull?"+query, nil, &p)
	return p, err
}

func ack(base, group, topic string, ms []api.Message) (api.ReceiptResponse, error) {
	var r api.Receipts
	for _, m := range ms {
		r.Receipts = append(r.Receipts, m.Receipt)
	}
	body, _ := json.Marshal(r)
	var out api.ReceiptResponse
	_, err := call("POST", base+"/groups/"+group+"/topics/"+topic+"/ack", body, &out)
	return out, err
}

// pullAndAck pulls once, records what came and acknowledges it; an ack counts
// only for the receipts that the answer calls good.
func pullAndAck(l *Ledger, p *Process, group, topic, query string) (int, error) {
	got, err := pull(p.HTTP, group, topic, query)
	if err != nil {
		return 0, err
	}
	if len(got.Messages) == 0 {
		return 0, nil
	}
	l.Delivered(p.Name, time.Now(), got.Messages)
	res, err := ack(p.HTTP, group, topic, got.Messages)
	if err != nil {
		return len(got.Messages), err
	}
	for i, r := range res.Results {
		if r.Error == nil {
			l.Acked(time.Now(), got.Messages[i].ID)
		}
	}
	return len(got.Messages), nil
}

// drainGroup pulls and acks through the processes in turn until every one is
// at the end (or has no partition) and all that was promised has been seen.
func drainGroup(t testing.TB, l *Ledger, limit time.Duration, group, topic string, ps ...*Process) {
	t.Helper()
	eventually(t, limit, func() error {
		moved := 0
		for _, p := range ps {
			n, err := pullAndAck(l, p, group, topic, "max=500&wait=200ms")
			if err != nil {
				return fmt.Errorf("%s: %w", p.Name, err)
			}
			moved += n
		}
		if s := l.Skipped(); len(s) > 0 {
			return fmt.Errorf("%d of the promised messages not delivered yet (%s)", len(s), few(s))
		}
		if moved > 0 {
			return errNotYet
		}
		return nil
	})
}
