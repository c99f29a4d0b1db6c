package recordtest

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"hash/crc32"
	"io"

	"github.com/klauspost/compress/flate"
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
	bomb  func(size int, runs []run) []byte
}

// Forms are all of them: with and without a size in the frame, where a codec has
// both.
var Forms = []Form{
	{"gzip", record.Gzip, func(to io.Writer, _ int) (io.WriteCloser, error) { return gzip.NewWriter(to), nil }, gzipBomb},
	{"zstd", record.Zstd, func(to io.Writer, _ int) (io.WriteCloser, error) {
		return zstd.NewWriter(to, zstd.WithEncoderConcurrency(1))
	}, func(_ int, runs []run) []byte { return zstdBomb(-1, runs) }},
	{"zstd-sized", record.Zstd, func(to io.Writer, size int) (io.WriteCloser, error) {
		w, err := zstd.NewWriter(nil, zstd.WithEncoderConcurrency(1))
		if err == nil {
			w.ResetContentSize(to, int64(size))
		}
		return w, err
	}, zstdBomb},
	{"lz4", record.LZ4, func(to io.Writer, _ int) (io.WriteCloser, error) { return lz4.NewWriter(to), nil }, func(_ int, runs []run) []byte { return lz4Bomb(-1, runs) }},
	{"lz4-sized", record.LZ4, func(to io.Writer, size int) (io.WriteCloser, error) {
		w := lz4.NewWriter(to)
		return w, w.Apply(lz4.SizeOption(uint64(size)))
	}, lz4Bomb},
	{"snappy", record.Snappy, func(to io.Writer, _ int) (io.WriteCloser, error) { return &snappy{to: to}, nil }, snappyBomb},
	{"snappy-framed", record.Snappy, func(to io.Writer, _ int) (io.WriteCloser, error) {
		_, err := to.Write([]byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01"))
		return &snappy{to: to, framed: true}, err
	}, framedBomb},
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
	var out bytes.Buffer
	w, err := f.pack(&out, len(b))
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil {
		err = w.Close()
	}
	if err != nil {
		panic(fmt.Sprintf("recordtest: %s: %v", f.Name, err))
	}
	return out.Bytes()
}

// run is some bytes and then so many zeros.
type run struct {
	head  []byte
	zeros int
}

// Bomb is a sound batch of so many records without a key, each with a value of
// so many zeros: a few bytes on the wire, and what you like in memory. It is put
// together from packed pieces, so that gigabytes cost little time.
func (f Form) Bomb(records, value int) []byte {
	var runs []run
	size := 0
	var before []byte // the end of the record before
	for i := range records {
		r := binary.AppendVarint([]byte{0, 0}, int64(i))
		r = binary.AppendVarint(r, -1)
		r = binary.AppendVarint(r, int64(value))
		head := append(binary.AppendVarint(before, int64(len(r)+value+1)), r...)
		runs = append(runs, run{head, value})
		size += len(head) + value
		before = []byte{0} // no headers
	}
	runs = append(runs, run{[]byte{0}, 0})
	return record.AppendBatch(nil, record.Header{
		Attributes: int16(f.Codec), LastOffsetDelta: int32(records - 1), Count: int32(records), LeaderEpoch: -1,
		ProducerID: -1, ProducerEpoch: -1, BaseSequence: -1, FirstTimestamp: bombTime, MaxTimestamp: bombTime,
	}, f.bomb(size+1, runs))
}

// bombTime is in 2026: retention lets it live.
const bombTime = 1_790_000_000_000

// deflated is a piece of deflate that needs nothing before it.
func deflated(b []byte, last bool) []byte {
	var out bytes.Buffer
	w, err := flate.NewWriter(&out, flate.DefaultCompression)
	if err == nil {
		_, err = w.Write(b)
	}
	if err == nil && last {
		err = w.Close()
	} else if err == nil {
		err = w.Flush()
	}
	if err != nil {
		panic(err) // it writes to memory
	}
	return out.Bytes()
}

func gzipBomb(size int, runs []run) []byte {
	const chunk = 1 << 20
	zeros := make([]byte, chunk)
	full := deflated(zeros, false)
	sum := crc32.NewIEEE()
	out := []byte{0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255} // RFC 1952
	var small []byte                                    // is packed together
	flush := func(last bool) {
		_, _ = sum.Write(small) // never fails
		out = append(out, deflated(small, last)...)
		small = small[:0]
	}
	for _, r := range runs {
		small = append(small, r.head...)
		if r.zeros < chunk {
			small = append(small, zeros[:r.zeros]...)
			continue
		}
		flush(false)
		for range r.zeros / chunk {
			_, _ = sum.Write(zeros)
			out = append(out, full...)
		}
		small = append(small, zeros[:r.zeros%chunk]...)
	}
	flush(true)
	out = binary.LittleEndian.AppendUint32(out, sum.Sum32())
	return binary.LittleEndian.AppendUint32(out, uint32(size))
}

// zstdBomb is blocks as they are and blocks of one byte, repeated (RFC 8878).
func zstdBomb(size int, runs []run) []byte {
	const most = 128 << 10
	out := []byte{0x28, 0xb5, 0x2f, 0xfd, 0, 0x58} // no checksum, a window of 2 MiB
	if size >= 0 {
		out[4] = 3 << 6 // eight bytes of size follow
		out = binary.LittleEndian.AppendUint64(out, uint64(size))
	}
	block := func(kind, size, last int) {
		word := size<<3 | kind<<1 | last
		out = append(out, byte(word), byte(word>>8), byte(word>>16))
	}
	for _, r := range runs {
		block(0, len(r.head), 0)
		out = append(out, r.head...)
		for left := r.zeros; left > 0; left -= most {
			block(1, min(left, most), 0)
			out = append(out, 0)
		}
	}
	block(0, 0, 1)
	return out
}

// lz4Bomb is blocks as they are and blocks of zeros, independent of each other.
func lz4Bomb(size int, runs []run) []byte {
	const most, stored = 4 << 20, 1 << 31
	frame := func(b []byte) (head, block []byte) {
		var out bytes.Buffer
		w := lz4.NewWriter(&out)
		options := []lz4.Option{lz4.ChecksumOption(false), lz4.BlockSizeOption(lz4.Block4Mb)}
		n := 7
		if size >= 0 {
			options, n = append(options, lz4.SizeOption(uint64(size))), 15
		}
		err := w.Apply(options...)
		if err == nil {
			_, err = w.Write(b)
		}
		if err == nil {
			err = w.Flush()
		}
		if err != nil {
			panic(err) // it writes to memory
		}
		return out.Bytes()[:n], out.Bytes()[n:]
	}
	zeros := make([]byte, most)
	out, full := frame(zeros)
	out = bytes.Clone(out)
	rests := map[int][]byte{}
	for _, r := range runs {
		out = append(binary.LittleEndian.AppendUint32(out, uint32(len(r.head))|stored), r.head...)
		for range r.zeros / most {
			out = append(out, full...)
		}
		rest := r.zeros % most
		if rest > 0 && rests[rest] == nil {
			_, rests[rest] = frame(zeros[:rest])
		}
		out = append(out, rests[rest]...)
	}
	return append(out, 0, 0, 0, 0)
}

// snappyBomb is literals, and copies of the byte before (snappy's
// format_description.txt).
func snappyBomb(size int, runs []run) []byte {
	out := binary.AppendUvarint(nil, uint64(size))
	for _, r := range runs {
		head := r.head
		if r.zeros > 0 {
			head = append(bytes.Clone(head), 0)
		}
		out = append(append(out, byte(len(head)-1)<<2), head...)
		for left := r.zeros - 1; left > 0; left -= 64 {
			out = append(out, byte(min(left, 64)-1)<<2|2, 1, 0)
		}
	}
	return out
}

// framedBomb is as Java frames it.
func framedBomb(_ int, runs []run) []byte {
	const most = 32 << 10
	zeros := make([]byte, most)
	out := []byte("\x82SNAPPY\x00\x00\x00\x00\x01\x00\x00\x00\x01")
	block := func(b []byte) { out = append(binary.BigEndian.AppendUint32(out, uint32(len(b))), b...) }
	full := s2.EncodeSnappy(nil, zeros)
	for _, r := range runs {
		block(s2.EncodeSnappy(nil, r.head))
		for range r.zeros / most {
			block(full)
		}
		if rest := r.zeros % most; rest > 0 {
			block(s2.EncodeSnappy(nil, zeros[:rest]))
		}
	}
	return out
}
