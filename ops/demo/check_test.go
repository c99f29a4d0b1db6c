package main

import (
	"fmt"
	"slices"
	"testing"

	"sidestream/examples/pageviews"
)

func reference() [][]byte { return slices.Collect(pageviews.Lines(pageviews.Data)) }

// arriving makes arrivals in the order given, each with its own ID.
func arriving(lines [][]byte) []Arrival {
	var list []Arrival
	for i, line := range lines {
		list = append(list, Arrival{Sidecar: "A", ID: fmt.Sprint("pageviews/0/", i), Value: string(line)})
	}
	return list
}

func failed(list []Check) []string {
	var names []string
	for _, c := range list {
		if !c.OK {
			names = append(names, c.Name)
		}
	}
	return names
}

// sameVisitor finds two different views of one visitor.
func sameVisitor(t *testing.T, lines [][]byte) (i, j int) {
	t.Helper()
	first := map[string]int{}
	for j, line := range lines {
		v, err := pageviews.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		if i, seen := first[v.Visitor]; seen && string(lines[i]) != string(line) {
			return i, j
		}
		first[v.Visitor] = j
	}
	t.Fatal("no visitor has two views")
	return 0, 0
}

// Each way in which an arrival can be wrong fails the check that names it.
func TestChecks(t *testing.T) {
	whole := reference()
	i, j := sameVisitor(t, whole)
	for name, c := range map[string]struct {
		change func([]Arrival) []Arrival
		want   []string
	}{
		"as posted":            {func(a []Arrival) []Arrival { return a }, nil},
		"one dropped":          {func(a []Arrival) []Arrival { return slices.Delete(a, i, i+1) }, []string{"events", "none missing", "bytes", "order"}},
		"one delivered twice":  {func(a []Arrival) []Arrival { return slices.Insert(a, i, a[i]) }, []string{"events", "none twice", "bytes", "order"}},
		"one written twice":    {func(a []Arrival) []Arrival { return append(a, Arrival{ID: "pageviews/3/1", Value: a[i].Value}) }, []string{"events", "none twice", "bytes", "order"}},
		"one visitor reversed": {func(a []Arrival) []Arrival { a[i].Value, a[j].Value = a[j].Value, a[i].Value; return a }, []string{"order"}},
		"one instead of another": {func(a []Arrival) []Arrival { a[i].Value = a[j].Value; return a },
			[]string{"none twice", "none missing", "bytes", "order"}},
		"one altered": {func(a []Arrival) []Arrival { a[i].Value = a[i].Value[:len(a[i].Value)-1] + " }"; return a }, []string{"none missing", "order"}},
		"not json":    {func(a []Arrival) []Arrival { a[i].Value = "x"; return a }, []string{"none missing", "bytes", "order"}},
		"nothing":     {func([]Arrival) []Arrival { return nil }, []string{"events", "none missing", "bytes", "order"}},
	} {
		t.Run(name, func(t *testing.T) {
			if got := failed(checks(whole, c.change(arriving(whole)))); !slices.Equal(got, c.want) {
				t.Errorf("failed %v, want %v", got, c.want)
			}
		})
	}
}

// Views of different visitors may pass each other: partitions have no order
// between them.
func TestOrderBetweenVisitorsIsFree(t *testing.T) {
	whole := reference()
	byVisitor := slices.Clone(whole)
	visitor := func(line []byte) string {
		v, err := pageviews.Parse(line)
		if err != nil {
			t.Fatal(err)
		}
		return v.Visitor
	}
	slices.SortStableFunc(byVisitor, func(a, b []byte) int {
		va, vb := visitor(a), visitor(b)
		switch {
		case va < vb:
			return 1
		case va > vb:
			return -1
		}
		return 0
	})
	if got := failed(checks(whole, arriving(byVisitor))); got != nil {
		t.Errorf("failed %v", got)
	}
}
