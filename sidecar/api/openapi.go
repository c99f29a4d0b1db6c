package api

import (
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
)

// object is a JSON object of the document.
type object = map[string]any

// document is the API as OpenAPI 3.1 describes it.
type document struct {
	OpenAPI    string                       `json:"openapi"`
	Info       object                       `json:"info"`
	Servers    []object                     `json:"servers"`
	Tags       []object                     `json:"tags"`
	Paths      map[string]map[string]object `json:"paths"`
	Components struct {
		Schemas    object            `json:"schemas"`
		Parameters object            `json:"parameters"`
		Responses  map[string]object `json:"responses"`
		Headers    object            `json:"headers"`
	} `json:"components"`
}

const aboutAPI = `Post events to localhost, pull messages from localhost.

Every GET is answered as HEAD too, without the body. A method that a path does not have is 405 with Allow, a path that is not there 404. ` +
	`Options that an operation does not name are refused with 400, and none may be given twice. ` +
	`Request bodies may be packed once (Content-Encoding: gzip or zstd) and may come in chunks; JSON bodies are read as JSON whatever their Content-Type. ` +
	`A request without a body in its description may have one all the same: it is read and has no effect, but what is larger than max_request_bytes is 413. ` +
	`A connection beyond max_connections is answered 429 rate_limited, whatever it asks, and closed. ` +
	`Durations are written as 500ms, 30s or 2m, or as a whole number of seconds.`

// getOpenAPI is GET /openapi.json: this API for programs.
func (s *Server) getOpenAPI(c *call) error {
	c.SetContentType(api.ContentTypeJSON)
	c.SetStatusCode(fasthttp.StatusOK)
	c.Response.SetBodyRaw(s.openAPI())
	return nil
}

// describeAPI is the document as it is served. Types cannot fail to be written.
func (s *Server) describeAPI() []byte {
	b, err := json.Marshal(describeRoutes(s.routes(), s.opt))
	if err != nil {
		panic(fmt.Sprintf("the description of the API: %v", err))
	}
	return append(b, '\n')
}

// describeRoutes describes what the routes take and answer: what reflection can
// know from the types, the rest from the tables beside this file. A route that
// the table does not have is described by its path and options alone. It is pure.
func describeRoutes(routes []route, opt Options) document {
	d := document{OpenAPI: "3.1.0", Servers: []object{{"url": "/"}}, Paths: map[string]map[string]object{}}
	d.Info = object{
		"title": "Sidestream sidecar", "version": opt.Version, "description": aboutAPI,
		"license": object{"name": "Apache-2.0", "identifier": "Apache-2.0"},
	}
	for _, t := range apiTags {
		d.Tags = append(d.Tags, object{"name": t[0], "description": t[1]})
	}
	d.Components.Parameters, d.Components.Headers = object{}, object{}
	d.Components.Responses = map[string]object{}
	w := &describer{doc: &d, types: newSchemas(), opt: opt}
	for _, t := range linesOnly {
		w.types.of(t)
	}
	for _, r := range routes {
		if d.Paths[r.pattern] == nil {
			d.Paths[r.pattern] = map[string]object{}
		}
		d.Paths[r.pattern][strings.ToLower(r.method)] = w.operation(r)
	}
	d.Components.Schemas = w.types.defs
	return d
}

// describer describes routes one by one and collects what they share.
type describer struct {
	doc   *document
	types *schemas
	opt   Options
}

func (w *describer) operation(r route) object {
	o, known := operations[r.method+" "+r.pattern]
	if !known {
		o = operation{id: strings.ToLower(r.method) + strings.NewReplacer("/", "_", "{", "", "}", "").Replace(r.pattern)}
	}
	out := object{"operationId": o.id, "responses": w.responses(r, o)}
	if o.tag != "" {
		out["tags"] = []string{o.tag}
	}
	if o.summary != "" {
		out["summary"] = o.summary
	}
	if o.text != "" {
		out["description"] = o.text
	}
	if ps := w.parameters(r, o); len(ps) > 0 {
		out["parameters"] = ps
	}
	if o.body != nil {
		content := w.content(o.body.content)
		if r.pattern == batchPattern {
			array := content[api.ContentTypeJSON].(object)["schema"].(object)
			array["maxItems"] = w.opt.MaxBatch
		}
		out["requestBody"] = object{"description": o.body.text, "required": o.body.required, "content": content}
	}
	return out
}

// parameters are those of the path, the query options and the headers.
func (w *describer) parameters(r route, o operation) []object {
	var list []object
	for part := range strings.SplitSeq(r.pattern, "/") {
		if strings.HasPrefix(part, "{") {
			list = append(list, parameter("path", strings.Trim(part, "{}"), lookUpOption(pathElements, o.id, strings.Trim(part, "{}"))))
		}
	}
	for _, name := range r.options {
		list = append(list, parameter("query", name, lookUpOption(queryOptions, o.id, name)))
	}
	for _, name := range o.headers {
		w.doc.Components.Parameters[name] = parameter("header", name, requestHeaders[name])
		list = append(list, object{"$ref": "#/components/parameters/" + name})
	}
	return list
}

func parameter(in, name string, o option) object {
	p := object{"name": name, "in": in, "schema": o.orText()}
	if o.text != "" {
		p["description"] = o.text
	}
	if o.example != nil {
		p["example"] = o.example
	}
	if in == "path" {
		p["required"] = true
	}
	return p
}

// lookUpOption finds what the operation has of its own under "id.name", else
// what all have.
func lookUpOption(in map[string]option, id, name string) option {
	if o, ok := in[id+"."+name]; ok {
		return o
	}
	return in[name]
}

// content turns media types with Go types or schemas into the document's form.
func (w *describer) content(types map[string]any) object {
	out := object{}
	for media, is := range types {
		switch is := is.(type) {
		case nil:
			out[media] = object{}
		case reflect.Type:
			out[media] = object{"schema": w.types.of(is)}
		case object:
			out[media] = object{"schema": is}
		case oneOf:
			var types []object
			for _, t := range is {
				types = append(types, w.types.of(t))
			}
			out[media] = object{"schema": object{"anyOf": types}}
		}
	}
	return out
}

// responses are all statuses of a route: what it answers when all goes well, and
// the errors by their codes.
func (w *describer) responses(r route, o operation) map[string]object {
	out := map[string]object{}
	for status, a := range o.answers {
		res := object{"description": a.text}
		if len(a.content) > 0 {
			res["content"] = w.content(a.content)
		}
		if names := slices.Concat(a.headers, o.marks); len(names) > 0 {
			res["headers"] = w.headers(names)
		}
		out[strconv.Itoa(status)] = res
	}
	byStatus := map[int][]api.Code{}
	for _, code := range codesOf(r, o) {
		if !slices.Contains(byStatus[code.Status()], code) {
			byStatus[code.Status()] = append(byStatus[code.Status()], code)
		}
	}
	for status, codes := range byStatus {
		key := strconv.Itoa(status)
		if own, has := out[key]; has { // it is told apart by its media type or its fields
			w.addTo(own, status, codes, o)
			continue
		}
		if o.refused != nil {
			out[key] = w.refusal(status, codes, o.refused, o.marks...)
			continue
		}
		slices.Sort(codes)
		out[key] = w.shared(joinCodes(codes, "-"), w.refusal(status, codes, reflect.TypeFor[api.ErrorBody]()))
	}
	for name, of := range unreadable {
		out[strconv.Itoa(of.status)] = w.shared(name, w.withText(of.text, w.refusal(of.status, []api.Code{api.CodeBadRequest}, reflect.TypeFor[api.ErrorBody]())))
	}
	return out
}

// codesOf are the error codes that a request at a route can be answered.
func codesOf(r route, o operation) []api.Code {
	codes := append(slices.Clone(everywhere), o.codes...)
	if r.refusedInDrain {
		codes = append(codes, api.CodeDraining)
	}
	return codes
}

// refusal is an answer that is an error of one of the codes.
func (w *describer) refusal(status int, codes []api.Code, body reflect.Type, marks ...string) object {
	text := ""
	for i, code := range codes {
		if i > 0 {
			text += "\n\n"
		}
		text += "`" + string(code) + "`: " + codeWords[code]
	}
	out := object{"description": text, "content": object{api.ContentTypeJSON: object{"schema": w.refusalSchema(codes, body)}}}
	if mayTellWhen(status) {
		marks = append([]string{api.HeaderRetryAfter}, marks...)
	}
	if len(marks) > 0 {
		out["headers"] = w.headers(marks)
	}
	return out
}

func (w *describer) refusalSchema(codes []api.Code, body reflect.Type) object {
	return object{"allOf": []object{
		w.types.of(body),
		{"properties": object{"error": object{"properties": object{"code": object{"enum": codes}}}}},
	}}
}

// addTo lets an answer of its own kind be an error too.
func (w *describer) addTo(own object, status int, codes []api.Code, o operation) {
	content, _ := own["content"].(object)
	body := o.refused
	if body == nil {
		body = reflect.TypeFor[api.ErrorBody]()
	}
	refused := w.refusal(status, codes, body)
	own["description"] = fmt.Sprintf("%s\n\n%s", own["description"], refused["description"])
	if was, ok := content[api.ContentTypeJSON].(object); ok {
		content[api.ContentTypeJSON] = object{"schema": object{"anyOf": []any{was["schema"], w.refusalSchema(codes, body)}}}
		return
	}
	content[api.ContentTypeJSON] = object{"schema": w.refusalSchema(codes, body)}
}

func (w *describer) withText(text string, response object) object {
	response["description"] = text
	return response
}

// shared keeps a response under a name and refers to it.
func (w *describer) shared(name string, response object) object {
	w.doc.Components.Responses[name] = response
	return object{"$ref": "#/components/responses/" + name}
}

func (w *describer) headers(names []string) object {
	out := object{}
	for _, name := range names {
		o := responseHeaders[name]
		w.doc.Components.Headers[name] = object{"description": o.text, "schema": o.orText()}
		out[name] = object{"$ref": "#/components/headers/" + name}
	}
	return out
}

// mayTellWhen says of which statuses some answers come with Retry-After.
func mayTellWhen(status int) bool {
	return status == fasthttp.StatusTooManyRequests || status == fasthttp.StatusServiceUnavailable
}

func joinCodes(codes []api.Code, with string) string {
	var words []string
	for _, c := range codes {
		words = append(words, string(c))
	}
	return strings.Join(words, with)
}
