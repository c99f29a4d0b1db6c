package measure

import (
	"fmt"
	"math"
	"strings"
)

// Figure is one number that has a target.
type Figure struct {
	Name   string
	Value  float64
	Op     string // "<=" or ">="
	Target float64
}

// OK says whether the target is met.
func (f Figure) OK() bool {
	if f.Op == "<=" {
		return f.Value <= f.Target
	}
	return f.Value >= f.Target
}

func (f Figure) String() string {
	verdict := "short"
	if f.OK() {
		verdict = "ok"
	}
	return fmt.Sprintf("figure=%s value=%.4g target=%s%.4g %s", f.Name, f.Value, f.Op, f.Target, verdict)
}

// Figures are those that could be measured, in the order of their targets.
type Figures []Figure

// Add notes a figure; one that is no number was not measured and is left out.
// Spaces in its name become dashes.
func (fs *Figures) Add(name string, value float64, op string, target float64) {
	if !math.IsNaN(value) && !math.IsInf(value, 0) {
		*fs = append(*fs, Figure{strings.ReplaceAll(name, " ", "-"), value, op, target})
	}
}

// Lines are the figures as every bench ends with them: a block of one line each.
func (fs Figures) Lines() string {
	var out strings.Builder
	out.WriteString("```\n")
	for _, f := range fs {
		fmt.Fprintln(&out, f)
	}
	out.WriteString("```\n")
	return out.String()
}
