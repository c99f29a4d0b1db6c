package conform

import (
	"net/http"
	"strings"
	"testing"
)

const small = `{
  "paths": {
    "/things": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {"type": "array", "items": {"$ref": "#/components/schemas/Thing"}}}}}}}},
    "/things/{id}": {
      "get": {"responses": {"200": {"headers": {"Sidestream-Count": {"schema": {"type": "integer"}}}, "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}},
        "404": {"$ref": "#/components/responses/gone"}}},
      "delete": {"responses": {"204": {}}}},
    "/things/new": {"get": {"responses": {"200": {"content": {"text/plain": {}}}}}}
  },
  "components": {
    "responses": {"gone": {"content": {"application/json": {"schema": {"allOf": [{"$ref": "#/components/schemas/Error"}, {"properties": {"error": {"properties": {"code": {"enum": ["gone"]}}}}}]}}}}},
    "schemas": {
      "Error": {"type": "object", "required": ["error"], "properties": {"error": {"type": "object", "required": ["code"], "properties": {"code": {"type": "string"}, "line": {"type": "integer", "format": "int32", "minimum": 1}}}}},
      "Thing": {"type": "object", "required": ["id"], "properties": {
        "id": {"type": "string", "minLength": 1, "maxLength": 3, "pattern": "^[a-z]+$", "not": {"enum": ["no"]}},
        "at": {"type": "string", "format": "date-time"},
        "more": {"anyOf": [{"type": "string"}, {"type": "null"}]},
        "either": {"oneOf": [{"type": "integer"}, {"type": "number", "maximum": 10}]},
        "tags": {"type": "object", "additionalProperties": {"type": "integer"}},
        "list": {"type": ["array", "null"], "minItems": 1, "maxItems": 2, "items": {"type": "boolean"}},
        "any": {"type": "object"}, "shut": {"type": "object", "properties": {"a": {}}, "additionalProperties": false},
        "inner": {"$ref": "#/components/schemas/Thing"}}}
    }
  }
}`

func TestAnswer(t *testing.T) {
	d, err := Parse([]byte(small))
	if err != nil {
		t.Fatal(err)
	}
	json := "application/json; charset=utf-8"
	for _, c := range []struct {
		method, path string
		status       int
		header, body string // "Name: value", and the type in front
		wrong        string // "": it is as it must be
	}{
		{"GET", "/things", 200, json, `[{"id":"a"},{"id":"b","inner":{"id":"c"}}]`, ""},
		{"GET", "/things?x=y", 200, json, `[]`, ""},
		{"HEAD", "/things", 200, json, ``, ""},
		{"GET", "/things/a", 200, json, `{"id":"a","at":"2026-01-31T08:00:00Z","more":null,"either":11,"tags":{"x":1},"list":[true],"any":{"x":1},"shut":{"a":2}}`, ""},
		{"GET", "/things/a", 200, json + "\nSidestream-Count: 3", `{"id":"a"}`, ""},
		{"GET", "/things/a", 404, json, `{"error":{"code":"gone","line":3}}`, ""},
		{"DELETE", "/things/a", 204, "", ``, ""},
		{"GET", "/things/new", 200, "text/plain", `hi`, ""},
		{"POST", "/things/a", 405, "\nAllow: DELETE, GET", ``, ""},
		{"GET", "/nothing", 404, json, `{"what":"ever"}`, ""},
		{"GET", "/nothing", 403, json, `{}`, ""},

		{"GET", "/things/a", 500, json, `{}`, "status 500 is not documented"},
		{"GET", "/things/new", 200, json, `{}`, "media type application/json is not documented"},
		{"GET", "/things/new", 200, "", `{}`, "Content-Type"},
		{"GET", "/things/a", 200, json + "\nSidestream-Count: many", `{"id":"a"}`, "Sidestream-Count"},
		{"GET", "/things/a", 200, json + "\nSidestream-Other: 1", `{"id":"a"}`, "Sidestream-Other is not documented"},
		{"DELETE", "/things/a", 204, json, `{}`, "a body is not documented"},
		{"POST", "/things/a", 405, "", ``, "Allow"},
		{"POST", "/things/a", 200, "", ``, "method is not documented"},
		{"GET", "/nothing", 200, "", ``, "path is not documented"},
		{"GET", "/things/a", 404, json, `{"error":{"code":"other"}}`, "none of"},
		{"GET", "/things/a", 404, json, `{"error":{"code":"gone","line":0}}`, "beyond 1"},
		{"GET", "/things/a", 404, json, `{"error":{"code":"gone","line":2147483648}}`, "no int32"},
		{"GET", "/things/a", 404, json, `{"error":{"code":"gone"},"extra":1}`, `"extra" is not documented`},
		{"GET", "/things/a", 404, json, `{"error":{"code":"gone","extra":1}}`, `"extra" is not documented`},
		{"GET", "/things/a", 200, json, `{}`, `"id" is missing`},
		{"GET", "/things/a", 200, json, `{"id":""}`, "beyond 1"},
		{"GET", "/things/a", 200, json, `{"id":"abcd"}`, "beyond 3"},
		{"GET", "/things/a", 200, json, `{"id":"A"}`, "is not as"},
		{"GET", "/things/a", 200, json, `{"id":"no"}`, "must be of 0 to 0"},
		{"GET", "/things/a", 200, json, `{"id":1}`, "not of type"},
		{"GET", "/things/a", 200, json, `{"id":"a","at":"soon"}`, "cannot parse"},
		{"GET", "/things/a", 200, json, `{"id":"a","more":1}`, "0 of 2 schemas"},
		{"GET", "/things/a", 200, json, `{"id":"a","either":3}`, "2 of 2 schemas"},
		{"GET", "/things/a", 200, json, `{"id":"a","tags":{"x":"y"}}`, "tags.x"},
		{"GET", "/things/a", 200, json, `{"id":"a","list":[]}`, "beyond 1"},
		{"GET", "/things/a", 200, json, `{"id":"a","list":[true,1]}`, "list[1]"},
		{"GET", "/things/a", 200, json, `{"id":"a","shut":{"b":2}}`, `"b" is not taken`},
		{"GET", "/things/a", 200, json, `{"id":"a","inner":{"id":"a","x":1}}`, `.inner: field "x" is not documented`},
		{"GET", "/things/a", 200, json, `{"id":"a"} {}`, "more after the JSON"},
	} {
		h := http.Header{}
		media, rest, _ := strings.Cut(c.header, "\n")
		if media != "" {
			h.Set("Content-Type", media)
		}
		if name, value, ok := strings.Cut(rest, ": "); ok {
			h.Set(name, value)
		}
		err := d.Answer(c.method, c.path, c.status, h, []byte(c.body))
		if c.wrong == "" && err != nil || c.wrong != "" && (err == nil || !strings.Contains(err.Error(), c.wrong)) {
			t.Errorf("%s %s %d %s: got %v, want %q", c.method, c.path, c.status, c.body, err, c.wrong)
		}
	}
	if _, err := Parse([]byte("[]")); err == nil {
		t.Error("a list is a document")
	}
	if err := d.Check(object{"multipleOf": 3}, "x"); err == nil || !strings.Contains(err.Error(), "does not know") {
		t.Errorf("an unknown keyword: %v", err)
	}
}
