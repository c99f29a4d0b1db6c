package settings

import (
	"fmt"
	"reflect"
)

// Change is a key whose value differs between two configurations.
type Change struct {
	Path     string
	From, To string // secrets are hidden
	Live     bool   // a reload may change it
}

func (c Change) String() string { return fmt.Sprintf("%s: %s → %s", c.Path, c.From, c.To) }

// Diff lists what differs between two configurations of one type, pointers to
// structs, in the order of the struct.
func Diff(from, to any) []Change {
	var changes []Change
	after := Fields(to)
	for i, f := range Fields(from) {
		if !same(f.value, after[i].value) {
			changes = append(changes, Change{Path: f.Path, From: f.Text(), To: after[i].Text(), Live: f.Live})
		}
	}
	return changes
}

// same tells that two values mean the same: an empty list or map is as good as
// none.
func same(a, b reflect.Value) bool {
	if k := a.Kind(); (k == reflect.Map || k == reflect.Slice) && a.Len()+b.Len() == 0 {
		return true
	}
	return reflect.DeepEqual(a.Interface(), b.Interface())
}

// TakeRest copies the keys that a reload may not change. Both are pointers to
// structs of one type.
func TakeRest(into, from any) {
	source := Fields(from)
	for i, f := range Fields(into) {
		if !f.Live {
			f.value.Set(source[i].value)
		}
	}
}
