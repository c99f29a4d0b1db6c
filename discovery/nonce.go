package discovery

import (
	"crypto/rand"
	"fmt"
)

// NewNonce makes a random text of 26 characters (130 bits, base32) that no
// other call ever returns: it marks a writer, a data folder or a session.
func NewNonce() string { return rand.Text() }

// NewUUID makes a random UUID (RFC 9562, version 4) in its canonical
// 8-4-4-4-12 form.
func NewUUID() string {
	var b [16]byte
	rand.Read(b[:]) // never fails: the runtime aborts when there is no randomness
	b[6] = b[6]&0x0f | 0x40
	b[8] = b[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", b[0:4], b[4:6], b[6:8], b[8:10], b[10:16])
}
