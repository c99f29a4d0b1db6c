package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"

	"sidestream/sidecar/publish"
)

// A pointer of 1,000 names into a value of 1.8 MB took 47 seconds: the value was
// decoded again for each name, and its size looked at after that.
func TestAKeyIsFoundInOnePass(t *testing.T) {
	const levels = 1000
	filler := strings.Repeat("x", 1800)
	var b strings.Builder
	for range levels {
		fmt.Fprintf(&b, `{"x":"%s","a":`, filler)
	}
	b.WriteString(`"key"` + strings.Repeat("}", levels))
	nested, path := []byte(b.String()), strings.Repeat("/a", levels)
	list := []byte(`{"a":[` + strings.Repeat(`0,`, 900_000) + `"last"]}`)
	var r recordReader
	for what, find := range map[string]func() ([]byte, error){
		"nested": func() ([]byte, error) { return decodeKey(nested, pathOf(path)) },
		"fast": func() ([]byte, error) {
			_, err := r.findKey(nested, pathOf(path))
			return []byte("key"), ignoreNotKnown(err)
		},
		"list": func() ([]byte, error) { return decodeKey(list, pathOf("/a/900000")) },
	} {
		begun := time.Now()
		key, err := find()
		if took := time.Since(begun); err != nil || string(key) != "key" && string(key) != "last" || took > 2*time.Second {
			t.Errorf("%s: %q, %v after %s", what, key, err, took)
		}
	}
	// It is not looked into a value that is refused for its size.
	large := publish.Message{Value: nested}
	if (keyField{name: path, most: len(nested) - 1}).isFor(&large) || !(keyField{name: path, most: len(nested)}).isFor(&large) {
		t.Error("the size does not come first")
	}
}

func ignoreNotKnown(err error) error {
	if errors.Is(err, errNotKnown) {
		return nil
	}
	return err
}

// byLevels finds a key with encoding/json, level by level.
func byLevels(raw []byte, path []string) ([]byte, bool) {
	if !utf8.Valid(raw) {
		return nil, false
	}
	for _, name := range path {
		var fields map[string]json.RawMessage
		var items []json.RawMessage
		raw = bytes.TrimSpace(raw)
		switch {
		case json.Unmarshal(raw, &fields) == nil && fields != nil:
			next, ok := fields[name]
			if !ok {
				return nil, false
			}
			raw = next
		case json.Unmarshal(raw, &items) == nil && items != nil:
			at := -1
			for i := range items {
				if fmt.Sprint(i) == name {
					at = i
				}
			}
			if at < 0 {
				return nil, false
			}
			raw = items[at]
		default:
			return nil, false
		}
	}
	if raw = bytes.TrimSpace(raw); len(raw) == 0 || string(raw) == "null" || !json.Valid(raw) {
		return nil, false
	}
	key, err := textOf(raw)
	return key, err == nil
}

// What one pass finds is what encoding/json finds level by level.
func TestOnePassAgrees(t *testing.T) {
	name := rapid.SampledFrom([]string{`"a"`, `"b"`, `"0"`, `"1"`, `""`, `"\u0061"`, `"é"`, `"a\"b"`})
	space := rapid.SampledFrom([]string{"", "", "", " ", "\n\t"})
	var value func(depth int) *rapid.Generator[string]
	value = func(depth int) *rapid.Generator[string] {
		return rapid.Custom(func(t *rapid.T) string {
			kind := rapid.IntRange(0, 7).Draw(t, "kind")
			if depth == 0 {
				kind %= 4
			}
			at := space.Draw(t, "space")
			switch kind {
			case 0:
				return at + rapid.SampledFrom([]string{`"x"`, `"\\"`, `"a]}\""`, `"\ud83d"`, `""`}).Draw(t, "text")
			case 1:
				return rapid.SampledFrom([]string{"1", "-0.5e+3", "true", "false", "null"}).Draw(t, "word") + at
			case 2:
				return rapid.SampledFrom([]string{"{" + at + "}", "[" + at + "]"}).Draw(t, "empty")
			case 3:
				return rapid.SampledFrom([]string{"1", "1", "1", "01", "[1,]", `{"a"}`, "", "\"\xff\""}).Draw(t, "odd")
			}
			n := rapid.IntRange(1, 3).Draw(t, "n")
			var parts []string
			for range n {
				v := value(depth-1).Draw(t, "value")
				if kind > 4 {
					v = at + name.Draw(t, "name") + at + ":" + v
				}
				parts = append(parts, v)
			}
			if kind > 4 {
				return "{" + strings.Join(parts, at+","+at) + at + "}"
			}
			return "[" + at + strings.Join(parts, ",") + "]"
		})
	}
	rapid.Check(t, func(t *rapid.T) {
		text := []byte(value(4).Draw(t, "value"))
		path := rapid.SliceOfN(rapid.SampledFrom([]string{"a", "b", "0", "1", "", "é", `a"b`, "00"}), 1, 3).Draw(t, "path")
		want, ok := byLevels(text, path)
		if !json.Valid(text) {
			ok = false // encoding/json does not look behind what it wants either, but for the top
		}
		got, err := decodeKey(text, path)
		if ok != (err == nil) || ok && !bytes.Equal(got, want) {
			t.Fatalf("%q of %s: %q, %v, want %q, %v", path, text, got, err, want, ok)
		}
		var r recordReader
		fast, err := r.findKey(text, path)
		if err == nil && (!ok || !bytes.Equal(fast, want)) {
			t.Fatalf("%q of %s: %q the fast way, want %q, %v", path, text, fast, want, ok)
		}
	})
}
