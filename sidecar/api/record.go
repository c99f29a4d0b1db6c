package api

import (
	"bytes"
	"encoding/base64"
	"time"
	"unsafe"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sidecar/publish"
)

// recordReader reads api.Records as readRecord does, much faster. The messages
// point into what was read and into its memory, which both must stay until they
// are not used any more.
type recordReader struct {
	bytes      byteArena
	partitions []int32
	headers    []kgo.RecordHeader
}

// read reads the object that begins at b[i], which is UTF-8, and returns its
// end. unknown: readRecord must read it.
func (r *recordReader) read(b []byte, i int, m *publish.Message) (end int) {
	if i = skipSpace(b, i); i >= len(b) || b[i] != '{' {
		return unknown
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1
	}
	var met, given field
	for {
		if i = skipSpace(b, i); i >= len(b) || b[i] != '"' {
			return unknown
		}
		name := i + 1
		if i = nextSpecial(b, name); i >= len(b) || b[i] != '"' {
			return unknown
		}
		f := fieldNamed(b[name:i])
		if f == 0 || met&f != 0 {
			return unknown
		}
		met |= f
		if i = skipSpace(b, i+1); i >= len(b) || b[i] != ':' {
			return unknown
		}
		i = skipSpace(b, i+1)
		if end := skipWord(b, i, "null"); end != unknown {
			i = end // as if it were not there
		} else {
			given |= f
			if i = r.field(f, b, i, m); i == unknown {
				return unknown
			}
		}
		if i = skipSpace(b, i); i >= len(b) {
			return unknown
		}
		switch b[i] {
		case '}':
			if given&(fieldValue|fieldValue64) == fieldValue|fieldValue64 || given&(fieldKey|fieldKey64) == fieldKey|fieldKey64 {
				return unknown
			}
			return i + 1
		case ',':
			i++
		default:
			return unknown
		}
	}
}

// field is a set of fields of a record.
type field uint8

const (
	fieldValue field = 1 << iota
	fieldValue64
	fieldKey
	fieldKey64
	fieldHeaders
	fieldPartition
	fieldTimestamp
)

func fieldNamed(name []byte) field {
	switch string(name) {
	case "value":
		return fieldValue
	case "value64":
		return fieldValue64
	case "key":
		return fieldKey
	case "key64":
		return fieldKey64
	case "headers":
		return fieldHeaders
	case "partition":
		return fieldPartition
	case "ts":
		return fieldTimestamp
	}
	return 0
}

// field reads the value of one field, which is not null, and returns its end.
func (r *recordReader) field(f field, b []byte, i int, m *publish.Message) (end int) {
	switch f {
	case fieldValue:
		if i < len(b) && b[i] == '"' {
			m.Value, end = readString(b, i+1, &r.bytes)
			return end
		}
		if end = skipValue(b, i, 1); end != unknown {
			m.Value = b[i:end:end]
		}
		return end
	case fieldKey:
		if i < len(b) && b[i] == '"' {
			m.Key, end = readString(b, i+1, &r.bytes)
			return end
		}
	case fieldValue64:
		m.Value, end = r.base64(b, i)
		return end
	case fieldKey64:
		m.Key, end = r.base64(b, i)
		return end
	case fieldHeaders:
		return r.readHeaders(b, i, m)
	case fieldPartition:
		n, end := readInteger(b, i, 1<<31-1)
		if end != unknown {
			r.partitions = append(r.partitions, int32(n))
			m.Partition = &r.partitions[len(r.partitions)-1]
		}
		return end
	case fieldTimestamp:
		n, end := readInteger(b, i, maxTimestamp)
		if end != unknown {
			m.Timestamp = time.UnixMilli(n)
		}
		return end
	}
	return unknown
}

// readInteger reads a whole number from 0 to most.
func readInteger(b []byte, i int, most int64) (n int64, end int) {
	end = skipDigits(b, i)
	if end == unknown || b[i] == '0' && end > i+1 || end-i > 18 {
		return 0, unknown
	}
	if end < len(b) && (b[end] == '.' || b[end]|0x20 == 'e') {
		return 0, unknown
	}
	for _, c := range b[i:end] {
		n = n*10 + int64(c-'0')
	}
	if n > most {
		return 0, unknown
	}
	return n, end
}

func (r *recordReader) base64(b []byte, i int) (_ []byte, end int) {
	if i >= len(b) || b[i] != '"' {
		return nil, unknown
	}
	begin := i + 1
	i = nextSpecial(b, begin)
	if i >= len(b) || b[i] != '"' {
		return nil, unknown
	}
	text := bytes.TrimRight(b[begin:i], "=")
	n, err := base64.RawStdEncoding.Decode(r.bytes.room(base64.RawStdEncoding.DecodedLen(len(text))), text)
	if err != nil { // perhaps it is in the URL alphabet
		return nil, unknown
	}
	return r.bytes.take(n), i + 1
}

// mostSorted is how many headers of a record are sorted as they come; more take
// a better way of sorting.
const mostSorted = 32

// readHeaders reads headers: a list as it is, or an object sorted by name, as
// readRecord does.
func (r *recordReader) readHeaders(b []byte, i int, m *publish.Message) (end int) {
	if i < len(b) && b[i] == '[' {
		first := len(r.headers)
		if end = r.readHeaderList(b, i); end != unknown && len(r.headers) > first {
			m.Headers = r.headers[first:len(r.headers):len(r.headers)]
		}
		return end
	}
	if i >= len(b) || b[i] != '{' {
		return unknown
	}
	if i = skipSpace(b, i+1); i < len(b) && b[i] == '}' {
		return i + 1
	}
	first := len(r.headers)
	for {
		if i = skipSpace(b, i); i >= len(b) || b[i] != '"' {
			return unknown
		}
		var name, value []byte
		if name, i = readString(b, i+1, &r.bytes); i == unknown {
			return unknown
		}
		if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
			return unknown
		}
		if i = skipSpace(b, i+1); i >= len(b) || b[i] != '"' {
			return unknown
		}
		if value, i = readString(b, i+1, &r.bytes); i == unknown {
			return unknown
		}
		if i = skipSpace(b, i); i >= len(b) {
			return unknown
		}
		if len(name) == 0 {
			return unknown
		}
		h := kgo.RecordHeader{Key: textIn(name), Value: value}
		at := len(r.headers)
		if at-first >= mostSorted {
			return unknown
		}
		for at > first && r.headers[at-1].Key >= h.Key {
			if at--; r.headers[at].Key == h.Key {
				return unknown
			}
		}
		r.headers = append(r.headers, kgo.RecordHeader{})
		copy(r.headers[at+1:], r.headers[at:])
		r.headers[at] = h
		switch b[i] {
		case '}':
			m.Headers = r.headers[first:len(r.headers):len(r.headers)]
			return i + 1
		case ',':
			i++
		default:
			return unknown
		}
	}
}

// textIn is bytes as a text that lives where they do.
func textIn(b []byte) string { return unsafe.String(unsafe.SliceData(b), len(b)) }
