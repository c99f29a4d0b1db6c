package settings

import (
	"regexp"

	"github.com/spf13/pflag"
)

// tellsDefault finds help texts that name the default themselves: "4 by
// default", "100 MiB by default", "false by default", "(default 3s)".
var tellsDefault = regexp.MustCompile(`(\d\S*( \w+)?|true|false) by default|\(default|the default`)

// Bind adds a flag for each key of cfg to set. The values are read with
// [Given]: they are not written into cfg, since the file and the environment
// come first. Booleans may be given without a value.
func Bind(set *pflag.FlagSet, cfg any) {
	set.SetNormalizeFunc(func(_ *pflag.FlagSet, name string) pflag.NormalizedName {
		return pflag.NormalizedName(FlagName(name))
	})
	for _, f := range Fields(cfg) {
		flag := set.VarPF(&rawValue{kind: f.Kind(), text: f.Text()}, f.Flag(), "", f.Help)
		if empty := f.Text() == `""` || f.Text() == "[]" || f.Text() == "{}"; empty || tellsDefault.MatchString(f.Help) {
			flag.DefValue = "" // no "(default …)" after the text
		}
		if f.Kind() == "true or false" {
			flag.NoOptDefVal = "true"
		}
	}
}

// Given returns the flags that were given, by name.
func Given(set *pflag.FlagSet) map[string]string {
	given := map[string]string{}
	set.Visit(func(f *pflag.Flag) {
		if v, ours := f.Value.(*rawValue); ours {
			given[f.Name] = v.text
		}
	})
	return given
}

// rawValue keeps a flag's text until the file and environment have been read.
type rawValue struct{ kind, text string }

func (v *rawValue) String() string { return v.text }
func (v *rawValue) Set(s string) error {
	v.text = s
	return nil
}

// Type is what the help shows after the flag's name.
func (v *rawValue) Type() string {
	switch v.kind {
	case "whole number":
		return "int"
	case "true or false":
		return "bool"
	case "list of texts":
		return "a,b,…"
	case "map of texts":
		return "k=v,…"
	}
	return v.kind
}
