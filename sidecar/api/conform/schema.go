package conform

import (
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"math/big"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"time"
	"unicode/utf8"
)

// Check tells in what a value is not of a schema. An object may have only the
// fields that its schemas name, unless they say of which kind others are: a
// client may be told more one day, but what is answered now must be documented.
func (d *Document) Check(schema, v any) error { return d.whole(schema, v, "") }

// whole checks a value and all in it.
func (d *Document) whole(schema, v any, at string) error {
	known, err := d.apply(schema, v, at)
	if o, ok := v.(object); ok && err == nil && known != nil && !known["*"] {
		for _, name := range slices.Sorted(maps.Keys(o)) {
			if !known[name] {
				err = errors.Join(err, fmt.Errorf("%s: field %q is not documented", place(at), name))
			}
		}
	}
	return err
}

// apply checks a value against one of its schemas and returns the fields that
// this one names; "*" stands for all others. Nil: it says nothing of fields.
func (d *Document) apply(schema, v any, at string) (known map[string]bool, err error) {
	s, ok := schema.(object)
	if !ok {
		return nil, fmt.Errorf("%s: the schema is %v", place(at), schema)
	}
	c := &check{d: d, s: s, v: v, at: at}
	for _, keyword := range slices.Sorted(maps.Keys(s)) {
		do, ok := keywords[keyword]
		if !ok {
			return nil, fmt.Errorf("%s: the schema has %q, which this check does not know", place(at), keyword)
		}
		if do != nil {
			do(c, s[keyword])
		}
	}
	if t, ok := s["type"]; ok && t == "object" && s["properties"] == nil && s["additionalProperties"] == nil {
		c.names("*") // any object
	}
	return c.known, errors.Join(c.errs...)
}

// check is one schema against one value.
type check struct {
	d     *Document
	s     object
	v     any
	at    string
	known map[string]bool
	errs  []error
}

func place(at string) string {
	if at == "" {
		return "the value"
	}
	return at
}

func (c *check) fail(format string, args ...any) {
	c.errs = append(c.errs, fmt.Errorf("%s: %s", place(c.at), fmt.Sprintf(format, args...)))
}

func (c *check) names(list ...string) {
	if c.known == nil {
		c.known = map[string]bool{}
	}
	for _, n := range list {
		c.known[n] = true
	}
}

// keywords are what each does; nil for those that assert nothing.
var keywords map[string]func(c *check, is any)

func init() {
	keywords = map[string]func(c *check, is any){
		"$ref": func(c *check, is any) { c.all([]any{c.d.at(is.(string))}) },
		"type": (*check).kind, "format": (*check).format,
		"enum":       (*check).enum,
		"allOf":      func(c *check, is any) { c.all(is.([]any)) },
		"anyOf":      func(c *check, is any) { c.some(is.([]any), 1, len(is.([]any))) },
		"oneOf":      func(c *check, is any) { c.some(is.([]any), 1, 1) },
		"not":        func(c *check, is any) { c.some([]any{is}, 0, 0) },
		"properties": (*check).properties, "additionalProperties": (*check).others, "required": (*check).required,
		"items":   (*check).items,
		"minimum": func(c *check, is any) { c.bound(is, -1) }, "maximum": func(c *check, is any) { c.bound(is, 1) },
		"minLength": func(c *check, is any) { c.length(is, -1) }, "maxLength": func(c *check, is any) { c.length(is, 1) },
		"minItems": func(c *check, is any) { c.count(is, -1) }, "maxItems": func(c *check, is any) { c.count(is, 1) },
		"minProperties": func(c *check, is any) { c.count(is, -1) },
		"pattern":       (*check).pattern,
		"description":   nil, "default": nil, "contentEncoding": nil, "x-line": nil, "x-data": nil,
	}
}

// all applies schemas that must all hold.
func (c *check) all(schemas []any) {
	for _, s := range schemas {
		known, err := c.d.apply(s, c.v, c.at)
		if err != nil {
			c.errs = append(c.errs, err)
		}
		c.names(slices.Collect(maps.Keys(known))...)
	}
}

// some applies schemas of which least to most must hold.
func (c *check) some(schemas []any, least, most int) {
	var errs []error
	held := 0
	for _, s := range schemas {
		known, err := c.d.apply(s, c.v, c.at)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		held++
		c.names(slices.Collect(maps.Keys(known))...)
	}
	if held < least || held > most {
		c.fail("it is of %d of %d schemas, and must be of %d to %d: %v", held, len(schemas), least, most, errors.Join(errs...))
	}
}

// kind checks the type: one, or one of several.
func (c *check) kind(is any) {
	types, several := is.([]any)
	if !several {
		types = []any{is}
	}
	for _, t := range types {
		if isType(c.v, t.(string)) {
			return
		}
	}
	c.fail("%v is not of type %v", c.v, is)
}

func isType(v any, t string) bool {
	switch v := v.(type) {
	case nil:
		return t == "null"
	case bool:
		return t == "boolean"
	case string:
		return t == "string"
	case json.Number:
		return t == "number" || t == "integer" && !strings.ContainsAny(v.String(), ".eE")
	case []any:
		return t == "array"
	case object:
		return t == "object"
	}
	return false
}

var ranges = map[string]uint{"int32": 31, "int64": 63}

func (c *check) format(is any) {
	if bits, ok := ranges[is.(string)]; ok {
		if n, ok := c.number(c.v); ok {
			edge := new(big.Rat).SetInt(new(big.Int).Lsh(big.NewInt(1), bits))
			if n.Cmp(edge) >= 0 || n.Cmp(edge.Neg(edge)) < 0 {
				c.fail("%v is no %v", c.v, is)
			}
		}
		return
	}
	if s, ok := c.v.(string); ok && is == "date-time" {
		if _, err := time.Parse(time.RFC3339Nano, s); err != nil {
			c.fail("%v", err)
		}
	}
}

func (c *check) enum(is any) {
	for _, v := range is.([]any) {
		if reflect.DeepEqual(v, c.v) {
			return
		}
	}
	c.fail("%v is none of %v", c.v, is)
}

func (c *check) properties(is any) {
	o, ok := c.v.(object)
	if !ok {
		return
	}
	properties := is.(object)
	c.names(slices.Collect(maps.Keys(properties))...)
	for name, v := range o {
		if s, ok := properties[name]; ok {
			c.inside(s, v, c.at+"."+name)
		}
	}
}

// others is additionalProperties.
func (c *check) others(is any) {
	o, ok := c.v.(object)
	if !ok {
		return
	}
	properties, _ := c.s["properties"].(object)
	for name, v := range o {
		if _, ok := properties[name]; ok {
			continue
		}
		if is == false {
			c.fail("field %q is not taken", name)
		} else if is != true {
			c.inside(is, v, c.at+"."+name)
		}
	}
	c.names("*")
}

func (c *check) inside(schema, v any, at string) {
	var err error
	if onlyAdds(schema) {
		_, err = c.d.apply(schema, v, at)
	} else {
		err = c.d.whole(schema, v, at)
	}
	if err != nil {
		c.errs = append(c.errs, err)
	}
}

// onlyAdds says that a schema has properties and no type: it narrows those of a
// schema beside it, and says nothing of the fields that this one has.
func onlyAdds(schema any) bool {
	s, ok := schema.(object)
	return ok && s["properties"] != nil && s["type"] == nil
}

func (c *check) required(is any) {
	o, ok := c.v.(object)
	if !ok {
		return
	}
	for _, name := range is.([]any) {
		if _, ok := o[name.(string)]; !ok {
			c.fail("field %q is missing", name)
		}
	}
}

func (c *check) items(is any) {
	list, _ := c.v.([]any)
	for i, v := range list {
		c.inside(is, v, fmt.Sprintf("%s[%d]", c.at, i))
	}
}

func (c *check) number(v any) (*big.Rat, bool) {
	n, ok := v.(json.Number)
	if !ok {
		return nil, false
	}
	r, ok := new(big.Rat).SetString(n.String())
	if !ok {
		c.fail("%q is no number", n)
	}
	return r, ok
}

func (c *check) bound(is any, side int) {
	n, ok := c.number(c.v)
	edge, ok2 := c.number(is)
	if ok && ok2 && n.Cmp(edge) == side {
		c.fail("%v is beyond %v", c.v, is)
	}
}

func (c *check) length(is any, side int) {
	if s, ok := c.v.(string); ok {
		c.size(utf8.RuneCountInString(s), is, side)
	}
}

func (c *check) count(is any, side int) {
	switch v := c.v.(type) {
	case []any:
		c.size(len(v), is, side)
	case object:
		c.size(len(v), is, side)
	}
}

func (c *check) size(n int, is any, side int) {
	if edge, ok := c.number(is); ok && new(big.Rat).SetInt64(int64(n)).Cmp(edge) == side {
		c.fail("%d of them, beyond %v", n, is)
	}
}

func (c *check) pattern(is any) {
	if s, ok := c.v.(string); ok && !regexp.MustCompile(is.(string)).MatchString(s) {
		c.fail("%q is not as %v", s, is)
	}
}
