package sidecar

import (
	"bytes"
	"strings"
	"testing"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/zstd"

	"sidestream/sdk/api"
)

// A body that is packed is the message that it unpacks to, and a batch so too.
func TestPackedRequests(t *testing.T) {
	r := newRig(t, nil)
	message := strings.Repeat("a packed message ", 1000)
	var gz bytes.Buffer
	w := gzip.NewWriter(&gz)
	if _, err := w.Write([]byte(message)); err != nil {
		t.Fatal(err)
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	into[api.Published](t, r.do("POST", "/topics/one", gz.String(), "Content-Encoding: gzip"), 200)
	if got := r.last(); *got.Value != message {
		t.Errorf("%d bytes came out", len(*got.Value))
	}
	z, err := zstd.NewWriter(nil)
	if err != nil {
		t.Fatal(err)
	}
	batch := z.EncodeAll([]byte("{\"value\":\"a\",\"key\":\"k\"}\n{\"value\":{\"n\": 1}}\n"), nil)
	done := into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", string(batch), "Content-Encoding: zstd"), 200)
	if done.Written != 2 {
		t.Errorf("%+v", done)
	}
	if got := r.last(); *got.Value != `{"n": 1}` {
		t.Errorf("%s", *got.Value)
	}
	bomb := z.EncodeAll(make([]byte, 64<<20), nil)
	if a := r.do("POST", "/topics/one", string(bomb), "Content-Encoding: zstd"); a.status != 413 || a.code() != api.CodeRequestTooLarge {
		t.Errorf("a bomb of %d bytes: %s", len(bomb), a)
	}
	if got := r.last(); got.Offset != 2 {
		t.Errorf("offset %d", got.Offset)
	}
}
