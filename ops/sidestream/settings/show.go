package settings

import (
	"fmt"
	"io"
	"strings"
)

// Show writes the effective configuration as YAML that can be read back
// (secrets excepted), with the origin of each value that is not a default.
func Show(w io.Writer, cfg any, origins map[string]Origin) error {
	var b strings.Builder
	var open []string // the sections that the last line is in
	for _, f := range Fields(cfg) {
		parts := strings.Split(f.Path, ".")
		sections := parts[:len(parts)-1]
		common := 0
		for common < len(open) && common < len(sections) && open[common] == sections[common] {
			common++
		}
		for depth := common; depth < len(sections); depth++ {
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", depth), sections[depth])
		}
		open = sections
		line := fmt.Sprintf("%s%s: %s", strings.Repeat("  ", len(sections)), parts[len(parts)-1], f.Text())
		if origin, given := origins[f.Path]; given {
			line = fmt.Sprintf("%-40s # %s", line, origin)
		}
		b.WriteString(line + "\n")
	}
	_, err := io.WriteString(w, b.String())
	return err
}

// Markdown writes a reference table of the keys, section by section.
func Markdown(w io.Writer, cfg any) error {
	var sections []string
	bySection := map[string][]Field{}
	for _, f := range Fields(cfg) {
		if _, known := bySection[f.Section()]; !known {
			sections = append(sections, f.Section())
		}
		bySection[f.Section()] = append(bySection[f.Section()], f)
	}
	var b strings.Builder
	for _, section := range sections {
		if section != "" {
			fmt.Fprintf(&b, "\n### `%s`\n", section)
		}
		b.WriteString("\n| key | default | meaning | environment, flag |\n|---|---|---|---|\n")
		for _, f := range bySection[section] {
			kind := f.Kind()
			if f.Live {
				kind += "; SIGHUP changes it"
			}
			fmt.Fprintf(&b, "| `%s` | `%s` | %s (%s) | `%s`<br>`--%s` |\n",
				f.Path, f.Text(), strings.ReplaceAll(f.Help, "|", "\\|"), kind, f.Env(), f.Flag())
		}
	}
	_, err := io.WriteString(w, b.String())
	return err
}
