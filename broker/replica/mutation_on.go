//go:build mutants

package replica

import "slices"

var mutations []Mutation

// Mutate puts known mistakes back, in place of those before. Not for concurrent
// use with anything else of this package.
func Mutate(m ...Mutation) { mutations = m }

// Mutated tells whether a mistake is put back.
func Mutated(m Mutation) bool { return slices.Contains(mutations, m) }
