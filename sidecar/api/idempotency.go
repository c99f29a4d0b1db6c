package api

import "sidestream/sdk/api"

// idempotencyKey is the request's Idempotency-Key; "" when it has none. It is the
// header's text as it is, quotes included where a client puts it in some.
func idempotencyKey(c *call) (string, error) {
	key := c.Request.Header.Peek(api.HeaderIdempotencyKey)
	if key == nil {
		return "", nil
	}
	if len(key) == 0 {
		return "", bad(api.HeaderIdempotencyKey, "", "a text that no other request has, such as a UUID")
	}
	if len(c.Request.Header.PeekAll(api.HeaderIdempotencyKey)) > 1 {
		return "", apiError(api.CodeBadRequest, api.HeaderIdempotencyKey+" is given several times: use one")
	}
	return string(key), nil
}
