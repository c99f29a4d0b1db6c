package settings

import (
	"fmt"
	"slices"
	"strings"
)

// Suggest says which of names was probably meant, or which there are.
func Suggest(name string, names []string) string {
	best, distance := "", len(name)/2+1 // further away it is a guess
	for _, n := range names {
		if d := editDistance(strings.ToLower(name), strings.ToLower(n)); d < distance {
			best, distance = n, d
		}
	}
	switch {
	case best != "":
		return fmt.Sprintf(": did you mean %s?", best)
	case len(names) == 0 || len(names) > 24:
		return ""
	}
	sorted := slices.Sorted(slices.Values(names))
	return ": the keys here are " + strings.Join(sorted, ", ")
}

// editDistance is Levenshtein's: insertions, deletions and replacements.
func editDistance(a, b string) int {
	row := make([]int, len(b)+1)
	for j := range row {
		row[j] = j
	}
	for i := range len(a) {
		diagonal := row[0]
		row[0] = i + 1
		for j := range len(b) {
			cost := diagonal
			if a[i] != b[j] {
				cost++
			}
			diagonal = row[j+1]
			row[j+1] = min(cost, row[j]+1, row[j+1]+1)
		}
	}
	return row[len(b)]
}
