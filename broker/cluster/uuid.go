package cluster

import (
	"encoding/base64"
	"encoding/hex"
	"fmt"
)

// UUID identifies a topic for ever, whatever its name. The zero UUID means "none".
type UUID [16]byte

// String returns the canonical 8-4-4-4-12 form.
func (u UUID) String() string {
	var b [36]byte
	hex.Encode(b[0:8], u[0:4])
	b[8] = '-'
	hex.Encode(b[9:13], u[4:6])
	b[13] = '-'
	hex.Encode(b[14:18], u[6:8])
	b[18] = '-'
	hex.Encode(b[19:23], u[8:10])
	b[23] = '-'
	hex.Encode(b[24:36], u[10:16])
	return string(b[:])
}

// Base64 returns the form that Kafka's tools print: URL-safe base64 without padding.
func (u UUID) Base64() string { return base64.RawURLEncoding.EncodeToString(u[:]) }

// IsZero tells whether u is "none".
func (u UUID) IsZero() bool { return u == UUID{} }

// ParseUUID reads the canonical 8-4-4-4-12 form.
func ParseUUID(s string) (UUID, error) {
	var u UUID
	bad := func() (UUID, error) {
		return UUID{}, fmt.Errorf("topic id %q: use a UUID such as 0190c5f2-8f5e-7d3a-9c41-2b6f0e7a1d58", s)
	}
	if len(s) != 36 || s[8] != '-' || s[13] != '-' || s[18] != '-' || s[23] != '-' {
		return bad()
	}
	raw := s[0:8] + s[9:13] + s[14:18] + s[19:23] + s[24:36]
	if _, err := hex.Decode(u[:], []byte(raw)); err != nil {
		return bad()
	}
	return u, nil
}

// ParseBase64 reads the form that Kafka's files hold.
func ParseBase64(s string) (UUID, error) {
	var u UUID
	b, err := base64.RawURLEncoding.DecodeString(s)
	if err != nil || len(b) != len(u) {
		return UUID{}, fmt.Errorf("topic id %q: use 22 characters of URL-safe base64", s)
	}
	copy(u[:], b)
	return u, nil
}
