package httpd

import (
	"bytes"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strconv"
	"strings"
)

// CheckJSON finds what encoding/json takes in silence of a JSON object that it
// decodes into the struct *v, and is more likely a mistake of the sender: a field
// or a name of a map that is given twice, of which the last would count; null for
// a number, which is what JavaScript makes of NaN, or within a list or a map, which
// would be 0 or an empty text; a field that is one of the struct's but for the
// case of its letters. The error names the field, as in offsets.0. b is known to
// be valid JSON.
//
// null for a field of another kind is as if the field were left out.
func CheckJSON(b []byte, v any) error {
	t := reflect.TypeOf(v)
	for t.Kind() == reflect.Pointer {
		t = t.Elem()
	}
	c := &jsonCheck{d: json.NewDecoder(bytes.NewReader(b)), fields: kindsOf(t)}
	c.d.UseNumber() // no number is too large to be passed over
	return c.value("", 0)
}

// kindsOf are the fields of a struct by their JSON names.
func kindsOf(t reflect.Type) map[string]reflect.Kind {
	kinds := map[string]reflect.Kind{}
	for f := range t.Fields() {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		if name == "" || name == "-" {
			continue
		}
		ft := f.Type
		for ft.Kind() == reflect.Pointer {
			ft = ft.Elem()
		}
		kinds[name] = ft.Kind()
	}
	return kinds
}

type jsonCheck struct {
	d      *json.Decoder
	fields map[string]reflect.Kind
}

// value checks the value that comes next, which is at a path.
func (c *jsonCheck) value(path string, depth int) error {
	t, err := c.d.Token()
	if err != nil {
		return err
	}
	switch t {
	case nil:
		return c.null(path, depth)
	case json.Delim('{'):
		err = c.object(path, depth)
	case json.Delim('['):
		for i := 0; c.d.More() && err == nil; i++ {
			err = c.value(path+"."+strconv.Itoa(i), depth+1)
		}
	default:
		return nil
	}
	if err == nil {
		_, err = c.d.Token() // the bracket at its end
	}
	return err
}

func (c *jsonCheck) object(path string, depth int) error {
	seen := map[string]struct{}{}
	for c.d.More() {
		t, err := c.d.Token()
		if err != nil {
			return err
		}
		name, _ := t.(string)
		at := strings.TrimPrefix(path+"."+name, ".")
		if _, twice := seen[name]; twice {
			return fmt.Errorf("the field %q is given twice: use one", at)
		}
		seen[name] = struct{}{}
		if _, ok := c.fields[name]; depth == 0 && !ok {
			return fmt.Errorf("unknown field %q", name)
		}
		if err := c.value(at, depth+1); err != nil {
			return err
		}
	}
	return nil
}

// numbers are the kinds of which null is refused.
var numbers = []reflect.Kind{
	reflect.Int, reflect.Int8, reflect.Int16, reflect.Int32, reflect.Int64,
	reflect.Uint, reflect.Uint8, reflect.Uint16, reflect.Uint32, reflect.Uint64, reflect.Float32, reflect.Float64,
}

func (c *jsonCheck) null(path string, depth int) error {
	switch {
	case depth > 1 || depth == 0:
		return fmt.Errorf("%q is null: use a value (JavaScript writes NaN as null)", path)
	case slices.Contains(numbers, c.fields[path]):
		return fmt.Errorf("%q is null: use a number, or leave it out (JavaScript writes NaN as null)", path)
	}
	return nil
}
