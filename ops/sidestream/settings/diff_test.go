package settings

import (
	"fmt"
	"testing"
	"time"
)

type liveSample struct {
	Inline base              `yaml:",inline"`
	Rates  map[string]string `yaml:"rates" live:"true" help:"Rates."`
	Names  []string          `yaml:"names" live:"true" help:"Names."`
	Part   struct {
		Level string `yaml:"level" live:"true" help:"Level."`
		Token string `yaml:"token" help:"Secret."`
	} `yaml:"part"`
}

func TestDiffNamesWhatChangedAndWhetherItMay(t *testing.T) {
	a, b := &liveSample{Names: []string{}}, &liveSample{Rates: map[string]string{"x": "1"}}
	a.Part.Token, b.Part.Token = "old", "new"
	b.Inline.Lease, b.Part.Level = time.Minute, "debug"
	got := fmt.Sprintf("%+v", Diff(a, b))
	want := `[lease: 0s → 1m rates: {} → {x: "1"} part.level: "" → debug part.token: "(hidden)" → "(hidden)"]`
	if got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
	for _, c := range Diff(a, b) {
		if c.Live != (c.Path == "rates" || c.Path == "part.level") {
			t.Errorf("%s: live is %v", c.Path, c.Live)
		}
	}
	TakeRest(b, a)
	if got := fmt.Sprint(Diff(a, b)); got != `[rates: {} → {x: "1"} part.level: "" → debug]` {
		t.Errorf("after taking the rest: %s", got)
	}
}
