package publish

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/twmb/franz-go/pkg/kgo"
)

// settings are what holds for a topic's messages, and may change while the
// publisher runs.
type settings struct {
	compressor kgo.Compressor // nil: none
	topics     map[string]topicSettings
}

// topicSettings are those of one topic.
type topicSettings struct {
	keyField   string
	compressor kgo.Compressor
	own        bool // its compressor is its own, be it nil
}

func (s *settings) compressorOf(topic string) kgo.Compressor {
	if t, ok := s.topics[topic]; ok && t.own {
		return t.compressor
	}
	return s.compressor
}

// newSettings reads those parts of a configuration that may change.
func newSettings(cfg Config) (*settings, error) {
	c, err := compressorOf(cfg.Compression)
	if err != nil {
		return nil, fmt.Errorf("compression: %w", err)
	}
	s := &settings{compressor: c, topics: make(map[string]topicSettings, len(cfg.Topics))}
	for topic, text := range cfg.Topics {
		if s.topics[topic], err = readTopicSettings(text); err != nil {
			return nil, fmt.Errorf("topics.%s: %w", topic, err)
		}
	}
	return s, nil
}

// readTopicSettings reads words such as key_field=/user/id compression=zstd:9.
func readTopicSettings(text string) (t topicSettings, err error) {
	for word := range strings.FieldsSeq(text) {
		name, value, _ := strings.Cut(word, "=")
		switch {
		case name == "key_field" && value != "":
			t.keyField = value
		case name == "compression" && value != "":
			if t.compressor, err = compressorOf(value); err != nil {
				return t, fmt.Errorf("compression: %w", err)
			}
			t.own = true
		default:
			return t, fmt.Errorf("got %q: use words such as key_field=/user/id and compression=zstd:9, with a space between them", word)
		}
	}
	return t, nil
}

const codecForm = "use none, gzip, snappy, lz4 or zstd, and for gzip, lz4 and zstd a level behind a colon where you want one, such as zstd:9"

// compressorOf reads a codec with its level, such as zstd:9; nil for none.
func compressorOf(text string) (kgo.Compressor, error) {
	name, level, leveled := strings.Cut(text, ":")
	codecs := map[string]struct {
		codec       kgo.CompressionCodec
		least, most int // levels
	}{
		"":       {},
		"none":   {},
		"gzip":   {kgo.GzipCompression(), 1, 9},
		"snappy": {codec: kgo.SnappyCompression()},
		"lz4":    {kgo.Lz4Compression(), 1, 9},
		"zstd":   {kgo.ZstdCompression(), 1, 22},
	}
	c, ok := codecs[name]
	if !ok || leveled && c.most == 0 {
		return nil, fmt.Errorf("got %q: %s", text, codecForm)
	}
	if name == "" || name == "none" {
		return nil, nil
	}
	if leveled {
		n, err := strconv.Atoi(level)
		if err != nil || n < c.least || n > c.most {
			return nil, fmt.Errorf("got %q: the level of %s is a number from %d to %d", text, name, c.least, c.most)
		}
		c.codec = c.codec.WithLevel(levelOf(name, n))
	}
	return kgo.DefaultCompressor(c.codec)
}

// Configure takes over from a new configuration what may change while the
// publisher runs: compression and topics. An error changes nothing.
func (p *Publisher) Configure(cfg Config) error {
	s, err := newSettings(cfg)
	if err != nil {
		return err
	}
	p.settings.Store(s)
	return nil
}

// KeyField is the field of a topic's values that its messages without a key take
// theirs from, by the configuration; "" for none.
func (p *Publisher) KeyField(topic string) string { return p.settings.Load().topics[topic].keyField }

// levelOf is a codec's level as its compressor counts them.
func levelOf(codec string, n int) int {
	switch codec {
	case "lz4": // lz4.Level1 is 1<<9, and so on
		return 1 << (8 + n)
	case "zstd": // four encoders stand for zstd's levels: see zstd.EncoderLevelFromZstd
		switch {
		case n < 3:
			return 1
		case n < 6:
			return 2
		case n < 10:
			return 3
		}
		return 4
	}
	return n
}
