package chaos

import (
	"encoding/base64"
	bin "encoding/binary"
	"fmt"
)

// lease is what a receipt tells: to applications it is opaque, but order and
// ownership can only be judged by generation and lease.
type lease struct{ generation, seekEpoch, lease uint64 }

// readReceipt reads the first fields of a receipt (sidecar/consume, receipt):
// version 1, then generation, seek epoch and lease number as varints.
func readReceipt(text string) (lease, error) {
	b, err := base64.RawURLEncoding.DecodeString(text)
	if err != nil || len(b) < 4 || b[0] != 1 {
		return lease{}, fmt.Errorf("%q is no receipt of version 1", text)
	}
	var fields [3]uint64
	rest := b[1:]
	for i := range fields {
		v, n := bin.Uvarint(rest)
		if n <= 0 {
			return lease{}, fmt.Errorf("%q is a broken receipt", text)
		}
		fields[i], rest = v, rest[n:]
	}
	return lease{fields[0], fields[1], fields[2]}, nil
}
