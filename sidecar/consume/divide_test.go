package consume

import (
	"slices"
	"testing"

	"pgregory.net/rapid"
)

func TestDivide(t *testing.T) {
	for _, c := range []struct {
		most, hungry int
		ready, want  []int
	}{
		{100, 0, []int{1000, 1000}, []int{50, 50}},
		{100, 0, []int{1000, 3}, []int{97, 3}},
		{100, 0, []int{0, 7}, []int{0, 7}},
		{2, 0, []int{5, 5, 5}, []int{1, 1, 0}},
		{5, 0, []int{5, 0, 1, 5}, []int{2, 0, 1, 2}},
		{100, 1, []int{9, 9, 9, 9}, []int{9, 9, 0, 0}},
		{100, 9, []int{9, 9, 9, 9}, []int{9, 0, 0, 0}},
		{100, 2, []int{0, 9, 0, 9}, []int{0, 9, 0, 0}},
		{10, 3, nil, []int{}},
	} {
		if got := divide(c.most, c.ready, c.hungry); !slices.Equal(got, c.want) {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

func TestDivideIsFair(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		most := rapid.IntRange(1, 200).Draw(t, "most")
		ready := rapid.SliceOfN(rapid.IntRange(0, 60), 0, 12).Draw(t, "ready")
		hungry := rapid.IntRange(0, 4).Draw(t, "hungry")
		got := divide(most, ready, hungry)
		sum, can, asked := 0, 0, 0
		for i, n := range got {
			if n < 0 || n > ready[i] {
				t.Fatalf("%d of %d", n, ready[i])
			}
			sum += n
			if n > 0 {
				asked++
			}
			for j, other := range got {
				if n > 0 && n < ready[i] && other > n+1 {
					t.Fatalf("topic %d gets %d of %d, topic %d %d: %v", i, n, ready[i], j, other, got)
				}
			}
		}
		holding := 0
		for _, n := range ready {
			if n > 0 {
				holding++
			}
		}
		part := (holding + hungry) / (hungry + 1)
		for i, seen := 0, 0; seen < part; i++ {
			if ready[i] > 0 {
				seen++
				can += ready[i]
			}
		}
		if sum != min(most, can) || asked != min(most, part) {
			t.Fatalf("%d messages of %d topics, want %d of %d: %v of %v", sum, asked, min(most, can), min(most, part), got, ready)
		}
	})
}
