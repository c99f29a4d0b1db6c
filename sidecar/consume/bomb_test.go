package consume

import (
	"bytes"
	"context"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kbin"
	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
)

// bombTime is in 2026, in milliseconds.
const bombTime = 1_790_000_000_000

var bombCodecs = map[string]kgo.CompressionCodec{
	"gzip": kgo.GzipCompression(), "zstd": kgo.ZstdCompression(), "lz4": kgo.Lz4Compression(), "snappy": kgo.SnappyCompression(),
}

// packedRecords are so many records, each with a value of so many zeros,
// compressed.
func packedRecords(t *testing.T, codec kgo.CompressionCodec, count int32, value int) ([]byte, kgo.CompressionCodecType) {
	t.Helper()
	c, err := kgo.DefaultCompressor(codec)
	if err != nil {
		t.Fatal(err)
	}
	var plain []byte
	for i := range count {
		b := kbin.AppendVarint([]byte{0, 0}, i)
		b = kbin.AppendVarint(b, -1)
		b = kbin.AppendVarintBytes(b, make([]byte, value))
		b = append(b, 0)
		plain = append(kbin.AppendVarint(plain, int32(len(b))), b...)
	}
	out, is := c.Compress(new(bytes.Buffer), plain)
	return bytes.Clone(out), is
}

// bomb writes a compressed batch and returns its offset.
func (l *lab) bomb(topic string, codec kgo.CompressionCodec, count int32, value int) int64 {
	l.t.Helper()
	packed, is := packedRecords(l.t, codec, count, value)
	return l.producePacked(topic, 0, count, is, packed)
}

// idle waits until the memory for unpacking is all there again.
func (h *host) idle() {
	h.lab.t.Helper()
	ctx, cancel := context.WithTimeout(h.lab.t.Context(), deadline)
	defer cancel()
	claim := h.up.Unpacking().Claim()
	defer claim.Release()
	if err := claim.Take(ctx, 2*h.lab.unpack); err != nil {
		h.lab.t.Fatalf("memory for unpacking was not given back: %v", err)
	}
}

// One batch that unpacks to more than the memory of its reader took the whole
// sidecar down, again after each start, and nobody was told. It costs one letter,
// of all its offsets, and what is before and behind it is delivered.
func TestABombCostsOneLetter(t *testing.T) {
	t.Parallel()
	for name, codec := range bombCodecs {
		for _, c := range []struct {
			what   string
			count  int32
			value  int
			before int
		}{
			{"one record", 1, 2 << 20, 0},
			{"one record behind good ones", 1, 2 << 20, 3},
			{"many records", 300, 8 << 10, 2},
			{"many that are empty", 30_000, 0, 2},
		} {
			t.Run(strings.ReplaceAll(name+" "+c.what, " ", "-"), func(t *testing.T) {
				t.Parallel()
				l := newLab(t, map[string]int32{"views": 1})
				l.unpack = 1 << 20
				if c.before > 0 {
					l.produce("views", 0, 0, c.before)
				}
				at := l.bomb("views", codec, c.count, c.value)
				l.produce("views", 0, 100, 3)
				a := l.host("a")
				var got []api.Message
				for len(got) < c.before+3 {
					d := a.pullSome(PullRequest{Group: "g", Topic: "views"})
					a.ackAll("g", "views", d)
					got = append(got, d.Messages...)
				}
				after := at + int64(c.count)
				if got[c.before].Offset != after || *got[c.before].Value != "100" {
					t.Fatalf("delivered %s", offsetsOf(got))
				}
				if at := a.position("g", "views"); at != after+3 {
					t.Errorf("position %d", at)
				}
				ls := a.letters("g", "views")
				if len(ls) != 1 {
					t.Fatalf("%d letters: %+v", len(ls), ls)
				}
				letter := ls[0]
				if letter.Reason != kindOversized || letter.Offset != at || letter.Until != after || letter.Message.Value != nil ||
					letter.LeftOut < 61 || letter.LeftOut > 1<<20 || letter.Timestamp != bombTime || !strings.Contains(letter.Error, "kafka.max_unpacked_bytes") {
					t.Errorf("%+v", letter)
				}
				a.idle()
			})
		}
	}
}

// The group's policy holds for it as for all that cannot be delivered.
func TestABombUnderSkipAndStop(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1})
	l.unpack = 1 << 20
	at := l.bomb("views", kgo.GzipCompression(), 5, 1<<20)
	l.produce("views", 0, 100, 3)
	a := l.host("a")
	for _, g := range []string{"skip", "stop"} {
		if _, err := a.m.Configure(t.Context(), g, api.GroupConfig{Unreadable: g}); err != nil {
			t.Fatal(err)
		}
	}
	d := a.pullSome(PullRequest{Group: "skip", Topic: "views"})
	if d.Messages[0].Offset != at+5 || len(a.letters("skip", "views")) != 0 {
		t.Errorf("delivered %s", offsetsOf(d.Messages))
	}
	req := PullRequest{Group: "stop", Topic: "views"}
	eventually(t, "corrupt_record", func() bool { return *a.pull(req).Reason == api.ReasonCorruptRecord })
	if _, err := a.m.Seek(t.Context(), "stop", "views", api.SeekRequest{Offsets: map[string]int64{"0": at + 5}}); err != nil {
		t.Fatal(err)
	}
	if d := a.pullSome(req); *d.Messages[0].Value != "100" {
		t.Errorf("behind it: %+v", d.Messages[0])
	}
	a.idle()
}

// A bomb in the topic of dead letters hides no letter behind it, and its own
// letter comes back where there is the memory for its message.
func TestLettersOfBombs(t *testing.T) {
	t.Parallel()
	l := newLab(t, map[string]int32{"views": 1, "dead.g": 1})
	l.unpack = 1 << 20
	l.bomb("dead.g", kgo.ZstdCompression(), 4, 3<<20)
	l.bomb("views", kgo.ZstdCompression(), 1, 1<<20-246) // with what a record takes it is too much, and the topic takes it
	l.bomb("views", kgo.ZstdCompression(), 4, 3<<20)
	l.produce("views", 0, 100, 1)
	a := l.host("a")
	a.ackAll("g", "views", a.pullSome(PullRequest{Group: "g", Topic: "views"}))
	ls := a.letters("g", "views")
	if len(ls) != 2 || ls[0].Until != 1 || ls[1].Offset != 1 || ls[1].Until != 5 {
		t.Fatalf("%+v", ls)
	}
	out := a.redrive("g", "views", api.RedriveRequest{})
	if out.Redriven != 0 || len(out.Kept) != 2 || out.Kept[0].Error.Code != api.CodeMessageTooLarge ||
		!strings.Contains(out.Kept[0].Error.Message, "offset 1 to 4") {
		t.Fatalf("%+v", out)
	}
	a.idle()
	a.close()
	l.unpack = 8 << 20
	b := l.host("b")
	b.group("g")
	if out = b.redrive("g", "views", api.RedriveRequest{}); out.Redriven != 1 || len(out.Kept) != 1 || !strings.Contains(out.Kept[0].Error.Message, "seek the group to offset 1") {
		t.Fatalf("with more memory: %+v", out)
	}
	b.idle()
}

// An answer of batches that each are within the limit, and small where they are
// stored, was unpacked whole: a megabyte of them takes gigabytes. They come one
// after the other, and what is held stays within the budget.
func TestBatchesThatGrowComeOneByOne(t *testing.T) {
	const each, batches, groups = 3 << 20, 20, 4
	l := newLab(t, map[string]int32{"views": 1})
	l.unpack = 4 << 20
	for range batches {
		l.bomb("views", kgo.GzipCompression(), 3, each/3-100)
	}
	const process, prefetch = 12 << 20, 4 << 20
	a := l.host("a", func(c *Config) { c.ProcessBytes, c.PrefetchBytes = process, prefetch })
	for i := range groups { // they acknowledge nothing
		a.pullSome(PullRequest{Group: fmt.Sprint("slow", i), Topic: "views", Max: 1, Lease: time.Hour})
	}
	var most, heap uint64
	seen := []int64{}
	for len(seen) < 3*batches {
		d := a.pullSome(PullRequest{Group: "quick", Topic: "views"})
		for _, m := range d.Messages {
			seen = append(seen, m.Offset)
		}
		a.ackAll("quick", "views", d)
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		most, heap = max(most, uint64(a.m.reader.budget.held.Load())), max(heap, m.HeapInuse)
		if len(seen)%15 == 0 {
			for i := range groups { // now they do, or nothing large would come to anybody
				req := PullRequest{Group: fmt.Sprint("slow", i), Topic: "views"}
				if d := a.pull(req); len(d.Messages) > 0 {
					a.ackAll(req.Group, "views", d)
				}
			}
		}
	}
	if !slices.IsSorted(seen) || seen[len(seen)-1] != 3*batches-1 {
		t.Errorf("delivered %v", seen)
	}
	// Who holds nothing while the budget is not all taken may have one batch.
	if limit := uint64(process + 8<<20 + 2*each); most > limit {
		t.Errorf("%d bytes were held, at most %d wanted", most, limit)
	}
	t.Logf("most held %d, heap %d", most, heap)
	a.idle()
}
