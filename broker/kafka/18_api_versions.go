package kafka

import (
	"maps"
	"slices"

	"github.com/twmb/franz-go/pkg/kmsg"
)

var apiVersionsAPI = api{
	key: keyApiVersions, name: "ApiVersions", min: 0, max: 4,
	kind:    inline,
	request: func() kmsg.Request { return kmsg.NewPtrApiVersionsRequest() },
	serve: func(_ *Server, c *call) (*response, error) {
		return encode(c.header, apiVersions(c.header.version, codeNone)), nil
	},
}

// apiVersions lists what the table holds and serves.
func apiVersions(version, code int16) *kmsg.ApiVersionsResponse {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.Version = version
	resp.ErrorCode = code
	for _, key := range slices.Sorted(maps.Keys(apiTable)) {
		if apiTable[key].hidden {
			continue
		}
		k := kmsg.NewApiVersionsResponseApiKey()
		k.ApiKey, k.MinVersion, k.MaxVersion = key, apiTable[key].min, apiTable[key].max
		resp.ApiKeys = append(resp.ApiKeys, k)
	}
	return resp
}

// unsupportedApiVersions answers an ApiVersions request that is newer than we know: in version 0, which every client
// reads, with UNSUPPORTED_VERSION and our range, so that it asks again (KIP-511). Only the range of ApiVersions itself
// is given, because old clients would take a full list for a success.
func unsupportedApiVersions(h header) *response {
	resp := kmsg.NewPtrApiVersionsResponse()
	resp.ErrorCode = codeUnsupportedVersion
	k := kmsg.NewApiVersionsResponseApiKey()
	k.ApiKey, k.MinVersion, k.MaxVersion = keyApiVersions, apiVersionsAPI.min, apiVersionsAPI.max
	resp.ApiKeys = []kmsg.ApiVersionsResponseApiKey{k}
	return encode(h, resp)
}
