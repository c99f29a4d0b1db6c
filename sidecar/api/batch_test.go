package api

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"

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
		"not an object":           {"{\"value\":1}\n\nhello", 3, "?lines=1"},
		"cut off":                 {`{"value":"a`, 1, "ends in the middle"},
		"newlines stripped":       {`{"value":"a"}{"value":"b"}`, 1, "--data-binary"},
		"unknown field":           {"{\"value\":1}\n{\"valu\":1}", 2, "valu"},
		"two values":              {`{"value":1,"value64":"AA=="}`, 1, "value and value64"},
		"two keys":                {`{"key":"a","key64":"AA=="}`, 1, "key and key64"},
		"bad base64":              {`{"value64":"*"}`, 1, "value64"},
		"wrong kind":              {`{"key":7}`, 1, "key"},
		"negative partition":      {`{"partition":-1}`, 1, "partition"},
		"negative time":           {`{"ts":-1}`, 1, "ts"},
		"invalid UTF-8":           {"{\"value\":\"\xff\"}", 1, "UTF-8"},
		"half a surrogate pair":   {`{"value":"\ud83d"}`, 1, "surrogate"},
		"array, second bad":       {`[{"value":1},7]`, 2, "element"},
		"array without end":       {`[{"value":1}`, 2, "array"},
		"more after the array":    {`[{"value":1}] {}`, 2, "after the end"},
		"array with a lost comma": {`[{"value":1} {"value":2}]`, 2, "array"},
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
		ms := batch{[]publish.Message{{Value: []byte(c.value)}}, []int{2}}
		err := keyByField(ms, c.field)
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
	f.Fuzz(func(t *testing.T, body []byte, lines bool) {
		out, err := readBatch(body, lines, 1000)
		if (err == nil) != (len(out.messages) > 0) {
			t.Errorf("%d messages and %v", len(out.messages), err)
		}
		// They are counted before they are read, and no fewer are read.
		if len(out.messages) > 0 {
			if _, err := readBatch(body, lines, len(out.messages)); err != nil {
				t.Errorf("%d messages are not %v", len(out.messages), err)
			}
			if _, err := readBatch(body, lines, len(out.messages)-1); err == nil || asError(err).Code != api.CodeRequestTooLarge {
				t.Errorf("%d messages, and one fewer allowed: %v", len(out.messages), err)
			}
		}
	})
}
