package api

import (
	"encoding/json"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sidestream/sdk/api"
	"sidestream/sidecar/api/conform"
)

// described is the document of a server that serves nothing.
func described(t *testing.T) (*Server, document) {
	t.Helper()
	s, err := New(Options{MaxBatch: 1000})
	if err != nil {
		t.Fatal(err)
	}
	return s, describeRoutes(s.routes(), s.opt)
}

// What a route takes must be described: a new route, option, header or code is
// missed here first.
func TestEveryRouteIsDescribed(t *testing.T) {
	s, doc := described(t)
	var routes []string
	ids := map[string]bool{}
	used := map[string]bool{}
	for _, r := range s.routes() {
		key := r.method + " " + r.pattern
		routes = append(routes, key)
		o, ok := operations[key]
		if !ok {
			t.Errorf("%s is not described: add it to operations in openapi_operations.go", key)
			continue
		}
		if o.summary == "" || o.tag == "" || ids[o.id] || len(o.answers) == 0 {
			t.Errorf("%s: it needs a summary, a tag, answers, and an id of its own: %+v", key, o)
		}
		ids[o.id] = true
		if !slices.ContainsFunc(apiTags, func(tag [2]string) bool { return tag[0] == o.tag }) {
			t.Errorf("%s: tag %q is not described", key, o.tag)
		}
		for status := range o.answers {
			if status >= 300 && status != 500 && status != 503 {
				t.Errorf("%s: errors are described by their codes, not as %d", key, status)
			}
		}
		for _, name := range r.options {
			have := lookUpOption(queryOptions, o.id, name)
			if have.text == "" {
				t.Errorf("%s: option %q is not described: add it to queryOptions in openapi_options.go", key, name)
			}
			used[o.id+"."+name], used[name] = true, true
		}
		for part := range strings.SplitSeq(r.pattern, "/") {
			if n, ok := strings.CutPrefix(part, "{"); ok {
				n = strings.TrimSuffix(n, "}")
				if lookUpOption(pathElements, o.id, n).text == "" {
					t.Errorf("%s: {%s} is not described", key, n)
				}
				used["{"+o.id+"."+n], used["{"+n] = true, true
			}
		}
		for _, h := range o.headers {
			if requestHeaders[h].text == "" {
				t.Errorf("%s: header %s is not described", key, h)
			}
			used["h"+h] = true
		}
		for _, a := range o.answers {
			for _, h := range slices.Concat(a.headers, o.marks) {
				if responseHeaders[h].text == "" {
					t.Errorf("%s: header %s of an answer is not described", key, h)
				}
				used["a"+h] = true
			}
		}
		for _, code := range o.codes {
			if codeWords[code] == "" {
				t.Errorf("%s: code %s is not described", key, code)
			}
		}
	}
	for key := range operations {
		if !slices.Contains(routes, key) {
			t.Errorf("%s is described and is no route", key)
		}
	}
	used["a"+api.HeaderRetryAfter] = true // where codes tell
	for prefix, names := range map[string][]string{
		"": slices.Collect(maps.Keys(queryOptions)), "{": slices.Collect(maps.Keys(pathElements)),
		"h": slices.Collect(maps.Keys(requestHeaders)), "a": slices.Collect(maps.Keys(responseHeaders)),
	} {
		for _, n := range names {
			if !used[prefix+n] {
				t.Errorf("%q is described and nothing has it", n)
			}
		}
	}
	have, err := conform.Parse(s.openAPI())
	if err != nil {
		t.Fatal(err)
	}
	slices.Sort(routes)
	if got := have.Operations(); !slices.Equal(got, routes) {
		t.Errorf("the document has\n%v\nthe routes are\n%v", got, routes)
	}
	if doc.OpenAPI != "3.1.0" {
		t.Errorf("%s", doc.OpenAPI)
	}
}

// The options that the document gives an operation are those that the route
// takes, no more and no fewer, each once.
func TestOptionsAreThoseOfTheRoute(t *testing.T) {
	s, doc := described(t)
	for _, r := range s.routes() {
		var query []string
		ps, _ := doc.Paths[r.pattern][strings.ToLower(r.method)]["parameters"].([]object)
		for _, p := range ps {
			if p["in"] == "query" {
				query = append(query, p["name"].(string))
			}
		}
		if !slices.Equal(query, r.options) {
			t.Errorf("%s %s: described %v, taken %v", r.method, r.pattern, query, r.options)
		}
	}
}

// Rules of fields are for fields that are there, and each code and each value of
// a named type is in the document: reflection cannot see constants.
func TestWhatReflectionCannotSee(t *testing.T) {
	_, doc := described(t)
	for key := range fieldRules {
		typ, field, _ := strings.Cut(key, ".")
		def, _ := doc.Components.Schemas[typ].(object)
		if def == nil || !goHasField(t, typ, field) {
			t.Errorf("a rule for %s, which is not there", key)
		}
	}
	constants := constantsOf(t)
	for typ, values := range namedValues {
		want := constants[typ.Name()]
		slices.Sort(want)
		var got []string
		v := reflect.ValueOf(values)
		for i := range v.Len() {
			got = append(got, v.Index(i).String())
		}
		slices.Sort(got)
		if len(want) == 0 || !slices.Equal(got, want) {
			t.Errorf("%s: described %q, the constants are %q", typ.Name(), got, want)
		}
	}
	for code, text := range codeWords {
		if code.Status() == 500 && code != api.CodeInternal && code != api.CodeCorruptRecord {
			t.Errorf("code %s has no status of its own", code)
		}
		if text == "" {
			t.Errorf("code %s: no words", code)
		}
	}
}

// typesOfAPI are the declarations of package sdk/api.
func typesOfAPI(t *testing.T) []*ast.File {
	t.Helper()
	names, err := filepath.Glob("../../sdk/api/*.go")
	if err != nil || len(names) == 0 {
		t.Fatalf("sdk/api: %d files, %v", len(names), err)
	}
	var files []*ast.File
	for _, n := range names {
		f, err := parser.ParseFile(token.NewFileSet(), n, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files = append(files, f)
	}
	return files
}

func goHasField(t *testing.T, typ, field string) (found bool) {
	t.Helper()
	for _, f := range typesOfAPI(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.TypeSpec)
			if !ok || spec.Name.Name != typ {
				return true
			}
			if s, ok := spec.Type.(*ast.StructType); ok {
				for _, list := range s.Fields.List {
					for _, n := range list.Names {
						found = found || n.Name == field
					}
				}
			}
			return false
		})
	}
	return found
}

// constantsOf are the values of constants by their named type.
func constantsOf(t *testing.T) map[string][]string {
	t.Helper()
	out := map[string][]string{}
	for _, f := range typesOfAPI(t) {
		ast.Inspect(f, func(n ast.Node) bool {
			spec, ok := n.(*ast.ValueSpec)
			if !ok {
				return true
			}
			if typ, ok := spec.Type.(*ast.Ident); ok && len(spec.Values) == 1 {
				if lit, ok := spec.Values[0].(*ast.BasicLit); ok {
					if s, err := strconv.Unquote(lit.Value); err == nil {
						out[typ.Name] = append(out[typ.Name], s)
					}
				}
			}
			return true
		})
	}
	return out
}

// Each reference leads somewhere, and what is there is used.
func TestReferences(t *testing.T) {
	s, doc := described(t)
	text := string(s.openAPI())
	for section, names := range map[string][]string{
		"schemas": slices.Collect(maps.Keys(doc.Components.Schemas)), "parameters": slices.Collect(maps.Keys(doc.Components.Parameters)),
		"responses": slices.Collect(maps.Keys(doc.Components.Responses)), "headers": slices.Collect(maps.Keys(doc.Components.Headers)),
	} {
		for _, n := range names {
			if !strings.Contains(text, `"#/components/`+section+`/`+n+`"`) {
				t.Errorf("nothing refers to %s %s", section, n)
			}
		}
		for rest := text; ; {
			_, after, found := strings.Cut(rest, `"#/components/`+section+`/`)
			if !found {
				break
			}
			name, _, _ := strings.Cut(after, `"`)
			if !slices.Contains(names, name) {
				t.Errorf("%s %s is referred to and not there", section, name)
			}
			rest = after
		}
	}
}

// Each field of each schema is described, and each description is one of a field
// that is there: of its own type, or of several that share it. The same is said
// in one place only.
func TestEveryFieldIsDescribed(t *testing.T) {
	s, _ := described(t)
	var doc any
	if err := json.Unmarshal(s.openAPI(), &doc); err != nil {
		t.Fatal(err)
	}
	have := map[string]int{}
	eachField(doc, "", func(at string, field map[string]any) {
		text, _ := field["description"].(string)
		if text == "" {
			t.Errorf("%s is not described: add it to fieldWords in openapi_fields.go", at)
		}
		have[text]++
	})
	if len(have) < 100 {
		t.Errorf("only %d descriptions were found", len(have))
	}
	keys := map[string]string{}
	for _, key := range slices.Sorted(maps.Keys(fieldWords)) {
		text := fieldWords[key]
		switch _, field, own := strings.Cut(key, "."); {
		case !own && have[text] < 2:
			t.Errorf("%s is described for all that have such a field, and %d have", key, have[text])
		case own && have[text] == 0:
			t.Errorf("%s is described, and there is no such field", key)
		case own && text == fieldWords[field]:
			t.Errorf("%s is described as %s is for all", key, field)
		}
		if !strings.HasSuffix(text, ".") {
			t.Errorf("%s: %q is no sentence", key, text)
		}
		if other, said := keys[text]; said {
			t.Errorf("%s and %s are described alike: %q", other, key, text)
		}
		keys[text] = key
	}
}

// eachField shows the fields of all objects in a document. Schemas without a
// type only say more of an object that another describes.
func eachField(v any, at string, visit func(at string, field map[string]any)) {
	switch v := v.(type) {
	case []any:
		for i, e := range v {
			eachField(e, at+"/"+strconv.Itoa(i), visit)
		}
	case map[string]any:
		fields, _ := v["properties"].(map[string]any)
		for name, e := range v {
			eachField(e, at+"/"+name, visit)
		}
		for name, f := range fields {
			if f, ok := f.(map[string]any); ok && v["type"] == "object" {
				visit(at+"/"+name, f)
			}
		}
	}
}
