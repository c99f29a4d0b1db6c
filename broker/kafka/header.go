package kafka

import (
	"encoding/binary"
	"errors"
	"fmt"
)

// header is a request header, versions 1 and 2 (Kafka protocol guide, "Request Header").
type header struct {
	key         int16
	version     int16
	correlation int32
	clientID    string
}

var errShortHeader = errors.New("request is shorter than its header")

// parseHeader reads the header of a request frame (without the frame's length) and returns the body after it. Whether
// the header ends in tagged fields depends on the key and version, which flexible tells; a request whose version is
// not known is returned with a nil body, because where the body begins is not known either.
func parseHeader(frame []byte, flexible func(key, version int16) (isFlexible, known bool)) (h header, body []byte, err error) {
	if len(frame) < 8 {
		return h, nil, errShortHeader
	}
	h.key = int16(binary.BigEndian.Uint16(frame))
	h.version = int16(binary.BigEndian.Uint16(frame[2:]))
	h.correlation = int32(binary.BigEndian.Uint32(frame[4:]))
	isFlexible, known := flexible(h.key, h.version)
	if !known {
		return h, nil, nil
	}
	rest := frame[8:]
	if len(rest) < 2 {
		return h, nil, errShortHeader
	}
	n := int(int16(binary.BigEndian.Uint16(rest)))
	rest = rest[2:]
	if n > 0 {
		if n > len(rest) {
			return h, nil, errShortHeader
		}
		h.clientID = string(rest[:n])
		rest = rest[n:]
	}
	if isFlexible {
		if rest, err = skipTags(rest); err != nil {
			return h, nil, err
		}
	}
	return h, rest, nil
}

// skipTags skips a tagged-field section (KIP-482).
func skipTags(b []byte) ([]byte, error) {
	count, n := binary.Uvarint(b)
	if n <= 0 {
		return nil, errShortHeader
	}
	b = b[n:]
	for ; count > 0; count-- {
		_, n := binary.Uvarint(b)
		if n <= 0 {
			return nil, errShortHeader
		}
		b = b[n:]
		size, n := binary.Uvarint(b)
		if n <= 0 || size > uint64(len(b)-n) {
			return nil, fmt.Errorf("tagged field of %d bytes in the request header: %w", size, errShortHeader)
		}
		b = b[n+int(size):]
	}
	return b, nil
}
