package sidecar

import (
	"slices"
	"testing"

	"sidestream/sdk/api"
)

// pull?raw=1 lost the message's headers: an application that posted a trace id
// with curl could not see it again with curl.
func TestRawPullKeepsTheMessagesHeaders(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		name     string
		headers  []string
		plain    []string
		base64ed []string
	}{
		{"none", nil, nil, nil},
		{"several, in order, one twice", []string{"Record-Header: b=2", "Record-Header: a=x=y z", "Record-Header: b=", "Record-Header: Case="},
			[]string{"b=2", "a=x=y z", "b=", "Case="}, nil},
		{"bytes", []string{"Record-Header: plain=1", "Record-Header64: YmluPQ=AP8K"}, nil, []string{"cGxhaW4=MQ", "YmluPQ=AP8K"}},
		{"padded", []string{"Record-Header64: bg===AP8="}, nil, []string{"bg=AP8"}},
		{"base64 of what is plain", []string{"Record-Header64: bg=dg"}, []string{"n=v"}, nil},
		{"not ASCII", []string{"Record-Header: name=größe"}, nil, []string{"bmFtZQ=Z3LDtsOfZQ"}},
	} {
		into[api.Published](t, r.do("POST", "/topics/one", "v", c.headers...), 200)
		got := r.do("POST", "/groups/g/topics/one/pull?raw&wait=10s&ack=auto", "")
		if got.status != 200 || string(got.body) != "v" || !slices.Equal(got.header.Values("Record-Header"), c.plain) ||
			!slices.Equal(got.header.Values("Record-Header64"), c.base64ed) {
			t.Errorf("%s: got %s %v", c.name, got, got.header)
		}
	}
	for _, wrong := range []string{"bm", "=dg", "b!=dg", "bg=!"} {
		if a := r.do("POST", "/topics/one", "v", "Record-Header64: "+wrong); a.code() != api.CodeBadRequest {
			t.Errorf("%q: got %s", wrong, a)
		}
	}
}
