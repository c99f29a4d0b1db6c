package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	"pgregory.net/rapid"
)

// fullyFilled sets every field of v, so that one which was added and is not
// encoded by hand shows.
func fullyFilled(v reflect.Value, depth int) {
	switch v.Kind() {
	case reflect.Pointer:
		v.Set(reflect.New(v.Type().Elem()))
		fullyFilled(v.Elem(), depth)
	case reflect.Struct:
		if v.Type() == reflect.TypeFor[time.Time]() {
			v.Set(reflect.ValueOf(time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC)))
			return
		}
		for i := range v.NumField() {
			fullyFilled(v.Field(i), depth+1)
		}
	case reflect.Slice:
		s := reflect.MakeSlice(v.Type(), 2, 2)
		for i := range 2 {
			fullyFilled(s.Index(i), depth+1)
		}
		v.Set(s)
	case reflect.Map:
		key, value := reflect.New(v.Type().Key()).Elem(), reflect.New(v.Type().Elem()).Elem()
		fullyFilled(key, depth+1)
		fullyFilled(value, depth+1)
		v.Set(reflect.MakeMap(v.Type()))
		v.SetMapIndex(key, value)
	case reflect.String:
		v.SetString("text " + v.Type().Name())
	case reflect.Bool:
		v.SetBool(true)
	case reflect.Int, reflect.Int32, reflect.Int64:
		v.SetInt(int64(7 + depth))
	default:
		panic(v.Type())
	}
}

func filled[T any]() (v T) {
	fullyFilled(reflect.ValueOf(&v).Elem(), 0)
	return v
}

// sameJSON checks that both forms of encoding and of decoding agree.
func sameJSON[T any](t interface{ Fatalf(string, ...any) }, v T, encode func(T, []byte) ([]byte, error), decode func(*T, []byte) error) {
	got, err := encode(v, []byte("before"))
	if err != nil {
		t.Fatalf("%v", err)
	}
	var text bytes.Buffer
	e := json.NewEncoder(&text)
	e.SetEscapeHTML(false)
	if err := e.Encode(v); err != nil {
		t.Fatalf("%v", err)
	}
	var a, b any
	if err := json.Unmarshal(got[len("before"):], &a); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	if err := json.Unmarshal(text.Bytes(), &b); err != nil {
		t.Fatalf("%v", err)
	}
	if !reflect.DeepEqual(a, b) {
		t.Fatalf("by hand:\n%s\nby encoding/json:\n%s", got, text.Bytes())
	}
	var c, d T
	if err := decode(&c, got[len("before"):]); err != nil {
		t.Fatalf("%v: %s", err, got)
	}
	if err := json.Unmarshal(text.Bytes(), &d); err != nil {
		t.Fatalf("%v", err)
	}
	if !reflect.DeepEqual(c, d) {
		t.Fatalf("decoded by hand:\n%+v\nby encoding/json:\n%+v", c, d)
	}
}

func TestCodecKnowsEveryField(t *testing.T) {
	sameJSON(t, filled[Pulled](), Pulled.AppendJSON, (*Pulled).DecodeJSON)
	sameJSON(t, Pulled{Messages: []Message{}}, Pulled.AppendJSON, (*Pulled).DecodeJSON)
	sameJSON(t, Pulled{Messages: []Message{{}, {Key: new(""), Value: new("")}}}, Pulled.AppendJSON, (*Pulled).DecodeJSON)
	sameJSON(t, filled[Message](), func(m Message, b []byte) ([]byte, error) { return m.AppendJSON(b), nil },
		func(m *Message, b []byte) error { return json.Unmarshal(b, m) })
	sameJSON(t, filled[ReceiptResponse](), ReceiptResponse.AppendJSON, (*ReceiptResponse).DecodeJSON)
	sameJSON(t, ReceiptResponse{Results: []ReceiptResult{}}, ReceiptResponse.AppendJSON, (*ReceiptResponse).DecodeJSON)

	for _, body := range []PullBody{filled[PullBody](), {}, {Ack: []string{"a\"", "b"}}, {Nack: []string{"c"}}} {
		sameJSON(t, body, PullBody.AppendJSON, func(p *PullBody, b []byte) error { return json.Unmarshal(b, p) })
	}
	decodesPlainly(t, filled[Receipts](), (*Receipts).DecodeJSON) // or leaves it to encoding/json
	decodesPlainly(t, filled[PullBody](), (*PullBody).DecodeJSON)
	list := []string{"a", "b"}
	if !decodesPlainly(t, Receipts{Receipts: list, Delay: "1s", Error: "e"}, (*Receipts).DecodeJSON) ||
		!decodesPlainly(t, PullBody{Ack: list, Nack: list}, (*PullBody).DecodeJSON) {
		t.Error("common bodies are left to encoding/json")
	}
}

func decodesPlainly[T any](t *testing.T, v T, decode func(*T, []byte) bool) bool {
	text, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	var got T
	if !decode(&got, text) {
		return false
	}
	if !reflect.DeepEqual(got, v) {
		t.Errorf("got %+v, want %+v", got, v)
	}
	return true
}

// What a sidecar writes is read without falling back.
func TestDecoderIsTheFastOne(t *testing.T) {
	until := time.Now().UTC()
	text, err := Pulled{
		Messages: []Message{{ID: "t/0/1", Receipt: "AQ", Topic: "t", Key: new("é\n"), Value: new(`{"a":"\u00e9"}`), Headers: []HeaderPair{{Name: "n", Value64: new("/w==")}}, Attempt: 1, LeaseUntil: &until}},
		Reason:   new(ReasonAtEnd),
		Acks:     &ReceiptResponse{OK: 1, Results: []ReceiptResult{{Receipt: "AQ", ID: "t/0/1"}}},
	}.AppendJSON(nil)
	if err != nil {
		t.Fatal(err)
	}
	d := scanner{in: text}
	if !d.pulled(&Pulled{}) || !d.end() {
		t.Errorf("stopped at %q", text[d.at:])
	}
}

// anyText has what needs escaping more often than chance would.
func anyText() *rapid.Generator[string] {
	part := rapid.OneOf(
		rapid.String(),
		rapid.SampledFrom([]string{`"`, `\`, "\n", "\x00", "\x1f", " ", "\x7f", "\x80", "\xff\xfe", "é", "\u2028", "\u2029", "😀", "<&>", `\u0041`, "12345678"}),
		rapid.Map(rapid.SliceOfN(rapid.Byte(), 0, 20), func(b []byte) string { return string(b) }),
	)
	return rapid.Map(rapid.SliceOfN(part, 0, 6), func(s []string) string { return strings.Join(s, "") })
}

func TestTextsOfAllKinds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		text := anyText()
		p := Pulled{Messages: []Message{}}
		for range rapid.IntRange(0, 3).Draw(t, "messages") {
			m := Message{ID: text.Draw(t, "id"), Topic: text.Draw(t, "topic"), Receipt: text.Draw(t, "receipt"),
				Partition: rapid.Int32().Draw(t, "partition"), Offset: rapid.Int64().Draw(t, "offset"), Timestamp: rapid.Int64().Draw(t, "ts")}
			if rapid.Bool().Draw(t, "value?") {
				m.Value = new(text.Draw(t, "value"))
			}
			if rapid.Bool().Draw(t, "header?") {
				m.Headers = []HeaderPair{{Name: text.Draw(t, "name"), Value: new(text.Draw(t, "header"))}}
			}
			p.Messages = append(p.Messages, m)
		}
		sameJSON(t, p, Pulled.AppendJSON, (*Pulled).DecodeJSON)
		for i := range p.Messages {
			if m := &p.Messages[i]; rapid.Bool().Draw(t, "binary?") && m.Value != nil {
				m.Value, m.Value64 = nil, new(base64.StdEncoding.EncodeToString(append([]byte(*m.Value), 0xff)))
			}
		}
		behind(t, p)
		r := Receipts{Receipts: rapid.SliceOfN(text, 1, 4).Draw(t, "receipts"), Error: text.Draw(t, "error")}
		body, err := json.Marshal(r)
		if err != nil {
			t.Fatalf("%v", err)
		}
		var fast, slow Receipts
		if err := json.Unmarshal(body, &slow); err != nil {
			t.Fatalf("%v", err)
		}
		if fast.DecodeJSON(body) && !reflect.DeepEqual(fast, slow) {
			t.Fatalf("got %+v, want %+v", fast, slow)
		}
	})
}

// behind checks that an answer with its values behind it says what its JSON says.
func behind(t interface{ Fatalf(string, ...any) }, p Pulled) {
	text, err := p.AppendBehind(nil)
	if err != nil {
		t.Fatalf("%v", err)
	}
	var got, want Pulled
	if err := got.DecodeBehind(text); err != nil {
		t.Fatalf("%v: %q", err, text)
	}
	plain, err := json.Marshal(p)
	if err != nil {
		t.Fatalf("%v", err)
	}
	if err := json.Unmarshal(plain, &want); err != nil {
		t.Fatalf("%v", err)
	}
	for i, m := range p.Messages { // bytes that are not UTF-8 and yet came as text stay what they are
		if m.Value != nil && !utf8.ValidString(*m.Value) {
			want.Messages[i].Value, want.Messages[i].Value64 = nil, new(base64.StdEncoding.EncodeToString([]byte(*m.Value)))
		}
	}
	if !reflect.DeepEqual(got, want) {
		t.Fatalf("got %+v\nwant %+v", got, want)
	}
	for cut := range min(len(text), 200) {
		if err := new(Pulled).DecodeBehind(text[:len(text)-1-cut]); err == nil {
			t.Fatalf("no error for %q", text[:len(text)-1-cut])
		}
	}
	if err := new(Pulled).DecodeBehind(append(text, 'x')); err == nil {
		t.Fatalf("no error for more than all values")
	}
}

func TestValuesBehind(t *testing.T) {
	full := filled[Pulled]()
	for i := range full.Messages {
		full.Messages[i].Value64 = nil
	}
	full.Acks.Results = []ReceiptResult{{Receipt: "a", Error: NewError(CodeLeaseLost, "m")}}
	behind(t, full) // an error of it is for encoding/json to decode
	full.Acks = nil
	full.Messages[1].Value = nil // a tombstone
	behind(t, full)
	behind(t, Pulled{Messages: []Message{}, Reason: new(ReasonAtEnd)})

	full.Acks = &ReceiptResponse{OK: 2, Failed: 1, Results: []ReceiptResult{{Receipt: "a", ID: "t/0/1"}, {Receipt: "b", Error: NewError(CodeLeaseLost, "m")}, {Receipt: "c", Provisional: true}}}
	text, err := full.AppendBehind(nil)
	if err != nil {
		t.Fatal(err)
	}
	var got Pulled
	if err := got.DecodeBehind(text); err != nil {
		t.Fatal(err)
	}
	if a := got.Acks; a.OK != 2 || a.Failed != 1 || len(a.Results) != 2 || a.Results[0].Receipt != "b" || a.Results[1].Receipt != "c" {
		t.Errorf("got %+v", a)
	}
}

// Whatever the input, an answer is decoded as encoding/json does, and a body is
// either decoded so or left to it.
func FuzzDecode(f *testing.F) {
	for _, seed := range []string{
		`{"messages":[{"id":"t/0/1","receipt":"AQ","topic":"t","partition":0,"offset":1,"value":"a\"b","ts":1,"attempt":1,"lease_until":"2026-01-02T03:04:05Z"}],"reason":null}`,
		`{"messages":[],"reason":"at_end","acks":{"ok":1,"failed":1,"results":[{"receipt":"a","error":{"code":"lease_lost","message":"m","retryable":false}}]}}`,
		`{"receipts":["a","b"],"delay":"1s"}`, `{"ack":["a"],"nack":[]}`, `{"receipts":["\ud83d\ude00"]}`, `{"Receipts":[]}`, ` { } `, `{"receipts":null}`, `{"ack":["a"]}x`,
		`{"messages":[{"offset":-0,"partition":01}]}`,
	} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, in []byte) {
		var fast, slow Pulled
		fastErr, slowErr := fast.DecodeJSON(in), json.Unmarshal(in, &slow)
		if (fastErr == nil) != (slowErr == nil) {
			t.Fatalf("%q: %v, but encoding/json: %v", in, fastErr, slowErr)
		}
		if fastErr == nil && !reflect.DeepEqual(fast, slow) {
			t.Fatalf("%q: %+v, want %+v", in, fast, slow)
		}
		_ = new(Pulled).DecodeBehind(in) // may fail, and must not panic
		strict := func(to any) error {
			d := json.NewDecoder(bytes.NewReader(in))
			d.DisallowUnknownFields()
			return d.Decode(to)
		}
		var r, wantR Receipts
		if r.DecodeJSON(in) {
			if err := strict(&wantR); err != nil || !reflect.DeepEqual(r, wantR) {
				t.Fatalf("%q: %+v, want %+v, %v", in, r, wantR, err)
			}
		}
		var p, wantP PullBody
		if p.DecodeJSON(in) {
			if err := strict(&wantP); err != nil || !reflect.DeepEqual(p, wantP) {
				t.Fatalf("%q: %+v, want %+v, %v", in, p, wantP, err)
			}
		}
	})
}
