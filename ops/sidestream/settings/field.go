package settings

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// Field is one key of a configuration: a leaf of its struct.
type Field struct {
	Path string // dotted YAML path, e.g. "kafka.client_id"
	Help string // the help tag
	Live bool   // the live tag: a reload may change it

	value reflect.Value
}

// Env is the environment variable that sets the key.
func (f Field) Env() string {
	return EnvPrefix + strings.ToUpper(strings.ReplaceAll(f.Path, ".", "_"))
}

// Flag is the flag that sets the key, without its two dashes.
func (f Field) Flag() string { return FlagName(f.Path) }

// FlagName is the canonical form of a flag: dots and underscores are dashes,
// so that --kafka.client_id and --kafka-client-id are the same.
func FlagName(name string) string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(name)
}

// Secret reports whether the value must not be shown: passwords and tokens.
func (f Field) Secret() bool {
	last := f.Path[strings.LastIndexByte(f.Path, '.')+1:]
	return last == "password" || last == "token" || last == "secret"
}

// Section is the path without its last element, "" at the top.
func (f Field) Section() string {
	if i := strings.LastIndexByte(f.Path, '.'); i >= 0 {
		return f.Path[:i]
	}
	return ""
}

var durationType = reflect.TypeFor[time.Duration]()

// Fields lists the keys of a configuration in the order of its struct. cfg is
// a pointer to a struct. It panics on a struct that no configuration may have
// (a type that cannot be read, two keys with one name), which a test of the
// caller's finds.
func Fields(cfg any) []Field {
	v := reflect.ValueOf(cfg)
	if v.Kind() != reflect.Pointer || v.Elem().Kind() != reflect.Struct {
		panic(fmt.Sprintf("settings: %T is not a pointer to a struct", cfg))
	}
	var fields []Field
	walk(v.Elem(), "", &fields)
	byFlag := map[string]string{}
	for _, f := range fields {
		if other, taken := byFlag[f.Flag()]; taken {
			panic(fmt.Sprintf("settings: %s and %s would have the same flag and variable", other, f.Path))
		}
		byFlag[f.Flag()] = f.Path
	}
	return fields
}

func walk(v reflect.Value, prefix string, fields *[]Field) {
	for i := range v.NumField() {
		sf, fv := v.Type().Field(i), v.Field(i)
		name, options, _ := strings.Cut(sf.Tag.Get("yaml"), ",")
		if name == "-" || !sf.IsExported() {
			continue
		}
		if sf.Type.Kind() == reflect.Struct && options == "inline" {
			walk(fv, prefix, fields)
			continue
		}
		if name == "" {
			panic(fmt.Sprintf("settings: field %s of %s has no yaml tag (use \"-\" for one that is no key)", sf.Name, v.Type()))
		}
		if sf.Type.Kind() == reflect.Struct {
			walk(fv, prefix+name+".", fields)
			continue
		}
		if kindOf(sf.Type) == "" {
			panic(fmt.Sprintf("settings: field %s of %s: type %s cannot be read", sf.Name, v.Type(), sf.Type))
		}
		*fields = append(*fields, Field{Path: prefix + name, Help: sf.Tag.Get("help"), Live: sf.Tag.Get("live") == "true", value: fv})
	}
}
