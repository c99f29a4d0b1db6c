package kafka

import (
	"fmt"
	"slices"
	"strconv"

	"github.com/twmb/franz-go/pkg/kmsg"

	"sidestream/broker/cluster"
)

var describeConfigsAPI = api{
	key: 32, name: "DescribeConfigs", min: 1, max: 4,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrDescribeConfigsRequest() },
	serve:   serveDescribeConfigs,
}

func serveDescribeConfigs(s *Server, c *call) (*response, error) {
	req := c.req.(*kmsg.DescribeConfigsRequest)
	resp := kmsg.NewPtrDescribeConfigsResponse()
	resp.Version = req.Version
	for _, r := range merged(req.Resources) {
		out := kmsg.NewDescribeConfigsResponseResource()
		out.ResourceType, out.ResourceName = r.ResourceType, r.ResourceName
		out.Configs = []kmsg.DescribeConfigsResponseResourceConfig{}
		entries, source, err := s.describe(r)
		if err != nil {
			s.refuse(&out.ErrorCode, &out.ErrorMessage, err)
		}
		for _, e := range entries {
			if r.ConfigNames != nil && !slices.Contains(r.ConfigNames, e.Name) {
				continue
			}
			rc := kmsg.NewDescribeConfigsResponseResourceConfig()
			rc.Name, rc.Value = e.Name, &e.Value
			rc.IsDefault, rc.Source = !e.Set, sourceOf(e, source)
			rc.ReadOnly = r.ResourceType == kmsg.ConfigResourceTypeBroker
			rc.ConfigType = kmsg.ConfigType(e.Kind)
			if req.IncludeSynonyms {
				rc.ConfigSynonyms = synonyms(e, source)
			}
			if req.IncludeDocumentation && e.Doc != "" {
				rc.Documentation = &e.Doc
			}
			out.Configs = append(out.Configs, rc)
		}
		resp.Resources = append(resp.Resources, out)
	}
	return encode(c.header, resp), nil
}

// merged makes one of each resource that is named several times: all configs that are asked for of it, null being all.
func merged(resources []kmsg.DescribeConfigsRequestResource) (out []kmsg.DescribeConfigsRequestResource) {
	at := map[resource]int{}
	for _, r := range resources {
		i, before := at[resource{r.ResourceType, r.ResourceName}]
		switch {
		case !before:
			at[resource{r.ResourceType, r.ResourceName}] = len(out)
			out = append(out, r)
		case r.ConfigNames == nil:
			out[i].ConfigNames = nil
		case out[i].ConfigNames != nil:
			out[i].ConfigNames = append(out[i].ConfigNames, r.ConfigNames...)
		}
	}
	return out
}

func (s *Server) describe(r kmsg.DescribeConfigsRequestResource) ([]ConfigEntry, kmsg.ConfigSource, error) {
	switch r.ResourceType {
	case kmsg.ConfigResourceTypeTopic:
		tv := s.backend.View().Topics[r.ResourceName]
		if tv == nil {
			return nil, 0, fmt.Errorf("topic %q: %w", r.ResourceName, cluster.ErrUnknownTopic)
		}
		return s.backend.TopicConfigs(tv), kmsg.ConfigSourceDynamicTopicConfig, nil
	case kmsg.ConfigResourceTypeBroker:
		if r.ResourceName != "" && r.ResourceName != strconv.Itoa(int(s.backend.Self())) {
			return nil, 0, fmt.Errorf("broker %q: ask that broker itself, this one is %d: %w", r.ResourceName, s.backend.Self(), errInvalidRequest)
		}
		return s.backend.BrokerConfigs(), kmsg.ConfigSourceStaticBrokerConfig, nil
	default:
		return nil, 0, fmt.Errorf("resource type %d: only topics (2) and brokers (4) have configs here: %w", r.ResourceType, errInvalidRequest)
	}
}

// synonyms lists where the value could come from, the one in force first.
func synonyms(e ConfigEntry, source kmsg.ConfigSource) []kmsg.DescribeConfigsResponseResourceConfigConfigSynonym {
	of := func(value string, source kmsg.ConfigSource) kmsg.DescribeConfigsResponseResourceConfigConfigSynonym {
		s := kmsg.NewDescribeConfigsResponseResourceConfigConfigSynonym()
		s.Name, s.Value, s.Source = e.Name, &value, source
		return s
	}
	out := []kmsg.DescribeConfigsResponseResourceConfigConfigSynonym{of(e.Value, sourceOf(e, source))}
	if e.Set && source == kmsg.ConfigSourceDynamicTopicConfig {
		out = append(out, of(e.Default, kmsg.ConfigSourceDefaultConfig))
	}
	return out
}

// sourceOf says where a value comes from: set for the resource, or a default.
func sourceOf(e ConfigEntry, set kmsg.ConfigSource) kmsg.ConfigSource {
	if e.Set {
		return set
	}
	return kmsg.ConfigSourceDefaultConfig
}
