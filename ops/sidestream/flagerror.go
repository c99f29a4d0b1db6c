package main

import (
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"sidestream/ops/sidestream/settings"
)

// flagError tells what is wrong with a flag and what would be right, in place of
// the texts of the parser ("strconv.ParseInt: parsing …").
func flagError(cmd *cobra.Command, err error) error {
	text := err.Error()
	if e, ok := errors.AsType[*pflag.NotExistError](err); ok {
		text = unknownFlag(cmd, e)
	} else if e, ok := errors.AsType[*pflag.ValueRequiredError](err); ok {
		text = fmt.Sprintf("--%s needs a value: use %s", e.GetFlag().Name, valueWanted(e.GetFlag()))
	} else if e, ok := errors.AsType[*pflag.InvalidValueError](err); ok {
		text = fmt.Sprintf("--%s: got %q: use %s", e.GetFlag().Name, e.GetValue(), valueWanted(e.GetFlag()))
	} else if e, ok := errors.AsType[*pflag.InvalidSyntaxError](err); ok {
		text = fmt.Sprintf("got %q: use --flag value or --flag=value", e.GetSpecifiedFlag())
	}
	return usageError{fmt.Errorf("%s (see %s --help)", text, cmd.CommandPath())}
}

func unknownFlag(cmd *cobra.Command, e *pflag.NotExistError) string {
	name := e.GetSpecifiedName()
	if shorthands := e.GetSpecifiedShortnames(); shorthands != "" {
		text := "unknown flag: -" + name
		if len(shorthands) > 1 && cmd.Flags().Lookup(shorthands) != nil {
			text += ": did you mean --" + shorthands + "?"
		}
		return text
	}
	var near []string
	cmd.Flags().VisitAll(func(f *pflag.Flag) {
		if !f.Hidden {
			near = append(near, "--"+f.Name)
		}
	})
	suggestion := settings.Suggest("--"+name, near)
	if !strings.Contains(suggestion, "did you mean") { // --help has the list
		suggestion = ""
	}
	return "unknown flag: --" + name + suggestion
}

// valueWanted says what a flag takes, by its type.
func valueWanted(f *pflag.Flag) string {
	switch kind := f.Value.Type(); kind {
	case "int", "int64", "uint", "uint64":
		return "a whole number"
	case "int32":
		return "a whole number up to 2147483647"
	case "int16":
		return "a whole number up to 32767"
	case "int32Slice":
		return "whole numbers with commas between them"
	case "bool":
		return "true or false"
	case "duration":
		return "a duration such as 500ms, 5s or 1m"
	case "stringSlice":
		return "texts with commas between them"
	}
	name, _ := pflag.UnquoteUsage(f)
	if name == "string" || name == "" || name == "stringArray" {
		return "a text"
	}
	return name
}
