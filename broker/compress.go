package broker

import (
	"bytes"
	"compress/gzip"
	"fmt"
	"io"

	"github.com/klauspost/compress/s2"
	"github.com/klauspost/compress/zstd"
	"github.com/pierrec/lz4/v4"

	"sidestream/broker/record"
)

// compress is the reverse of decompress, for batches that compaction has thinned out.
func compress(codec record.Codec, src []byte) ([]byte, error) {
	var out bytes.Buffer
	var w io.WriteCloser
	switch codec {
	case record.None:
		return src, nil
	case record.Snappy:
		return s2.EncodeSnappy(nil, src), nil
	case record.Gzip:
		w = gzip.NewWriter(&out)
	case record.LZ4:
		w = lz4.NewWriter(&out)
	case record.Zstd:
		enc, err := zstd.NewWriter(&out, zstd.WithEncoderConcurrency(1), zstd.WithLowerEncoderMem(true))
		if err != nil {
			return nil, err
		}
		w = enc
	default:
		return nil, fmt.Errorf("codec %d is not known", codec)
	}
	if _, err := w.Write(src); err != nil {
		_ = w.Close()
		return nil, fmt.Errorf("packing %v: %w", codec, err)
	}
	if err := w.Close(); err != nil {
		return nil, fmt.Errorf("packing %v: %w", codec, err)
	}
	return out.Bytes(), nil
}
