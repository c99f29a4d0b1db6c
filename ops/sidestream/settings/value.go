package settings

import (
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"
)

// kindOf names a type as the documentation does, "" when it cannot be read.
func kindOf(t reflect.Type) string {
	switch {
	case t == durationType:
		return "duration"
	case t.Kind() == reflect.String:
		return "text"
	case t.Kind() == reflect.Bool:
		return "true or false"
	case t.Kind() >= reflect.Int && t.Kind() <= reflect.Int64:
		return "whole number"
	case t.Kind() == reflect.Float64:
		return "number"
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.String:
		return "list of texts"
	case t.Kind() == reflect.Map && t.Key().Kind() == reflect.String && t.Elem().Kind() == reflect.String:
		return "map of texts"
	}
	return ""
}

// Kind names the type of the key for people.
func (f Field) Kind() string { return kindOf(f.value.Type()) }

// SetText sets the key from text, as the environment and flags give it: a list
// is separated by commas, a map is k=v separated by commas.
func (f Field) SetText(text string) error {
	switch f.Kind() {
	case "list of texts":
		f.value.Set(reflect.ValueOf(splitList(text)).Convert(f.value.Type()))
		return nil
	case "map of texts":
		m := map[string]string{}
		for _, pair := range splitList(text) {
			k, v, found := strings.Cut(pair, "=")
			if !found || k == "" {
				return fmt.Errorf("got %q: use key=value pairs separated by commas", text)
			}
			m[k] = v
		}
		f.value.Set(reflect.ValueOf(m).Convert(f.value.Type()))
		return nil
	}
	return f.setScalar(text)
}

func splitList(text string) []string {
	var list []string
	for part := range strings.SplitSeq(text, ",") {
		if part = strings.TrimSpace(part); part != "" {
			list = append(list, part)
		}
	}
	return list
}

func (f Field) setScalar(text string) error {
	text = strings.TrimSpace(text)
	switch f.Kind() {
	case "text":
		f.value.SetString(text)
	case "duration":
		d, err := time.ParseDuration(text)
		if err != nil {
			return fmt.Errorf("got %q: use a duration such as 500ms, 30s, 5m or 168h", text)
		}
		f.value.SetInt(int64(d))
	case "true or false":
		b, err := strconv.ParseBool(text)
		if err != nil {
			return fmt.Errorf("got %q: use true or false", text)
		}
		f.value.SetBool(b)
	case "whole number":
		n, ok := f.wholeNumber(strings.ReplaceAll(text, "_", ""))
		if !ok {
			also := ""
			if f.countsBytes() {
				also = ", or one with a unit such as 1MiB or 1MB"
			}
			return fmt.Errorf("got %q: use a whole number of at most %d bits, such as 1048576%s", text, f.value.Type().Bits(), also)
		}
		f.value.SetInt(n)
	case "number":
		x, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("got %q: use a number such as 0.5", text)
		}
		f.value.SetFloat(x)
	}
	return nil
}

// units of bytes, and what they stand for; the one of a letter last, since all end
// in it.
var units = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
}

// countsBytes tells by the key's name that its number is one of bytes.
func (f Field) countsBytes() bool {
	words := strings.Split(f.Path[strings.LastIndexByte(f.Path, '.')+1:], "_")
	return slices.Contains(words, "bytes") || slices.Contains(words, "memory")
}

// wholeNumber reads a number that fits the key; one of bytes may have a unit, and
// where it is of bytes per second "/s" behind it.
func (f Field) wholeNumber(text string) (n int64, ok bool) {
	scale := int64(1)
	if f.countsBytes() {
		if strings.HasSuffix(f.Path, "_per_second") {
			text = strings.TrimSuffix(text, "/s")
		}
		for _, u := range units {
			if bare, has := strings.CutSuffix(text, u.suffix); has {
				text, scale = bare, u.bytes
				break
			}
		}
	}
	n, err := strconv.ParseInt(text, 10, f.value.Type().Bits())
	scaled := n * scale
	return scaled, err == nil && scaled/scale == n && !f.value.OverflowInt(scaled)
}

// Text is the present value as YAML on one line; a secret that is set is hidden.
func (f Field) Text() string {
	switch f.Kind() {
	case "duration":
		return shortDuration(time.Duration(f.value.Int()))
	case "text":
		if f.Secret() && f.value.String() != "" {
			return `"(hidden)"`
		}
		return quote(f.value.String())
	case "list of texts":
		var parts []string
		for _, s := range f.value.Seq2() {
			parts = append(parts, quote(s.String()))
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case "map of texts":
		var parts []string
		for _, k := range f.value.MapKeys() {
			parts = append(parts, quote(k.String())+": "+quote(f.value.MapIndex(k).String()))
		}
		slices.Sort(parts)
		return "{" + strings.Join(parts, ", ") + "}"
	}
	return fmt.Sprint(f.value.Interface())
}

// shortDuration drops the zero minutes and seconds of 168h0m0s.
func shortDuration(d time.Duration) string {
	s := d.String()
	if strings.HasSuffix(s, "m0s") {
		s = strings.TrimSuffix(s, "0s")
	}
	if strings.HasSuffix(s, "h0m") {
		s = strings.TrimSuffix(s, "0m")
	}
	return s
}

// quote writes a string as a YAML scalar, plain where that is unambiguous.
func quote(s string) string {
	plain := s != ""
	for _, c := range s {
		if !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune("/._:-", c)) {
			plain = false
		}
	}
	first := byte(' ')
	if plain {
		first = s[0]
	}
	switch {
	case !plain, strings.HasSuffix(s, ":"), first != '/' && !(first >= 'a' && first <= 'z' || first >= 'A' && first <= 'Z' || first >= '0' && first <= '9'):
		return strconv.Quote(s)
	}
	switch strings.ToLower(s) {
	case "true", "false", "yes", "no", "on", "off", "null", "y", "n":
		return strconv.Quote(s)
	}
	if _, err := strconv.ParseFloat(s, 64); err == nil {
		return strconv.Quote(s)
	}
	return s
}
