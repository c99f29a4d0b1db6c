package kafka

import (
	"fmt"
	"slices"
	"strings"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
)

var incrementalAlterConfigsAPI = api{
	key: 44, name: "IncrementalAlterConfigs", min: 0, max: 1,
	kind:    waiting,
	request: func() kmsg.Request { return kmsg.NewPtrIncrementalAlterConfigsRequest() },
	serve:   serveIncrementalAlterConfigs,
}

func serveIncrementalAlterConfigs(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.IncrementalAlterConfigsRequest)
	resp := kmsg.NewPtrIncrementalAlterConfigsResponse()
	resp.Version = req.Version
	ctx, cancel := s.clusterContext(c.ctx, 0)
	defer cancel()
	defaults := map[string]ConfigEntry{}
	for _, e := range s.backend.TopicConfigs(&cluster.TopicView{}) {
		defaults[e.Name] = e
	}
	seen := map[resource]bool{}
	for _, r := range req.Resources {
		out := kmsg.NewIncrementalAlterConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		err := seenTwice(seen, resource{r.ResourceType, r.ResourceName})
		if err == nil {
			err = s.alter(ctx, r.ResourceType, r.ResourceName, req.ValidateOnly, func(old map[string]string) (map[string]string, error) {
				return increment(old, r.Configs, defaults)
			})
		}
		if err != nil {
			s.refuseCluster(&out.ErrorCode, &out.ErrorMessage, err)
		}
		resp.Resources = append(resp.Resources, out)
	}
	return encode(c.header, resp), nil
}

// kindList is Kafka's ConfigType of lists.
const kindList = 7

// increment applies the changes of a request to old, all or none.
func increment(old map[string]string, changes []kmsg.IncrementalAlterConfigsRequestResourceConfig, defaults map[string]ConfigEntry) (map[string]string, error) {
	next := old
	seen := map[string]bool{}
	for _, c := range changes {
		if seen[c.Name] {
			return nil, fmt.Errorf("config %q is named twice: %w", c.Name, errInvalidRequest)
		}
		seen[c.Name] = true
		if c.Value == nil && c.Op != kmsg.IncrementalAlterConfigOpDelete {
			return nil, fmt.Errorf("config %q has no value: use DELETE to have the default: %w", c.Name, cluster.ErrInvalidConfig)
		}
		switch c.Op {
		case kmsg.IncrementalAlterConfigOpSet:
			next[c.Name] = *c.Value
		case kmsg.IncrementalAlterConfigOpDelete:
			if _, known := defaults[c.Name]; !known {
				return nil, fmt.Errorf("config %q is not known: %w", c.Name, cluster.ErrInvalidConfig)
			}
			delete(next, c.Name)
		case kmsg.IncrementalAlterConfigOpAppend, kmsg.IncrementalAlterConfigOpSubtract:
			d, known := defaults[c.Name]
			if !known || d.Kind != kindList {
				return nil, fmt.Errorf("config %q is no list: use SET: %w", c.Name, cluster.ErrInvalidConfig)
			}
			value, set := next[c.Name]
			if !set {
				value = d.Value
			}
			list := changedList(value, *c.Value, c.Op == kmsg.IncrementalAlterConfigOpAppend)
			if list == "" {
				return nil, fmt.Errorf("config %q: taking %q away leaves nothing: %w", c.Name, *c.Value, cluster.ErrInvalidConfig)
			}
			next[c.Name] = list
		default:
			return nil, fmt.Errorf("config %q: operation %d is not known: use 0 (SET) to 3 (SUBTRACT): %w", c.Name, c.Op, errInvalidRequest)
		}
	}
	return next, nil
}

// changedList adds items to a comma-separated list, or takes them away. Adding what is there changes nothing, as in Kafka.
func changedList(list, items string, add bool) string {
	split := func(s string) (parts []string) {
		for _, p := range strings.Split(s, ",") {
			if p = strings.TrimSpace(p); p != "" {
				parts = append(parts, p)
			}
		}
		return parts
	}
	out := split(list)
	for _, item := range split(items) {
		i := slices.Index(out, item)
		switch {
		case add && i < 0:
			out = append(out, item)
		case !add && i >= 0:
			out = slices.Delete(out, i, i+1)
		}
	}
	return strings.Join(out, ",")
}
