package api

import (
	"encoding/base64"
	"fmt"
	"unicode/utf8"
)

// ValueBytes is the message's value, from Value or Value64: nil for a
// tombstone, not nil but empty for an empty value. The error is one of base64
// that cannot be read, which no sidecar sends.
func (m Message) ValueBytes() ([]byte, error) {
	b, err := either(m.Value, m.Value64)
	if err != nil {
		return nil, fmt.Errorf("value of message %s: %w", m.ID, err)
	}
	return b, nil
}

// KeyBytes is the message's key, from Key or Key64: nil when it has none.
func (m Message) KeyBytes() ([]byte, error) {
	b, err := either(m.Key, m.Key64)
	if err != nil {
		return nil, fmt.Errorf("key of message %s: %w", m.ID, err)
	}
	return b, nil
}

// Tombstone reports whether the message has no value at all: it says that
// what its key names is gone.
func (m Message) Tombstone() bool { return m.Value == nil && m.Value64 == nil }

// PairOf is a header of any bytes; a nil value is none.
func PairOf(name string, value []byte) HeaderPair {
	h := HeaderPair{Name: name}
	if !utf8.ValidString(name) {
		h.Name, h.Name64 = "", new(base64.StdEncoding.EncodeToString([]byte(name)))
	}
	switch {
	case value == nil:
	case utf8.Valid(value):
		h.Value = new(string(value))
	default:
		h.Value64 = new(base64.StdEncoding.EncodeToString(value))
	}
	return h
}

// NameBytes is the header's name, from Name or Name64.
func (h HeaderPair) NameBytes() ([]byte, error) {
	if h.Name64 == nil {
		return []byte(h.Name), nil
	}
	b, err := base64.StdEncoding.DecodeString(*h.Name64)
	if err != nil {
		return nil, fmt.Errorf("name64 of a header: %w", err)
	}
	return b, nil
}

// ValueBytes is the header's value: nil when it has none.
func (h HeaderPair) ValueBytes() ([]byte, error) {
	b, err := either(h.Value, h.Value64)
	if err != nil {
		return nil, fmt.Errorf("header %q: %w", h.Name, err)
	}
	return b, nil
}

func either(text, base *string) ([]byte, error) {
	switch {
	case text != nil:
		return append([]byte{}, *text...), nil
	case base == nil:
		return nil, nil
	}
	return base64.StdEncoding.DecodeString(*base)
}
