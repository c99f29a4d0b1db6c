package recordtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"io"

	"github.com/klauspost/compress/gzip"
	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sidestream/broker/record"
)

// Form is a way to compress a batch; some codecs have more than one.
type Form struct {
	Name  string
	Codec record.Codec
	pack  func(to io.Writer, size int) (io.WriteCloser, error)
}

// Forms are all of them: with and without a size in the frame, where a codec has
// both.
var Forms = []Form{
	{"gzip", record.Gzip, func(to io.Writer, _ int) (io.WriteCloser, error) { return gzip.NewWriterLevel(to, 9) }},
	{"zstd", record.Zstd, func(to io.Writer, _ int) (io.WriteCloser, error) {
		return zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
	}},
	{"zstd-sized", record.Zstd, func(to io.Writer, size int) (io.WriteCloser, error) {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err == nil {
			w.ResetContentSize(to, int64(size))
		}
		return w, err
	}},
	{"lz4", record.LZ4, func(to io.Writer, _ int) (io.WriteCloser, error) { return lz4.NewWriter(to), nil }},
	{"lz4-sized", record.LZ4, func(to io.Writer, size int) (io.WriteCloser, error) {
		w := lz4.NewWriter(to)
		return w, w.Apply(lz4.SizeOption(uint64(size)))
	}},
	{"snappy", record.Snappy, func(to io.Writer, _ int) (io.WriteCloser, error) { return &snappy{to: to}, nil }},
	{"snappy-framed", record.Snappy, func(to io.Writer, _ int) (io.WriteCloser, error) {
		_, err := to.Write([]byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"))
		return &snappy{to: to, framed: true}, err
	}},
}

// snappy writes one block at its end, or one for each piece.
type snappy struct {
	to     io.Writer
	framed bool
	all    []byte
}

func (s *snappy) Write(p []byte) (int, error) {
	if !s.framed {
		s.all = append(s.all, p...)
		return len(p), nil
	}
	for rest := p; len(rest) > 0; {
		n := min(len(rest), 1<<15)
		block := s2.EncodeSnappy(nil, rest[:n])
		if _, err := s.to.Write(append(binary.BigEndian.AppendUint32(nil, uint32(len(block))), block...)); err != nil {
			return 0, err
		}
		rest = rest[n:]
	}
	return len(p), nil
}

func (s *snappy) Close() error {
	if s.framed {
		return nil
	}
	_, err := s.to.Write(s2.EncodeSnappy(nil, s.all))
	return err
}

// Pack compresses bytes.
func (f Form) Pack(b []byte) []byte {
	return f.body(len(b), func(w io.Writer) error { _, err := w.Write(b); return err })
}

func (f Form) body(size int, write func(io.Writer) error) []byte {
	var out bytes.Buffer
	w, err := f.pack(&out, size)
	if err == nil {
		err = write(w)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("recordtest: %s: %v", f.Name, err))
	}
	return out.Bytes()
}

// Bomb is a sound batch of so many records without a key, each with a value of
// so many zeros: a few bytes on the wire, and what you like in memory.
func (f Form) Bomb(records, value int) []byte {
	head := func(i int) []byte {
		r := binary.AppendVarint([]byte{0, 0}, int64(i))
		r = binary.AppendVarint(r, -1)
		r = binary.AppendVarint(r, int64(value))
		return append(binary.AppendVarint(nil, int64(len(r)+value+1)), r...)
	}
	size := 0
	for i := range records {
		size += len(head(i)) + value + 1
	}
	zeros := make([]byte, min(value, 1<<20))
	body := f.body(size, func(w io.Writer) error {
		for i := range records {
			if _, err := w.Write(head(i)); err != nil {
				return err
			}
			for left := value; left > 0; {
				n, err := w.Write(zeros[:min(left, len(zeros))])
				if err != nil {
					return err
				}
				left -= n
			}
			if _, err := w.Write([]byte{0}); err != nil { // no headers
				return err
			}
		}
		return nil
	})
	return record.AppendBatch(nil, record.Header{
		Attributes: int16(f.Codec), LastOffsetDelta: int32(records - 1), Count: int32(records), LeaderEpoch: -1,
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, FirstTimestamp: bombTime, MaxTimestamp: bombTime,
	}, body)
}

// bombTime is in 2026: retention lets it live.
const bombTime = 1_790_000_000_000
