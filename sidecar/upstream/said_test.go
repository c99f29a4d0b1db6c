package upstream

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/sdk/api"
)

// The time of a request that no broker answers is over while its client still
// tries: what it met meanwhile is told, and not only that the time was over.
func TestAnUnreachableBrokerIsNamed(t *testing.T) {
	cfg := DefaultConfig()
	cfg.Bootstrap, cfg.RequestTimeout = []string{"127.0.0.1:1"}, 500*time.Millisecond
	u := newUpstream(t, cfg, nil)
	_, err := u.Refresh(t.Context(), "t")
	if codeOf(err) != api.CodeBrokersUnavailable || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
	// Whoever has less time than that is told the same.
	ctx, cancel := context.WithTimeout(t.Context(), 50*time.Millisecond)
	defer cancel()
	if _, err := u.Refresh(ctx, "t"); codeOf(err) != api.CodeBrokersUnavailable || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("got %v", err)
	}
	for _, end := range []error{context.DeadlineExceeded, context.Canceled} {
		if got := u.Cause(end); !strings.Contains(got.Error(), "connection refused") {
			t.Errorf("%v is told as %v", end, got)
		}
	}
	if got := u.Cause(kerr.NotController); got != kerr.NotController {
		t.Errorf("got %v", got)
	}
}

// What a broker says beside an error of a topic's configs is told.
func TestWordsAboutConfigs(t *testing.T) {
	c := newCluster(t, kfake.SeedTopics(1, "u"))
	u := bootstrapped(t, c)
	c.ControlKey(kmsg.DescribeConfigs.Int16(), func(req kmsg.Request) (kmsg.Response, error, bool) {
		c.KeepControl()
		resp := req.ResponseKind().(*kmsg.DescribeConfigsResponse)
		r := kmsg.NewDescribeConfigsResponseResource()
		r.ErrorCode, r.ErrorMessage = kerr.UnknownServerError.Code, new("the disk is on fire")
		resp.Resources = append(resp.Resources, r)
		return resp, nil, true
	})
	if _, err := u.TopicConfigs(t.Context(), "t"); err == nil || !strings.Contains(err.Error(), "the disk is on fire") {
		t.Errorf("configs: got %v", err)
	}
}
