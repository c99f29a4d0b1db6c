package settings

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

type limits struct {
	Low  int    `yaml:"low" help:"Low."`
	High int    `yaml:"high" help:"High."`
	Cert string `yaml:"cert" help:"Cert."`
	Key  string `yaml:"key" help:"Key."`
}

// Validate stops at its first error, as configurations do.
func (l limits) Validate() error {
	switch {
	case l.Low < 1:
		return fmt.Errorf("low: got %d", l.Low)
	case l.High < l.Low:
		return fmt.Errorf("high: got %d: use more than low", l.High)
	case (l.Cert == "") != (l.Key == ""):
		return errors.New("cert, key: give both")
	}
	return nil
}

type nested struct {
	Name   string `yaml:"name" help:"Name."`
	First  limits `yaml:"first"`
	Second limits `yaml:"second"`
}

func (n nested) Validate() error {
	if n.Name == "" {
		return errors.New("name: is empty")
	}
	if err := n.First.Validate(); err != nil {
		return fmt.Errorf("first.%w", err)
	}
	if err := n.Second.Validate(); err != nil {
		return fmt.Errorf("second.%w", err)
	}
	if n.First.High > 100 && n.Second.High > 100 {
		return errors.New("both are high")
	}
	return nil
}

func TestCheckReportsEveryError(t *testing.T) {
	defaults := func() *nested { return &nested{"x", limits{Low: 1, High: 10}, limits{Low: 1, High: 10}} }
	for name, c := range map[string]struct {
		change func(*nested)
		want   []string
	}{
		"nothing wrong": {func(*nested) {}, nil},
		"all over": {func(n *nested) { n.Name, n.First.Low, n.First.Cert, n.Second.High, n.Second.Key = "", 0, "c", 0, "k" },
			[]string{"first.low: got 0", "first.cert, key: give both", "second.high: got 0", "second.cert, key: give both", "name: is empty"}},
		"the default does not help": {func(n *nested) { n.First.Low, n.Second.Low, n.Name = 20, 0, "" },
			[]string{"first.high: got 10", "second.low: got 0", "name: is empty"}},
		"no single key": {func(n *nested) { n.First.High, n.Second.High = 101, 101 }, []string{"both are high"}},
	} {
		t.Run(name, func(t *testing.T) {
			cfg := defaults()
			c.change(cfg)
			before := *cfg
			err := Check(cfg, defaults())
			if *cfg != before {
				t.Errorf("the configuration was changed to %+v", cfg)
			}
			var lines []string
			if err != nil {
				lines = strings.Split(err.Error(), "\n")
			}
			if len(lines) != len(c.want) {
				t.Fatalf("got %q, want %q", lines, c.want)
			}
			for i, want := range c.want {
				if !strings.HasPrefix(lines[i], want) {
					t.Errorf("got %q, want %q", lines[i], want)
				}
			}
		})
	}
}
