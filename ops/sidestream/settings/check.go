package settings

import (
	"errors"
	"reflect"
	"strings"
)

// Check validates a configuration, a pointer to a struct with a method
// Validate() error, and returns everything that is wrong with it. A Validate
// stops at its first error, whose text begins with the key: that key is put to
// its default, in a copy, and the copy is validated again. defaults is another
// pointer to such a struct, untouched.
//
// Sections that can be validated alone are so first: an error that no single
// key explains then hides nothing of the other sections.
func Check(cfg, defaults any) error {
	scratch := reflect.New(reflect.TypeOf(cfg).Elem())
	scratch.Elem().Set(reflect.ValueOf(cfg).Elem())
	c := checker{byPath: map[string][2]Field{}, seen: map[string]bool{}}
	standard := Fields(defaults)
	for i, f := range Fields(scratch.Interface()) {
		c.byPath[f.Path] = [2]Field{f, standard[i]}
	}
	c.sections(scratch.Elem(), "")
	return errors.Join(c.errs...)
}

type checker struct {
	byPath map[string][2]Field // key → the field of the copy, and the default
	seen   map[string]bool     // texts of errs
	errs   []error
}

// sections validates the structs inside v, then v.
func (c *checker) sections(v reflect.Value, prefix string) {
	for i := range v.NumField() {
		sf := v.Type().Field(i)
		name, options, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if name == "-" || !sf.IsExported() || sf.Type.Kind() != reflect.Struct {
			continue
		}
		if options == "inline" {
			c.sections(v.Field(i), prefix)
			continue
		}
		c.sections(v.Field(i), prefix+name+".")
	}
	if validated, ok := v.Addr().Interface().(interface{ Validate() error }); ok {
		c.exhaust(validated.Validate, prefix)
	}
}

// exhaust calls validate until it has nothing new to say.
func (c *checker) exhaust(validate func() error, prefix string) {
	for {
		news := false
		for _, err := range split(validate()) {
			text := prefix + err.Error()
			if !c.seen[text] {
				c.seen[text] = true
				c.errs = append(c.errs, prefixed{prefix, err})
			}
			news = c.reset(text) || news
		}
		if !news {
			return
		}
	}
}

// reset puts the keys that begin an error's text to their defaults: "key: …",
// or "key, key: …". It reports whether that changed anything.
func (c *checker) reset(text string) (changed bool) {
	keys, _, found := strings.Cut(text, ": ")
	if !found {
		return false
	}
	section := ""
	for key := range strings.SplitSeq(keys, ", ") {
		pair, known := c.byPath[key]
		if !known {
			pair, known = c.byPath[section+key] // a second key is named in its section
		}
		if !known {
			continue
		}
		if s := pair[0].Section(); s != "" {
			section = s + "."
		}
		if !reflect.DeepEqual(pair[0].value.Interface(), pair[1].value.Interface()) {
			pair[0].value.Set(pair[1].value)
			changed = true
		}
	}
	return changed
}

// split takes joined errors apart.
func split(err error) []error {
	if err == nil {
		return nil
	}
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		var errs []error
		for _, e := range joined.Unwrap() {
			errs = append(errs, split(e)...)
		}
		return errs
	}
	return []error{err}
}

// prefixed is an error of a section with the path of the section.
type prefixed struct {
	prefix string
	error
}

func (p prefixed) Error() string { return p.prefix + p.error.Error() }
func (p prefixed) Unwrap() error { return p.error }
