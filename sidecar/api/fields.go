package api

import (
	"encoding/json"
	"iter"
	"reflect"
	"slices"
	"strings"
)

// fieldsOf are the names of a struct's JSON fields; nil for what is no struct.
func fieldsOf(t reflect.Type) []string {
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	if t.Kind() != reflect.Struct {
		return nil
	}
	names := []string{}
	for f := range t.Fields() {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			names = append(names, name)
		}
	}
	return names
}

// strangeField finds a field of a JSON object that is none of those allowed, to
// the letter: encoding/json takes "Value" for "value", and what is meant for
// another field one day must not have an effect now. b is valid JSON.
func strangeField(b []byte, allowed []string) (name string, found bool) {
	for name, ok := range topFields(b) {
		if !ok || !slices.Contains(allowed, name) {
			return name, true
		}
	}
	return "", false
}

// fieldTwice finds a field that a JSON object has several times, of which
// encoding/json takes the last and says nothing. b is valid JSON.
func fieldTwice(b []byte) (name string, found bool) {
	var few []string             // mostly there are no more
	var many map[string]struct{} // once there are: an object may have a million
	for name := range topFields(b) {
		if _, twice := many[name]; twice || slices.Contains(few, name) {
			return name, true
		}
		switch {
		case many != nil:
			many[name] = struct{}{}
		case len(few) >= 32:
			many = map[string]struct{}{name: {}}
		default:
			few = append(few, name)
		}
	}
	return "", false
}

func hasField(b []byte, name string) bool {
	for n := range topFields(b) {
		if n == name {
			return true
		}
	}
	return false
}

// topFields gives the names of a JSON object's own fields; ok is false of one that
// cannot be read.
func topFields(b []byte) iter.Seq2[string, bool] {
	return func(yield func(string, bool) bool) {
		depth := 0
		for i := 0; i < len(b); i++ {
			switch b[i] {
			case '{', '[':
				depth++
			case '}', ']':
				depth--
			case '"':
				begin := i
				for i++; i < len(b) && b[i] != '"'; i++ {
					if b[i] == '\\' {
						i++
					}
				}
				if depth == 1 && i < len(b) && isName(b[i+1:]) && !yield(unquoted(b[begin:i+1])) {
					return
				}
			}
		}
	}
}

// isName says whether the string before after is a field's name.
func isName(after []byte) bool {
	for _, c := range after {
		switch c {
		case ' ', '\t', '\r', '\n':
		default:
			return c == ':'
		}
	}
	return false
}

func unquoted(b []byte) (s string, ok bool) {
	if !slices.Contains(b, '\\') {
		return string(b[1 : len(b)-1]), true
	}
	return s, json.Unmarshal(b, &s) == nil
}
