package consume

import (
	"slices"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"
)

func equalRecords(a, b *kgo.Record) bool {
	same := func(a, b []byte) bool { return string(a) == string(b) && (a == nil) == (b == nil) }
	return same(a.Key, b.Key) && same(a.Value, b.Value) && slices.EqualFunc(a.Headers, b.Headers, func(a, b kgo.RecordHeader) bool {
		return a.Key == b.Key && same(a.Value, b.Value)
	})
}

// Whatever a message is, its letter gives it back, and a letter of a letter
// gives back the letter.
func TestPropertyLetterGivesTheMessageBack(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bytes := func(name string) []byte {
			if rapid.IntRange(0, 3).Draw(t, name+" is nil") == 0 {
				return nil
			}
			return rapid.SliceOf(rapid.Byte()).Draw(t, name)
		}
		r := &kgo.Record{Key: bytes("key"), Value: bytes("value")}
		for range rapid.IntRange(0, 4).Draw(t, "headers") {
			r.Headers = append(r.Headers, kgo.RecordHeader{Key: rapid.String().Draw(t, "name"), Value: bytes("header")})
		}
		l := letter{
			id: "i/d", reason: kindOversized, group: "g", topic: "t", partition: 7, offset: 12, until: 13,
			attempts: rapid.IntRange(0, 1000).Draw(t, "attempts"), err: rapid.String().Draw(t, "error"), first: rapid.String().Draw(t, "first error"),
			at: time.UnixMilli(1e12), millis: rapid.Int64().Draw(t, "ts"),
		}
		written := l.record("dead.g", r, whole)
		got, m, ok := letterOf(written)
		want := l
		want.err, want.first = clip(l.err, maxDeadError), clip(l.first, maxDeadError)
		if l.first == l.err {
			want.first = ""
		}
		got.at = got.at.Local()
		if want.at = want.at.Local(); !ok || got != want || !equalRecords(m, r) {
			t.Fatalf("%+v, %v; want %+v", got, ok, want)
		}
		outer := letter{id: "i/d/2", reason: "max_attempts", group: "h", topic: "dead.g", offset: 1, until: 2, at: time.UnixMilli(2e12)}
		again, inner, ok := letterOf(outer.record("dead.h", written, whole))
		if !ok || again.id != outer.id || again.group != "h" || !equalRecords(inner, written) {
			t.Fatalf("%+v, %v", again, ok)
		}
		for p, kept := range map[portion]*kgo.Record{withoutValue: {Key: r.Key, Headers: r.Headers}, bare: {}} {
			short, m, ok := letterOf(l.record("dead.g", r, p))
			left := len(r.Value)
			if p == bare {
				left = sizeOf(r) - recordOverhead
			}
			if !ok || short.leftOut != left || !equalRecords(m, kept) {
				t.Fatalf("%d: %+v, %v", p, short, ok)
			}
		}
	})
}

func TestLetterOfOtherRecords(t *testing.T) {
	good := letter{id: "x", reason: "r", group: "g", topic: "t", offset: 3, until: 9, at: time.Now()}.record("d", &kgo.Record{}, whole)
	if l, _, ok := letterOf(good); !ok || l.until != 9 {
		t.Errorf("%+v, %v", l, ok)
	}
	for name, change := range map[string]func(h *kgo.RecordHeader){
		"an empty id":     func(h *kgo.RecordHeader) { h.Value = nil },
		"no group":        func(h *kgo.RecordHeader) { h.Key = strings.Replace(h.Key, headerDeadGroup, "x", 1) },
		"a bad offset":    func(h *kgo.RecordHeader) { h.Value = []byte(strings.Replace(string(h.Value), "3", "-3", 1)) },
		"no block at all": func(h *kgo.RecordHeader) { h.Key = "other" },
	} {
		r := *good
		r.Headers = slices.Clone(good.Headers)
		for i := range r.Headers {
			h := &r.Headers[i]
			if name != "an empty id" || h.Key == headerDeadID {
				change(h)
			}
		}
		if _, _, ok := letterOf(&r); ok {
			t.Errorf("%s: a letter all the same", name)
		}
	}
}

func TestClip(t *testing.T) {
	for in, want := range map[string]string{"abc": "abc", "abcdef": "abcd", "abcé": "abc", "äöüß": "äö", "ab\xff\xff\xff\xff": "ab"} {
		if got := clip(in, 4); len(got) > 4 || utf8.ValidString(in) && !utf8.ValidString(got) || utf8.ValidString(in) && got != want {
			t.Errorf("%q: %q", in, got)
		}
	}
}

func TestDeadCursor(t *testing.T) {
	c := deadCursor{0: {5, 9}, 12: {0, 1 << 60}}
	text := c.String()
	got, err := parseDeadCursor(text)
	if err != nil || len(got) != 2 || got[0] != c[0] || got[12] != c[12] {
		t.Fatalf("%s: %v, %v", text, got, err)
	}
	for _, bad := range []string{"", "x", "0", "0.1", "0.1-1", "0.2-1", "-1.0-1", "0.-1-4", "0.1-2,", "99999999999.0-1"} {
		if _, err := parseDeadCursor(bad); err == nil {
			t.Errorf("%q is taken", bad)
		}
	}
}
