package main

import (
	"fmt"

	"sidestream/examples/pageviews"
)

// Arrival is one message as it was pulled, in the order of arrival.
type Arrival struct {
	Sidecar string
	ID      string
	Value   string
}

// Check is one thing that must hold of what was pulled.
type Check struct {
	Name   string
	Detail string // what was found
	OK     bool
}

// The facts of the data: see examples/pageviews/README.md.
const (
	wantViews    = 9999
	wantVisitors = 1753
	wantBytes    = 2747282505
)

// checks computes, from arrivals exactly as they were pulled, whether they are
// the reference lines: each as often as it was posted, and each visitor's in
// the posted order.
func checks(reference [][]byte, arrivals []Arrival) []Check {
	posted := count(reference)
	pulled := map[string]int{}
	ids := map[string]int{}
	for _, a := range arrivals {
		pulled[a.Value]++
		ids[a.ID]++
	}
	twice, missing := 0, 0
	for _, n := range ids {
		twice += n - 1
	}
	foreign := 0
	for value, n := range pulled {
		if posted[value] == 0 {
			foreign += n
		} else if n > posted[value] {
			twice = max(twice, n-posted[value]) // written twice: two offsets hold one event
		}
	}
	for value, n := range posted {
		missing += max(0, n-pulled[value])
	}
	sum, bad := bytesOf(arrivals)
	visitors, disordered, first := order(reference, arrivals)
	return []Check{
		{"events", fmt.Sprintf("%d of %d", len(arrivals), wantViews), len(arrivals) == wantViews},
		{"none twice", fmt.Sprintf("%d twice", twice), twice == 0},
		{"none missing", fmt.Sprintf("%d missing, %d that were never posted", missing, foreign+bad), missing == 0 && foreign+bad == 0},
		{"bytes", fmt.Sprintf("%d of %d", sum, int64(wantBytes)), sum == wantBytes},
		{"order", fmt.Sprintf("%d visitors, %d out of order%s", visitors, disordered, first), visitors == wantVisitors && disordered == 0},
	}
}

func count(lines [][]byte) map[string]int {
	n := map[string]int{}
	for _, line := range lines {
		n[string(line)]++
	}
	return n
}

func bytesOf(arrivals []Arrival) (sum int64, bad int) {
	for _, a := range arrivals {
		v, err := pageviews.Parse([]byte(a.Value))
		if err != nil {
			bad++
			continue
		}
		sum += v.Bytes
	}
	return sum, bad
}

// order compares each visitor's sequence of views with the posted one, and
// names the first visitor whose differs.
func order(reference [][]byte, arrivals []Arrival) (visitors, disordered int, first string) {
	want, got := map[string][]string{}, map[string][]string{}
	for _, line := range reference {
		if v, err := pageviews.Parse(line); err == nil {
			want[v.Visitor] = append(want[v.Visitor], string(line))
		}
	}
	for _, a := range arrivals {
		if v, err := pageviews.Parse([]byte(a.Value)); err == nil {
			got[v.Visitor] = append(got[v.Visitor], a.Value)
		}
	}
	for _, line := range reference { // in posted order, so that the first is always the same
		v, err := pageviews.Parse(line)
		if err != nil || want[v.Visitor] == nil {
			continue
		}
		if at := firstDifference(want[v.Visitor], got[v.Visitor]); at >= 0 {
			if disordered++; first == "" {
				first = fmt.Sprintf(", first %s at view %d", v.Visitor, at+1)
			}
		}
		delete(want, v.Visitor)
	}
	return len(got), disordered, first
}

// firstDifference is the index of the first element that differs, -1 for none.
func firstDifference(a, b []string) int {
	for i := range max(len(a), len(b)) {
		if i >= len(a) || i >= len(b) || a[i] != b[i] {
			return i
		}
	}
	return -1
}
