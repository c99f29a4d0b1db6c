package api

import (
	"encoding/base64"
	"strings"

	"sidestream/sdk/api"
)

// headerRecord64 carries a record's header whose name or value cannot stand in
// a line of HTTP as it is: base64 of the name, "=", base64 of the value. Base64
// without padding has no "=", so the first one ends the name.
const headerRecord64 = api.HeaderRecord + "64"

// recordHead is a record's headers in their order. One that would not
// come through unchanged turns all of them to the base64 form, since the order
// among headers of different names is lost by many clients.
func recordHead(pairs []api.HeaderPair) ([]headerLine, error) {
	names := make([]string, len(pairs))
	name, encode := api.HeaderRecord, func(s string) string { return s }
	values := make([]string, len(pairs))
	for i, p := range pairs {
		b, err := p.NameBytes()
		if err != nil {
			return nil, err
		}
		names[i] = string(b)
		switch {
		case p.Value != nil:
			values[i] = *p.Value
		case p.Value64 != nil:
			b, err := base64.StdEncoding.DecodeString(*p.Value64)
			if err != nil {
				return nil, err
			}
			values[i] = string(b)
		}
		if !fitsHeader(names[i]) || strings.Contains(names[i], "=") || values[i] != "" && !fitsHeader(values[i]) {
			name, encode = headerRecord64, func(s string) string { return base64.RawStdEncoding.EncodeToString([]byte(s)) }
		}
	}
	lines := make([]headerLine, len(pairs))
	for i := range pairs {
		lines[i] = headerLine{name, encode(names[i]) + "=" + encode(values[i])}
	}
	return lines, nil
}

// recordHeader64 reads what recordHead wrote, with or without padding.
func recordHeader64(s string) (name string, value []byte, ok bool) {
	n, v, found := strings.Cut(strings.TrimSpace(s), "=")
	if !found {
		return "", nil, false
	}
	nb, err := decode64(n)
	if err != nil || len(nb) == 0 {
		return "", nil, false
	}
	// With padding the cut was before the name's.
	if value, err = decode64(strings.TrimLeft(v, "=")); err != nil {
		return "", nil, false
	}
	return string(nb), value, true
}
