package kafka

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
)

// AlterConfigs replaces all configs of a topic: what is not named goes back to its default. Tools use
// IncrementalAlterConfigs where they can.
var alterConfigsAPI = api{
	key: 33, name: "AlterConfigs", min: 0, max: 2,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrAlterConfigsRequest() },
	shape:   checkAlterConfigsShape,
	serve:   serveAlterConfigs,
}

var errNullConfigs = errors.New("the list of configs is null, which would take all of them back: send an empty one for that")

// checkAlterConfigsShape refuses what decodes like a list of nothing and is none: a client that has no list, not one that
// wants the defaults. The layout is that of versions 0 to 2 (Kafka protocol guide, "AlterConfigs Request").
func checkAlterConfigsShape(body []byte, version int16) error {
	w := walker{b: body, compact: version >= 2}
	for n := w.count(); n > 0 && !w.bad; n-- {
		w.skip(1)   // type
		w.bytes16() // name
		if w.null() {
			return errNullConfigs
		}
		for n := w.count(); n > 0 && !w.bad; n-- {
			w.bytes16() // name
			w.bytes16() // value
			w.tags()
		}
		w.tags()
	}
	return nil // what is cut short the decoder finds
}

func serveAlterConfigs(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.AlterConfigsRequest)
	resp := kmsg.NewPtrAlterConfigsResponse()
	resp.Version = req.Version
	ctx, cancel := s.clusterContext(c.ctx, 0)
	defer cancel()
	seen := map[resource]bool{}
	for _, r := range req.Resources {
		out := kmsg.NewAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		err := seenTwice(seen, resource{r.ResourceType, r.ResourceName})
		if err == nil {
			err = s.alter(ctx, r.ResourceType, r.ResourceName, req.ValidateOnly, func(map[string]string) (map[string]string, error) {
				return replacement(r.Configs)
			})
		}
		if err != nil {
			s.refuseCluster(&out.ErrorCode, &out.ErrorMessage, err)
		}
		resp.Resources = append(resp.Resources, out)
	}
	return encode(c.header, resp), nil
}

// resource names what has configs.
type resource struct {
	kind kmsg.ConfigResourceType
	name string
}

func seenTwice(seen map[resource]bool, r resource) error {
	if seen[r] {
		return fmt.Errorf("%q is in the request twice: name it once: %w", r.name, errInvalidRequest)
	}
	seen[r] = true
	return nil
}

// replacement is the set that a request names.
func replacement(configs []kmsg.AlterConfigsRequestResourceConfig) (map[string]string, error) {
	next := map[string]string{}
	for _, c := range configs {
		if _, twice := next[c.Name]; twice {
			return nil, fmt.Errorf("config %q is named twice: %w", c.Name, errInvalidRequest)
		}
		if c.Value == nil {
			return nil, fmt.Errorf("config %q has no value: leave it out to have the default: %w", c.Name, cluster.ErrInvalidConfig)
		}
		next[c.Name] = *c.Value
	}
	return next, nil
}

// alter changes a topic's configs. What comes out is checked before it is stored, and for validateOnly that is all.
func (s *Server) alter(ctx context.Context, kind kmsg.ConfigResourceType, name string, validateOnly bool, change func(map[string]string) (map[string]string, error)) error {
	if kind != kmsg.ConfigResourceTypeTopic {
		return fmt.Errorf("resource type %d: only the configs of topics (2) can be changed: a broker's are in its configuration file: %w", kind, errInvalidRequest)
	}
	checked := func(old map[string]string) (map[string]string, error) {
		next, err := change(old)
		if err == nil {
			err = s.backend.CheckTopic(name, next)
		}
		return next, err
	}
	if validateOnly {
		tv := s.backend.View().Topics[name]
		if tv == nil {
			return fmt.Errorf("topic %q: %w", name, cluster.ErrUnknownTopic)
		}
		configs := maps.Clone(tv.Configs)
		if configs == nil {
			configs = map[string]string{}
		}
		_, err := checked(configs)
		return err
	}
	err := s.backend.AlterTopic(ctx, name, checked)
	if errors.Is(err, cluster.ErrInvalidName) { // no topic has such a name
		return fmt.Errorf("topic %q: %w", name, cluster.ErrUnknownTopic)
	}
	return err
}
