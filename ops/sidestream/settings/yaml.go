package settings

import (
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// readYAML sets fields from a YAML text and returns everything that is wrong
// with it, each with file and line.
func readYAML(file string, text []byte, fields []Field, origins map[string]Origin) []error {
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return []error{fmt.Errorf("%s: %s", file, strings.TrimPrefix(err.Error(), "yaml: "))}
	}
	if len(doc.Content) == 0 { // an empty file
		return nil
	}
	r := reader{file: file, byPath: map[string]Field{}, sections: map[string][]string{}, origins: origins}
	for _, f := range fields {
		r.byPath[f.Path] = f
		for path := f.Path; path != ""; {
			section, name := "", path
			if i := strings.LastIndexByte(path, '.'); i >= 0 {
				section, name = path[:i], path[i+1:]
			}
			if !contains(r.sections[section], name) {
				r.sections[section] = append(r.sections[section], name)
			}
			path = section
		}
	}
	r.section("", doc.Content[0])
	return r.errs
}

type reader struct {
	file     string
	byPath   map[string]Field
	sections map[string][]string // path of a section → names of the keys in it
	origins  map[string]Origin
	errs     []error
}

func (r *reader) fail(n *yaml.Node, format string, args ...any) {
	r.errs = append(r.errs, fmt.Errorf("%s:%d: %s", r.file, n.Line, fmt.Sprintf(format, args...)))
}

func (r *reader) section(path string, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	if isNull(n) { // a section without keys
		return
	}
	if n.Kind != yaml.MappingNode {
		r.fail(n, "%s: expected keys under it (%s), got %s", orTop(path), strings.Join(r.sections[path], ", "), describe(n))
		return
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, value := n.Content[i], n.Content[i+1]
		full := key.Value
		if path != "" {
			full = path + "." + key.Value
		}
		if line, twice := seen[key.Value]; twice {
			r.fail(key, "%s is given twice, first on line %d", full, line)
			continue
		}
		seen[key.Value] = key.Line
		if _, is := r.sections[full]; is {
			r.section(full, value)
			continue
		}
		f, is := r.byPath[full]
		if !is {
			r.fail(key, "unknown key %s%s", full, r.nearest(full, path))
			continue
		}
		r.value(f, key, value)
	}
}

// nearest suggests a key for one that is not known: in the same section, or
// under its right section when the name is right and the place wrong.
func (r *reader) nearest(full, section string) string {
	name := full[strings.LastIndexByte(full, '.')+1:]
	for _, path := range slices.Sorted(maps.Keys(r.byPath)) {
		if strings.HasSuffix(path, "."+name) {
			return fmt.Sprintf(": did you mean %s?", path)
		}
	}
	return Suggest(name, r.sections[section])
}

func (r *reader) value(f Field, key, n *yaml.Node) {
	if n.Kind == yaml.AliasNode {
		n = n.Alias
	}
	switch f.Kind() {
	case "list of texts":
		if n.Kind != yaml.SequenceNode {
			r.fail(n, "%s: got %s: use a list such as [a, b]", f.Path, describe(n))
			return
		}
		list := []string{}
		for _, item := range n.Content {
			if item.Kind != yaml.ScalarNode || isNull(item) {
				r.fail(item, "%s: an element is %s: use text", f.Path, describe(item))
				return
			}
			list = append(list, item.Value)
		}
		f.value.Set(reflect.ValueOf(list).Convert(f.value.Type()))
	case "map of texts":
		if n.Kind != yaml.MappingNode {
			r.fail(n, "%s: got %s: use a map such as {a: b}", f.Path, describe(n))
			return
		}
		m := map[string]string{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			if n.Content[i+1].Kind != yaml.ScalarNode {
				r.fail(n.Content[i+1], "%s.%s: got %s: use text", f.Path, n.Content[i].Value, describe(n.Content[i+1]))
				return
			}
			m[n.Content[i].Value] = n.Content[i+1].Value
		}
		f.value.Set(reflect.ValueOf(m).Convert(f.value.Type()))
	default:
		if n.Kind != yaml.ScalarNode || isNull(n) {
			r.fail(n, "%s: got %s: use a %s, or leave the key out for the default %s", f.Path, describe(n), f.Kind(), f.Text())
			return
		}
		if f.Kind() == "text" {
			f.value.SetString(n.Value)
			break
		}
		if err := f.setScalar(n.Value); err != nil {
			r.fail(n, "%s: %s", f.Path, err)
			return
		}
	}
	r.origins[f.Path] = Origin(fmt.Sprintf("%s:%d", r.file, key.Line))
}

func isNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.Tag == "!!null" }

func orTop(path string) string {
	if path == "" {
		return "the file"
	}
	return path
}

func describe(n *yaml.Node) string {
	switch {
	case isNull(n):
		return "nothing"
	case n.Kind == yaml.MappingNode:
		return "a map"
	case n.Kind == yaml.SequenceNode:
		return "a list"
	}
	return fmt.Sprintf("%q", n.Value)
}
