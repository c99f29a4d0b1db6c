package upstream

import (
	"context"
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"
)

// Configs are what the brokers tell of a topic's configs.
type Configs struct {
	All map[string]string // in effect, defaults included
	Set map[string]string // those that were set for the topic
}

// Compacted says that the topic keeps the last message of each key, and so takes
// none without a key.
func (c Configs) Compacted() bool { return strings.Contains(c.All["cleanup.policy"], "compact") }

// TopicConfigs asks for a topic's configs. Errors are *api.Error, as of Topic;
// forbidden where the brokers keep them to themselves.
func (u *Upstream) TopicConfigs(ctx context.Context, topic string) (Configs, error) {
	ctx, cancel := context.WithTimeout(ctx, u.cfg.RequestTimeout)
	defer cancel()
	req := kmsg.NewPtrDescribeConfigsRequest()
	rr := kmsg.NewDescribeConfigsRequestResource()
	rr.ResourceType, rr.ResourceName = kmsg.ConfigResourceTypeTopic, topic
	req.Resources = append(req.Resources, rr)
	resp, err := req.RequestWith(ctx, u.cl)
	if err != nil {
		return Configs{}, u.unreachable(err)
	}
	if len(resp.Resources) != 1 {
		return Configs{}, unavailable(fmt.Sprintf("the brokers told nothing of the configs of topic %s", topic))
	}
	r := resp.Resources[0]
	if err := topicErrorSaid(topic, r.ErrorCode, r.ErrorMessage); err != nil {
		return Configs{}, err
	}
	c := Configs{All: map[string]string{}, Set: map[string]string{}}
	for _, rc := range r.Configs {
		if rc.Value == nil {
			continue
		}
		c.All[rc.Name] = *rc.Value
		// Before version 1 brokers say only whether it is a default.
		if rc.Source == kmsg.ConfigSourceDynamicTopicConfig || resp.Version == 0 && !rc.IsDefault {
			c.Set[rc.Name] = *rc.Value
		}
	}
	return c, nil
}

// MaxMessageBytes is the topic's max.message.bytes: the largest record batch
// that its brokers take. False when they do not tell.
func (u *Upstream) MaxMessageBytes(ctx context.Context, topic string) (int, bool) {
	c, err := u.TopicConfigs(ctx, topic)
	if err != nil {
		return 0, false
	}
	n, err := strconv.Atoi(c.All["max.message.bytes"])
	return n, err == nil && n > 0
}
