package api_test

import (
	"bytes"
	"strings"
	"testing"

	"sidestream/sdk/api"
)

func TestBytesOfAMessage(t *testing.T) {
	for name, c := range map[string]struct {
		m          api.Message
		key, value []byte
		tombstone  bool
	}{
		"text":      {api.Message{Key: new("k"), Value: new("hi")}, []byte("k"), []byte("hi"), false},
		"empty":     {api.Message{Key: new(""), Value: new("")}, []byte{}, []byte{}, false},
		"binary":    {api.Message{Key64: new("/g=="), Value64: new("/wA=")}, []byte{0xfe}, []byte{0xff, 0}, false},
		"tombstone": {api.Message{Key: new("k")}, []byte("k"), nil, true},
		"no key":    {api.Message{Value: new("hi")}, nil, []byte("hi"), false},
	} {
		t.Run(name, func(t *testing.T) {
			key, keyErr := c.m.KeyBytes()
			value, err := c.m.ValueBytes()
			if keyErr != nil || err != nil {
				t.Fatal(keyErr, err)
			}
			if !bytes.Equal(key, c.key) || (key == nil) != (c.key == nil) || !bytes.Equal(value, c.value) || (value == nil) != (c.value == nil) {
				t.Errorf("key %q, value %q", key, value)
			}
			if c.m.Tombstone() != c.tombstone {
				t.Errorf("tombstone: %v", c.m.Tombstone())
			}
		})
	}
	bad := api.Message{ID: "t/0/1", Key64: new("?"), Value64: new("?")}
	if _, err := bad.ValueBytes(); err == nil || !strings.Contains(err.Error(), "value of message t/0/1") {
		t.Errorf("got %v", err)
	}
	if _, err := bad.KeyBytes(); err == nil || !strings.Contains(err.Error(), "key of message t/0/1") {
		t.Errorf("got %v", err)
	}
	if b, err := (api.HeaderPair{Name: "h", Value64: new("/w==")}).ValueBytes(); err != nil || !bytes.Equal(b, []byte{0xff}) {
		t.Errorf("got %q, %v", b, err)
	}
	if _, err := (api.HeaderPair{Name: "h", Value64: new("?")}).ValueBytes(); err == nil || !strings.Contains(err.Error(), `header "h"`) {
		t.Errorf("got %v", err)
	}
}
