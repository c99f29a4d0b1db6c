package api

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"reflect"
	"strconv"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

func TestReadBatch(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		lines bool
		want  []string // key=value, "-" for none
	}{
		"ndjson":                    {"{\"value\":\"a\",\"key\":\"k\"}\n\n {\"value\":\"b\"} \r\n", false, []string{"k=a", "-=b"}},
		"array":                     {` [{"value":"a"}, {"value":"b","key":""}] `, false, []string{"-=a", "=b"}},
		"numbers to the letter":     {`{"value": 9007199254740993 }`, false, []string{"-=9007199254740993"}},
		"objects to the letter":     {`{"value":{"b": 1.50, "a" :[1e3]}}`, false, []string{`-={"b": 1.50, "a" :[1e3]}`}},
		"tombstones":                {`{"key":"k"}` + "\n" + `{"key":"k","value":null}`, false, []string{"k=-", "k=-"}},
		"null as a string":          {`{"value":"null"}`, false, []string{"-=null"}},
		"base64":                    {`{"value64":"/w==","key64":"_g"}`, false, []string{"\xfe=\xff"}},
		"empty value":               {`{"value":""}`, false, []string{"-="}},
		"escapes":                   {`{"value":"a\u0000\n\ud83d\ude00"}`, false, []string{"-=a\x00\n😀"}},
		"the replacement character": {`{"value":"\ufffd` + "\ufffd" + `"}`, false, []string{"-=\ufffd\ufffd"}},
		"raw lines":                 {"a\n\n\xff\x00\r\n{\"x\":1}", true, []string{"-=a", "-=\xff\x00\r", `-={"x":1}`}},
	} {
		got, err := readBatch([]byte(c.body), c.lines, 1000)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var have []string
		for _, e := range got.messages {
			have = append(have, orDash(e.Key)+"="+orDash(e.Value))
		}
		if fmt.Sprint(have) != fmt.Sprint(c.want) {
			t.Errorf("%s: %q, want %q", name, have, c.want)
		}
	}
}

func orDash(b []byte) string {
	if b == nil {
		return "-"
	}
	return string(b)
}

func TestBadLines(t *testing.T) {
	for name, c := range map[string]struct {
		body string
		line int
		says string
	}{
		"not an object":             {"{\"value\":1}\n\nhello", 3, "?lines=1"},
		"cut off":                   {`{"value":"a`, 1, "ends in the middle"},
		"newlines stripped":         {`{"value":"a"}{"value":"b"}`, 1, "--data-binary"},
		"unknown field":             {"{\"value\":1}\n{\"valu\":1}", 2, "valu"},
		"two values":                {`{"value":1,"value64":"AA=="}`, 1, "value and value64"},
		"two keys":                  {`{"key":"a","key64":"AA=="}`, 1, "key and key64"},
		"bad base64":                {`{"value64":"*"}`, 1, "value64"},
		"wrong kind":                {`{"key":7}`, 1, "key"},
		"negative partition":        {`{"partition":-1}`, 1, "partition"},
		"negative time":             {`{"ts":-1}`, 1, "ts"},
		"invalid UTF-8":             {"{\"value\":\"\xff\"}", 1, "UTF-8"},
		"half a surrogate pair":     {`{"value":"\ud83d"}`, 1, "surrogate"},
		"array, second bad":         {`[{"value":1},7]`, 2, "element"},
		"a field twice":             {`{"value":"a","value":"b"}`, 1, `"value" is given twice`},
		"a null field twice":        {`{"key":null,"ke\u0079":"b"}`, 1, `"key" is given twice`},
		"a header twice":            {`{"headers":{"a":"1","a":"2"}}`, 1, `"a" is given twice`},
		"a header without name":     {`{"headers":{"":"1"}}`, 1, "name is empty"},
		"a header of no text":       {`{"headers":{"a":null}}`, 1, `"a" is null`},
		"a header that is a number": {`{"headers":{"a":1}}`, 1, `"a" is no string`},
		"headers that are none":     {`{"headers":7}`, 1, "headers are an object"},
		"listed, without name":      {`{"headers":[{"value":"1"}]}`, 1, "has no name"},
		"listed, empty name":        {`{"headers":[{"name":"","value":"1"}]}`, 1, "name is empty"},
		"listed, two values":        {`{"headers":[{"name":"a","value":"1","value64":"AA=="}]}`, 1, "value and value64"},
		"listed, a field twice":     {`{"headers":[{"name":"a","value":"1","value":"2"}]}`, 1, `"value" twice`},
		"listed, strange":           {`{"headers":[{"name":"a","values":"1"}]}`, 1, "values"},
		"listed, no base64":         {`{"headers":[{"name":"a","value64":"*"}]}`, 1, "value64"},
		"listed, no object":         {`{"headers":["a"]}`, 1, "headers are an object"},
		"listed, half a pair":       {`{"headers":[{"name":"a","value":"\ud83d"}]}`, 1, "surrogate"},
		"no list":                   {`{"key":[]}`, 1, `"key" has an array where a string belongs`},
		"no number":                 {`{"ts":"1"}`, 1, `"ts" has a string where`},
		"no text":                   {`{"key":true}`, 1, `"key" has true or false where a string belongs`},
		"array without end":         {`[{"value":1}`, 2, "array"},
		"more after the array":      {`[{"value":1}] {}`, 2, "after the end"},
		"array with a lost comma":   {`[{"value":1} {"value":2}]`, 2, "array"},
	} {
		_, err := readBatch([]byte(c.body), false, 1000)
		var e *api.Error
		if !errors.As(err, &e) || e.Code != api.CodeBadRecord {
			t.Errorf("%s: %v", name, err)
			continue
		}
		if e.Line != c.line || !strings.Contains(e.Message, c.says) {
			t.Errorf("%s: line %d, %q; want line %d and %q", name, e.Line, e.Message, c.line, c.says)
		}
	}
	if _, err := readBatch([]byte(" \n"), false, 1000); err == nil || asError(err).Code != api.CodeBadRequest {
		t.Errorf("an empty batch: %v", err)
	}
}

// 16 MB of two-byte lines became eight million messages, 5.7 GB of memory and an
// answer of 1.3 GB, a minute and a half after the request's time was over. They
// are counted first, and the error says both numbers.
func TestTooManyMessages(t *testing.T) {
	for name, c := range map[string]struct {
		body  string
		lines bool
	}{
		"lines":     {"a\n\nb\nc\nd", true},
		"ndjson":    {"{}\n \n{}\r\n{}\n{}\n", false},
		"array":     {` [ {"value":"],[\"," } , {"value":[1,2]},{}, {}]`, false},
		"no record": {`[1,2,3,4]`, false}, // the count comes first
	} {
		_, err := readBatch([]byte(c.body), c.lines, 3)
		if err == nil || asError(err).Code != api.CodeRequestTooLarge || !strings.Contains(err.Error(), "4 messages: at most 3") {
			t.Errorf("%s: %v", name, err)
		}
		if _, err := readBatch([]byte(c.body), c.lines, 4); name != "no record" && err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	most := testing.AllocsPerRun(1, func() {
		if _, err := readBatch(bytes.Repeat([]byte("a\n"), 1<<20), true, 100_000); err == nil {
			t.Error("taken")
		}
	})
	if most > 100 {
		t.Errorf("%v allocations for what is refused", most)
	}
}

// The list keeps what an object of headers cannot have.
func TestHeadersOfARecord(t *testing.T) {
	for body, want := range map[string]string{
		`{"headers":{"b":"1","a":"2"}}`: `[a="2" b="1"]`,
		`{"headers":null}`:              `[]`,
		`{"headers":[]}`:                `[]`,
		`{"headers":[{"name":"b","value":"1"}, {"value":"\u00e9","name":"a"},{"name":"b","value64":"/w=="} ]}`: `[b="1" a="é" b="\xff"]`,
		`{"headers":[{"name64":"/w==","value":"1"},{"name":"","name64":"bg","value64":"_w"}]}`:                 `[\xff="1" n="\xff"]`,
		`{"headers":[{"name":"b","value64":"_w"},{"name":"n","value":null},{"name":"e","value":""}]}`:          `[b="\xff" n=- e=""]`,
	} {
		for _, text := range []string{body, "[" + body + "]"} {
			agree(t, []byte(text), false)
			b, err := readBatch([]byte(text), false, 10)
			if err != nil {
				t.Errorf("%s: %v", text, err)
				continue
			}
			got := []string{}
			for _, h := range b.messages[0].Headers {
				value := "-"
				if h.Value != nil {
					value = fmt.Sprintf("%q", h.Value)
				}
				name := strconv.Quote(h.Key)
				got = append(got, name[1:len(name)-1]+"="+value)
			}
			if fmt.Sprint(got) != want {
				t.Errorf("%s: %s, want %s", text, got, want)
			}
		}
	}
	var m publish.Message
	var r recordReader
	if text := []byte(`{"headers":[{"name":"b","value":"1"},{"name":"b","value64":"/w=="}]}`); r.read(text, 0, &m) != len(text) || len(m.Headers) != 2 {
		t.Errorf("the usual list is not read the fast way: %v", m.Headers)
	}
}

func TestKeyByField(t *testing.T) {
	for _, c := range []struct{ field, value, key, fails string }{
		{"visitor", `{"visitor":"v1"}`, "v1", ""},
		{"visitor", `{"visitor": 9007199254740993}`, "9007199254740993", ""},
		{"visitor", `{"visitor":{"id": 1}}`, `{"id": 1}`, ""},
		{"visitor", `{"visitor":"\u00e9\u0000"}`, "é\x00", ""},
		{"/user/id", `{"user":{"id":"u"}}`, "u", ""},
		{"/a~1b/m~0n", `{"a/b":{"m~n":"x"}}`, "x", ""},
		{"/list/1", `{"list":["a","b"]}`, "b", ""},
		{"/list/7", `{"list":["a","b"]}`, "", "no element"},
		{"a/b", `{"a/b":"top"}`, "top", ""},
		{"visitor", `{}`, "", "no field"},
		{"visitor", `{"visitor":null}`, "", "null"},
		{"visitor", `plain`, "", "not a JSON object"},
		{"visitor", ``, "", "not a JSON object"},
		{"visitor", "{\"visitor\":\"\xff\"}", "", "UTF-8"},
	} {
		ms := &batch{messages: []publish.Message{{Value: []byte(c.value)}}, lines: []int{2}}
		err := keyByField(ms, keyField{name: c.field})
		if c.fails != "" {
			if err == nil || asError(err).Line != 2 || !strings.Contains(err.Error(), c.fails) {
				t.Errorf("%s of %s: %v, want line 2 and %q", c.field, c.value, err, c.fails)
			}
			continue
		}
		if err != nil || string(ms.messages[0].Key) != c.key {
			t.Errorf("%s of %s: %q, %v, want %q", c.field, c.value, ms.messages[0].Key, err, c.key)
		}
	}
}

func FuzzReadBatch(f *testing.F) {
	f.Add([]byte(`{"value":"a"}`), false)
	f.Add([]byte("[{}]"), false)
	f.Add([]byte("a\nb"), true)
	f.Add([]byte(`{"value64":"77+9","key":"\ud83d\ude00","headers":{"b":"1","a":"2"},"partition":3,"ts":7}`), false)
	f.Fuzz(func(t *testing.T, body []byte, lines bool) {
		agree(t, body, lines)
		out, err := readBatch(body, lines, 1000)
		if err != nil {
			return
		}
		// They are counted before they are read, and no fewer are read.
		if _, err := readBatch(body, lines, len(out.messages)); err != nil {
			t.Errorf("%d messages are not %v", len(out.messages), err)
		}
		if _, err := readBatch(body, lines, len(out.messages)-1); err == nil || asError(err).Code != api.CodeRequestTooLarge {
			t.Errorf("%d messages, and one fewer allowed: %v", len(out.messages), err)
		}
	})
}

// decodeBatch is readBatch by encoding/json alone.
func decodeBatch(body []byte, lines bool) (*batch, error) {
	out := &batch{}
	var err error
	switch trimmed := bytes.TrimLeft(body, " \t\r\n"); {
	case !lines && len(trimmed) > 0 && trimmed[0] == '[':
		err = decodeArray(trimmed, out)
	case lines:
		rawLines(body, out)
	default:
		err = eachLine(body, func(n int, b []byte) error {
			if b = bytes.TrimSpace(b); len(b) == 0 {
				return nil
			}
			m, err := readRecord(b)
			if err != nil {
				return badRecord(n, err.Error())
			}
			out.add(n, m)
			return nil
		})
	}
	if err == nil && len(out.messages) == 0 {
		err = errors.New("empty")
	}
	return out, err
}

// agree tells when the two readers differ.
func agree(t testing.TB, body []byte, lines bool) {
	t.Helper()
	before := bytes.Clone(body)
	got, err := readBatch(body, lines, 1000)
	want, wantErr := decodeBatch(before, lines)
	if !bytes.Equal(before, body) {
		t.Fatalf("%q was changed to %q", before, body)
	}
	if (err == nil) != (wantErr == nil) {
		if err != nil && asError(err).Code == api.CodeRequestTooLarge {
			return
		}
		t.Fatalf("%q: %v, by encoding/json %v", body, err, wantErr)
	}
	if err != nil {
		if wantErr.Error() != "empty" && asError(err).Code != api.CodeRequestTooLarge && err.Error() != wantErr.Error() {
			t.Fatalf("%q: %v, by encoding/json %v", body, err, wantErr)
		}
		return
	}
	if !reflect.DeepEqual(got.lines, want.lines) {
		t.Fatalf("%q: lines %v, by encoding/json %v", body, got.lines, want.lines)
	}
	for i := range want.messages {
		if !reflect.DeepEqual(got.messages[i], want.messages[i]) {
			t.Fatalf("%q: message %d\n%#v, by encoding/json\n%#v", body, i, got.messages[i], want.messages[i])
		}
	}
	for _, field := range []string{"a", "/a/b", "/a/0", "k\u00e9", "/"} {
		for i := range want.messages {
			keyless := want.messages[i]
			keyless.Key = nil
			one := &batch{messages: []publish.Message{keyless}, lines: []int{1}}
			err := keyByField(one, keyField{name: field})
			other, wantErr := decodeKey(keyless.Value, pathOf(field))
			if (err == nil) != (wantErr == nil) || err == nil && !bytes.Equal(one.messages[0].Key, other) {
				t.Fatalf("%s of %q: %q, %v, by encoding/json %q, %v", field, keyless.Value, one.messages[0].Key, err, other, wantErr)
			}
		}
	}
}

// Batches as clients write them, and as they must not, are read as encoding/json
// reads them.
func TestReadersAgree(t *testing.T) {
	texts := rapid.SampledFrom([]string{
		`""`, `"a"`, `"a\"b\\c\/d"`, `"{\"visitor\":\"v1\",\"n\":[1,2]}"`, `"\u00e9\n\t\r\b\f"`, `"\ud83d\ude00"`, `"\ud83d"`, `"\ude00\ud83d"`,
		`"\ud83dx"`, `"\ud83d\u0041"`, `"é😀"`, "\"\xff\"", "\"\x01\"", `"\x"`, `"\u12"`, `"`, `"\`, `"\ufffd"`, "\"\ufffd\"", `"` + strings.Repeat("0123456789", 9) + `\"` + strings.Repeat("é", 40) + `"`,
	})
	values := rapid.OneOf(texts, rapid.SampledFrom([]string{
		"null", "nullx", "true", "false", "tru", "0", "-0", "01", "-", "1.5e+3", "1.", "1e", ".5", "9007199254740993", "12345678901234567890",
		`{}`, `{"a":1}`, `{"a":{"b":"x"}, "a" :{"b": 2 }}`, `{"a":[10,"\u0041"]}`, `{"a":"\ud83d\ude00"}`, `{"a":null}`, `{"k\u00e9":1}`, `{"a"}`, `{"a":1,}`, `{,}`, `[1,{"a":[ ]},"]"]`, `[1,]`, `[`, `{`,
		strings.Repeat("[", 70) + strings.Repeat("]", 70), `{"":"x"}`, `{"A":1}`, `{"a":1 "b":2}`, `"{\"a\":{\"b\":\"\\u0041\"}}"`,
	}))
	pair := rapid.Custom(func(t *rapid.T) string {
		name := rapid.SampledFrom([]string{"value", "value64", "key", "key64", "headers", "partition", "ts", "Value", "valu\\u0065", "x"}).Draw(t, "name")
		var v string
		switch {
		case rapid.IntRange(0, 9).Draw(t, "odd") == 0:
			v = values.Draw(t, "any")
		case name == "value":
			v = values.Draw(t, "value")
		case name == "key":
			v = texts.Draw(t, "key")
		case strings.HasSuffix(name, "64"):
			v = rapid.SampledFrom([]string{`""`, `"AA=="`, `"_w"`, `"/w=="`, `"77+9"`, `"*"`, `"A"`, `"A\n A="`, `"QUJD"`, `"QQ= ="`}).Draw(t, "base64")
		case name == "headers":
			names := rapid.SliceOfN(texts, 0, 4).Draw(t, "names")
			for i, n := range names {
				names[i] = n + ":" + texts.Draw(t, "header")
			}
			v = "{" + strings.Join(names, " , ") + "}"
			if rapid.Bool().Draw(t, "list") {
				value := rapid.SampledFrom([]string{`"name"`, `"value"`, `"value64"`, `"x"`, `"Name"`})
				for i, n := range names {
					names[i] = rapid.SampledFrom([]string{`{"name":`, `{ "value" : "a" ,"name" :`, `{"value":null,"name":`, "{"}).Draw(t, "pair") + strings.Replace(n, `:"`, `,`+value.Draw(t, "field")+`: "`, 1) + "}"
				}
				v = "[" + strings.Join(names, " , ") + "]"
			}
		default:
			v = rapid.SampledFrom([]string{"0", "3", "-1", "-0", "00", "1.0", "1e3", "2147483647", "2147483648", "9223372036854", "9223372036855", "99999999999999999999", "7 7"}).Draw(t, "number")
		}
		space := rapid.SampledFrom([]string{"", "", " ", "\t", "\r"})
		return space.Draw(t, "a") + `"` + name + `"` + space.Draw(t, "b") + ":" + space.Draw(t, "c") + v
	})
	record := rapid.Custom(func(t *rapid.T) string {
		r := "{" + strings.Join(rapid.SliceOfN(pair, 0, 4).Draw(t, "pairs"), ",") + "}"
		return rapid.SampledFrom([]string{"", "", "", " ", "\v"}).Draw(t, "before") + r + rapid.SampledFrom([]string{"", "", "", " ", "\r", "x", "{}"}).Draw(t, "after")
	})
	rapid.Check(t, func(rt *rapid.T) {
		records := rapid.SliceOfN(record, 0, 4).Draw(rt, "records")
		body := strings.Join(records, "\n")
		if rapid.Bool().Draw(rt, "array") {
			body = " [" + strings.Join(records, rapid.SampledFrom([]string{",", " ,\n"}).Draw(rt, "comma")) + rapid.SampledFrom([]string{"]", " ] ", "]x", ""}).Draw(rt, "end")
		}
		if cut := rapid.IntRange(0, 20).Draw(rt, "cut"); cut < len(body) && rapid.IntRange(0, 9).Draw(rt, "is cut") == 0 {
			body = body[:len(body)-cut]
		}
		agree(t, []byte(body), false)
	})
}

func BenchmarkReadBatch(b *testing.B) {
	event := `{"visitor":"v-4711","path":"/products/1234?utm=x","referrer":"https://example.org/search?q=shoes","agent":"Mozilla/5.0 (X11; Linux x86_64)","at":1767225600123,"ms":12.5,"tags":["a","b"],"session":"0123456789"}`
	quoted, _ := json.Marshal(event)
	for name, c := range map[string]struct {
		line  string
		lines bool
		field string
	}{
		"raw":          {event, true, ""},
		"raw by field": {event, true, "visitor"},
		"object":       {`{"value":` + event + `,"key":"v-4711"}`, false, ""},
		"string":       {`{"value":` + string(quoted) + `,"key":"v-4711"}`, false, ""},
		"plain":        {`{"value":"` + strings.Repeat("x", 200) + `"}`, false, ""},
		"by field":     {`{"value":` + event + `}`, false, "visitor"},
		"array":        {`{"value":` + event + `,"key":"v-4711"},`, false, ""},
	} {
		body := []byte(strings.Repeat(c.line+"\n", 1000))
		if name == "array" {
			body = append(append([]byte{'['}, body[:len(body)-2]...), ']')
		}
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(len(body)))
			b.ReportAllocs()
			for b.Loop() {
				out, err := readBatch(body, c.lines, 1000)
				if err == nil {
					err = keyByField(out, keyField{name: c.field})
				}
				if err != nil || len(out.messages) != 1000 {
					b.Fatal(err)
				}
				out.free()
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/1000, "ns/record")
		})
	}
}
