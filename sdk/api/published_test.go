package api

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
)

// What is written by hand is what encoding/json writes.
func TestPublishedIsWrittenAsByEncodingJSON(t *testing.T) {
	full := &Error{}
	fill(t, full)
	plain := NewError(CodeUnknownOutcome, "no <answer> & \"more\" \u2028\n\x01é")
	var one Published
	fill(t, &one)
	for _, p := range []Published{{}, {Topic: "orders", Partition: 3, Offset: -1, Timestamp: 1790000000000}, one} {
		same(t, p.AppendJSON([]byte("x")), p)
	}
	var filled BatchPublished
	fill(t, &filled)
	for _, p := range []BatchPublished{
		{},
		{Topic: "t", Results: []BatchResult{}},
		{Topic: "orders", Written: 2, Failed: 2, Results: []BatchResult{{Partition: 3, Offset: 812}, {Partition: 2147483647, Offset: 1<<63 - 1}, {Offset: -1, Error: plain}, {Offset: -1, Error: full}}},
		filled,
	} {
		same(t, p.AppendJSON([]byte("x")), p)
		same(t, p.AppendFailed([]byte("x"), full), struct {
			Error *Error `json:"error"`
			BatchPublished
		}{full, p})
		var filled BatchResult
		fill(t, &filled)
		filled.Error = full
		same(t, filled.AppendJSON([]byte("x")), filled)
	}
}

// fill gives each field a value, so that one that is added cannot be forgotten.
func fill(t *testing.T, to any) {
	t.Helper()
	v := reflect.ValueOf(to).Elem()
	for i := range v.NumField() {
		switch f := v.Field(i); f.Kind() {
		case reflect.String:
			f.SetString("text")
		case reflect.Bool:
			f.SetBool(true)
		case reflect.Int, reflect.Int32, reflect.Int64:
			f.SetInt(int64(i + 1))
		case reflect.Pointer, reflect.Slice:
		default:
			t.Fatalf("%s: a kind of field that this test does not know", v.Type().Field(i).Name)
		}
	}
}

func same(t *testing.T, got []byte, v any) {
	t.Helper()
	var want strings.Builder
	e := json.NewEncoder(&want)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, []byte("x"+strings.TrimSuffix(want.String(), "\n"))) {
		t.Errorf("%s\nby encoding/json\n%s", got, want.String())
	}
}
