package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// messageText is a message in one line: key, value and headers.
func messageText(m publish.Message) string {
	var h []string
	for _, p := range m.Headers {
		h = append(h, p.Key+"="+string(p.Value))
	}
	return fmt.Sprintf("%s %q [%s]", orDash(m.Key), m.Value, strings.Join(h, " "))
}

func TestEventsArePublished(t *testing.T) {
	s := serve(t, nil)
	for name, c := range map[string]struct {
		path    string
		headers []string
		body    string
		want    []string
	}{
		"binary": {"/topics/t", []string{"ce-specversion: 1.0", "ce-id: 7", "ce-source: /shop", "ce-type: order.made", "ce-subject: %E2%82%ac %22a%22 100%", `ce-comment: "a \"b\" c"`, "Content-Type: text/plain; charset=utf-8"}, "hi",
			[]string{`- "hi" [ce_comment=a "b" c ce_id=7 ce_source=/shop ce_specversion=1.0 ce_subject=€ "a" 100% ce_type=order.made content-type=text/plain; charset=utf-8]`}},
		"binary without data": {"/topics/t", []string{"ce-specversion: 1.0", "ce-id: 7", "ce-source: s", "ce-type: t", "ce-partitionkey: k"}, "",
			[]string{`k "" [ce_id=7 ce_partitionkey=k ce_source=s ce_specversion=1.0 ce_type=t]`}},
		"structured": {"/topics/t", []string{"Content-Type: application/cloudevents+json; charset=utf-8"}, `{"specversion":"1.0","id":"1","source":"s","type":"t","n":7,"yes":true,"none":null,"partitionkey":"k","data":{"a": 1.50}}`,
			[]string{`k "{\"a\": 1.50}" [ce_id=1 ce_n=7 ce_partitionkey=k ce_source=s ce_specversion=1.0 ce_type=t ce_yes=true content-type=application/json]`}},
		"structured text": {"/topics/t?key=mine", []string{"Content-Type: application/cloudevents+json"}, `{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"text/plain","partitionkey":"k","data":"a\nb"}`,
			[]string{`mine "a\nb" [ce_id=1 ce_partitionkey=k ce_source=s ce_specversion=1.0 ce_type=t content-type=text/plain]`}},
		"structured bytes": {"/topics/t", []string{"Content-Type: APPLICATION/cloudevents+JSON"}, `{"specversion":"1.0","id":"1","source":"s","type":"t","datacontenttype":"image/png","data_base64":"/w=="}`,
			[]string{`- "\xff" [ce_id=1 ce_source=s ce_specversion=1.0 ce_type=t content-type=image/png]`}},
		"a JSON text": {"/topics/t", []string{"Content-Type: application/cloudevents+json"}, `{"specversion":"1.0","id":"1","source":"s","type":"t","data":"x"}`,
			[]string{`- "\"x\"" [ce_id=1 ce_source=s ce_specversion=1.0 ce_type=t content-type=application/json]`}},
		"batch": {"/topics/t/batch", []string{"Content-Type: application/cloudevents-batch+json"}, `[{"specversion":"1.0","id":"1","source":"s","type":"t","data":1},{"specversion":"1.0","id":"2","source":"s","type":"t"}]`,
			[]string{`- "1" [ce_id=1 ce_source=s ce_specversion=1.0 ce_type=t content-type=application/json]`, `- "" [ce_id=2 ce_source=s ce_specversion=1.0 ce_type=t]`}},
		"without data": {"/topics/t/batch", []string{"Content-Type: application/cloudevents-batch+json"}, `[{"specversion":"1.0","id":"1","source":"s","type":"t","data":null},{"specversion":"1.0","id":"2","source":"s","type":"t","datacontenttype":"text/xml"},{"specversion":"1.0","id":"3","source":"s","type":"t","data_base64":"AA==","datacontenttype":null}]`,
			[]string{`- "" [ce_id=1 ce_source=s ce_specversion=1.0 ce_type=t]`, `- "" [ce_id=2 ce_source=s ce_specversion=1.0 ce_type=t content-type=text/xml]`, `- "\x00" [ce_id=3 ce_source=s ce_specversion=1.0 ce_type=t]`}},
		"times": {"/topics/t/batch", []string{"Content-Type: application/cloudevents-batch+json"}, `[{"specversion":"1.0","id":"1","source":"s","type":"t","time":"2026-01-31t08:00:60.5z"},{"specversion":"1.0","id":"2","source":"s","type":"t","time":"2026-01-31T08:00:00+02:00"}]`,
			[]string{`- "" [ce_id=1 ce_source=s ce_specversion=1.0 ce_time=2026-01-31t08:00:60.5z ce_type=t]`, `- "" [ce_id=2 ce_source=s ce_specversion=1.0 ce_time=2026-01-31T08:00:00+02:00 ce_type=t]`}},
		"batch at the topic": {"/topics/t", []string{"Content-Type: application/cloudevents-batch+json"}, `[{"specversion":"1.0","id":"1","source":"s","type":"t","data":1}]`,
			[]string{`- "1" [ce_id=1 ce_source=s ce_specversion=1.0 ce_type=t content-type=application/json]`}},
		"no event": {"/topics/t", []string{"Content-Type: application/json", "Ce-Id: 1"}, `{"specversion":"1.0"}`,
			[]string{`- "{\"specversion\":\"1.0\"}" []`}},
	} {
		n := len(s.sink.taken())
		status, text := s.post(c.path, strings.NewReader(c.body), c.headers...)
		got := s.sink.taken()[n:]
		if status != 200 || len(got) != len(c.want) {
			t.Errorf("%s: %d %s, %d messages", name, status, text, len(got))
			continue
		}
		for i := range got {
			sortHeaders(got[i].Headers) // a client of HTTP sends them in any order
			if messageText(got[i]) != c.want[i] {
				t.Errorf("%s:\n%s, want\n%s", name, messageText(got[i]), c.want[i])
			}
		}
	}
}

func sortHeaders(h []kgo.RecordHeader) {
	for i := range h {
		for j := i; j > 0 && h[j-1].Key > h[j].Key; j-- {
			h[j-1], h[j] = h[j], h[j-1]
		}
	}
}

func TestWhatIsNoEventIsRefused(t *testing.T) {
	s := serve(t, nil)
	const structured, whole = "Content-Type: application/cloudevents+json", `"specversion":"1.0","id":"1","source":"s","type":"t"`
	for name, c := range map[string]struct {
		headers []string
		body    string
		status  int
		says    string
	}{
		"no id":               {[]string{"ce-specversion: 1.0", "ce-source: s", "ce-type: t"}, "", 400, "no id"},
		"an old version":      {[]string{"ce-specversion: 0.3", "ce-id: 1", "ce-source: s", "ce-type: t"}, "", 400, "0.3"},
		"a strange attribute": {[]string{"ce-specversion: 1.0", "ce-id: 1", "ce-source: s", "ce-type: t", "ce-a-b: 1"}, "", 400, "a-b"},
		"not UTF-8":           {[]string{"ce-specversion: 1.0", "ce-id: %FF", "ce-source: s", "ce-type: t"}, "", 400, "UTF-8"},
		"XML":                 {[]string{"Content-Type: application/cloudevents+xml"}, "<a/>", 400, "cloudevents+json"},
		"no JSON":             {[]string{structured}, "x", 422, "JSON object"},
		"an attribute twice":  {[]string{structured}, `{` + whole + `,"id":"2"}`, 422, `"id" is given twice`},
		"half":                {[]string{structured}, `{"id":`, 422, "end of JSON"},
		"structured, no type": {[]string{structured}, `{"specversion":"1.0","id":"1","source":"s"}`, 422, "no type"},
		"an object":           {[]string{structured}, `{` + whole + `,"x":{}}`, 422, "x: an attribute is"},
		"a fraction":          {[]string{structured}, `{` + whole + `,"x":1.5}`, 422, "whole number"},
		"capitals":            {[]string{structured}, `{` + whole + `,"X":"1"}`, 422, `"X" is no name`},
		"two kinds of data":   {[]string{structured}, `{` + whole + `,"data":1,"data_base64":"AA=="}`, 422, "both given"},
		"no base64":           {[]string{structured}, `{` + whole + `,"data_base64":"*"}`, 422, "data_base64"},
		"a time":              {[]string{structured}, `{` + whole + `,"time":"yesterday"}`, 422, "RFC 3339"},
		"half a time":         {[]string{structured}, `{` + whole + `,"time":"2026-01-31"}`, 422, "RFC 3339"},
		"a time in a header":  {[]string{"ce-specversion: 1.0", "ce-id: 1", "ce-source: s", "ce-type: t", "ce-time: 1767225600"}, "", 400, "RFC 3339"},
		"half a pair":         {[]string{structured}, `{` + whole + `,"x":"\ud83d"}`, 422, "surrogate"},
		"a batch, one wrong":  {[]string{"Content-Type: application/cloudevents-batch+json"}, `[{` + whole + `},{"id":"2"}]`, 422, "line 2"},
		"a batch of nothing":  {[]string{"Content-Type: application/cloudevents-batch+json"}, `[]`, 400, "empty"},
		"no batch":            {[]string{"Content-Type: application/cloudevents-batch+json"}, `{` + whole + `}`, 422, "array"},
	} {
		status, text := s.post("/topics/t", strings.NewReader(c.body), c.headers...)
		var e api.ErrorBody
		if err := json.Unmarshal([]byte(text), &e); err != nil || status != c.status || !strings.Contains(e.Error.Message, c.says) {
			t.Errorf("%s: %d %s, want %d and %q", name, status, text, c.status, c.says)
		}
	}
	if status, text := s.post("/topics/t?key=k", strings.NewReader(`[{`+whole+`}]`), "Content-Type: application/cloudevents-batch+json"); status != 400 || !strings.Contains(text, "partitionkey") {
		t.Errorf("%d %s", status, text)
	}
	if n := len(s.sink.taken()); n > 0 {
		t.Errorf("%d messages", n)
	}
}

func TestTracesAreCarried(t *testing.T) {
	s := serve(t, nil)
	const parent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
	for name, c := range map[string]struct {
		path, body string
		headers    []string
		want       string
	}{
		"single":        {"/topics/t", "x", []string{"traceparent: " + parent, "tracestate: a=1", "tracestate: b=2"}, "traceparent=" + parent + " tracestate=a=1,b=2"},
		"its own":       {"/topics/t", "x", []string{"traceparent: " + parent, "Record-Header: traceparent=mine"}, "traceparent=mine"},
		"beside":        {"/topics/t", "x", []string{"traceparent: " + parent, "Record-Header: a=b"}, "a=b traceparent=" + parent},
		"batch":         {"/topics/t/batch?lines", "x", []string{"Traceparent: " + parent}, "traceparent=" + parent},
		"batch, beside": {"/topics/t/batch", `{"headers":{"a":"b"}}`, []string{"traceparent: " + parent}, "a=b traceparent=" + parent},
		"not valid":     {"/topics/t", "x", []string{"traceparent: 00-" + strings.Repeat("0", 32) + "-b7ad6b7169203331-01", "tracestate: a=1"}, ""},
		"capitals":      {"/topics/t", "x", []string{"traceparent: " + strings.ToUpper(parent)}, ""},
		"later":         {"/topics/t", "x", []string{"traceparent: 01" + parent[2:] + "-more"}, "traceparent=01" + parent[2:] + "-more"},
		"longer":        {"/topics/t", "x", []string{"traceparent: " + parent + "-more"}, ""},
	} {
		status, text := s.post(c.path, strings.NewReader(c.body), c.headers...)
		all := s.sink.taken()
		if status != 200 || len(all) == 0 {
			t.Fatalf("%s: %d %s", name, status, text)
		}
		var got []string
		for _, h := range all[len(all)-1].Headers {
			got = append(got, h.Key+"="+string(h.Value))
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%s: %s, want %s", name, got, c.want)
		}
	}
}

func TestEventsOfMessages(t *testing.T) {
	text := func(s string) *string { return &s }
	event := []api.HeaderPair{{Name: "ce_specversion", Value: text("1.0")}, {Name: "ce_id", Value: text("7")}, {Name: "ce_source", Value: text("s")}, {Name: "ce_type", Value: text("t")}, {Name: "ce_Strange", Value: text("x")}, {Name: "other", Value: text("x")}}
	with := func(more ...api.HeaderPair) []api.HeaderPair { return append(event[:len(event):len(event)], more...) }
	ofType := func(s string) api.HeaderPair { return api.HeaderPair{Name: "content-type", Value: &s} }
	const begins = `{"specversion":"1.0","id":"7","source":"s","type":"t","sidestreamid":"t/0/1"`
	const made = `{"specversion":"1.0","id":"t/0/1","source":"/topics/t","type":"sidestream.message","time":"2026-01-01T00:00:00.001Z","sidestreamid":"t/0/1"`
	for name, c := range map[string]struct {
		m    api.Message
		want string
	}{
		"JSON":           {api.Message{Value: text(`{"a": 1.50}`), Headers: with(ofType("application/json")), Key: text("k"), Receipt: "r", Attempt: 2}, begins + `,"sidestreamreceipt":"r","sidestreamattempt":2,"partitionkey":"k","datacontenttype":"application/json","data":{"a":1.50}}`},
		"text":           {api.Message{Value: text("1"), Headers: with(ofType("text/plain"))}, begins + `,"datacontenttype":"text/plain","data":"1"}`},
		"no JSON":        {api.Message{Value: text("{"), Headers: with(ofType("application/json"))}, begins + `,"datacontenttype":"application/json","data_base64":"ew=="}`},
		"bytes":          {api.Message{Value64: text("/w=="), Headers: with(ofType("text/plain"))}, begins + `,"datacontenttype":"text/plain","data_base64":"/w=="}`},
		"no type":        {api.Message{Value: text("hi"), Headers: event}, begins + `,"data_base64":"aGk="}`},
		"no data":        {api.Message{Headers: with(api.HeaderPair{Name: "traceparent", Value: text("p")}), Key64: text("/w==")}, begins + `,"traceparent":"p"}`},
		"empty":          {api.Message{Value: text(""), Headers: event}, begins + `}`},
		"empty JSON":     {api.Message{Value: text(""), Headers: with(ofType("application/json"))}, begins + `,"datacontenttype":"application/json"}`},
		"empty text":     {api.Message{Value: text(""), Headers: with(ofType("text/plain"))}, begins + `,"datacontenttype":"text/plain","data":""}`},
		"empty message":  {api.Message{Value: text(""), Timestamp: 1767225600001}, made + `,"data_base64":""}`},
		"no event":       {api.Message{Value: text("[1]"), Timestamp: 1767225600001}, made + `,"data":[1]}`},
		"no event, text": {api.Message{Value: text("hi"), Timestamp: 1767225600001}, made + `,"data_base64":"aGk="}`},
		"structured":     {api.Message{Value: text(` {"id":"9","data":1}`), Headers: []api.HeaderPair{ofType("application/cloudevents+json; charset=utf-8")}}, `{"id":"9","data":1,"sidestreamid":"t/0/1"}`},
	} {
		c.m.ID, c.m.Topic = "t/0/1", "t"
		b, err := appendEvent(nil, &c.m)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		var got, want map[string]any
		if err := json.Unmarshal(b, &got); err != nil {
			t.Fatalf("%s: %s: %v", name, b, err)
		}
		if err := json.Unmarshal([]byte(c.want), &want); err != nil {
			t.Fatal(err)
		}
		if !reflect.DeepEqual(got, want) {
			t.Errorf("%s:\n%s, want\n%s", name, b, c.want)
		}
	}
}

// What one side writes the other reads.
func TestEventHeaderValues(t *testing.T) {
	for _, s := range []string{"", "a", "€ uro", `"quoted"`, "100%", "%41", "a\x00\n", "😀", `a\b`} {
		w := eventHeaderText(s)
		if !fitsHeader(w) && s != "" {
			t.Errorf("%q is written %q", s, w)
		}
		if got := eventHeaderValue(w); got != s {
			t.Errorf("%q came back as %q", s, got)
		}
	}
}
