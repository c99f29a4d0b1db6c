package consume

import (
	"regexp"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"sidestream/sdk/api"
)

func TestParseChoice(t *testing.T) {
	for text, want := range map[string]string{
		"orders":                   "orders",
		"dead.g":                   "dead.g",
		"returns,orders":           "orders,returns",
		"orders.*,a,orders.*,b,a":  "a,b,orders.*",
		"*":                        "*",
		"o*s.*-1,dead.g,*.x,..b,c": "..b,c,dead.g,*.x,o*s.*-1",
	} {
		c, err := parseChoice(text)
		if err != nil || c.text != want {
			t.Errorf("%q: %q %v, want %q", text, c.text, err, want)
		}
		if again, err := parseChoice(c.text); err != nil || again.text != c.text {
			t.Errorf("%q is not its own form: %q %v", c.text, again.text, err)
		}
		if c.single() != (want == text && !strings.ContainsAny(text, ",*")) {
			t.Errorf("%q: single %v", text, c.single())
		}
	}
	for text, says := range map[string]string{
		"":                              "empty",
		"a,":                            "single commas",
		",":                             "single commas",
		"a,,b":                          "single commas",
		"a b":                           "not allowed",
		"a,b c":                         `"b c"`,
		"orders.?":                      "not allowed",
		"orders.*,ü":                    `"ü"`,
		"dead.*":                        "name them",
		"a,dead.g*":                     "name them",
		"a,..":                          `".."`,
		strings.Repeat("x", 250):        "250 characters",
		"a," + strings.Repeat("x", 250): "1 to 249",
		strings.Repeat("a,", 100) + "b": "at most 100",
	} {
		if _, err := parseChoice(text); !isCode(err, api.CodeBadRequest) || !strings.Contains(err.Error(), says) {
			t.Errorf("%.40q: %v, want %q in it", text, err, says)
		}
	}
}

func TestMatch(t *testing.T) {
	for _, c := range []struct {
		pattern, topic string
		want           bool
	}{
		{"orders.*", "orders.eu", true},
		{"orders.*", "orders.", true},
		{"orders.*", "orders", false},
		{"orders.*", "old-orders.eu", false},
		{"*", "anything", true},
		{"*", "dead.orders", false},
		{"*d*", "dead.orders", false},
		{"*", "deadline", true},
		{"a*a", "a", false},
		{"a*a", "aa", true},
		{"a*b*c", "abbc", true},
		{"a*bc*c", "abc", false},
		{"*.eu.*", "x.eu", false},
		{"**", "x", true},
	} {
		if got := match(c.pattern, c.topic); got != c.want {
			t.Errorf("%s matches %s: %v", c.pattern, c.topic, got)
		}
	}
	rapid.Check(t, func(t *rapid.T) {
		pattern := rapid.StringMatching(`[ab.*]{1,8}`).Draw(t, "pattern")
		topic := rapid.StringMatching(`[ab.]{0,10}`).Draw(t, "topic")
		re := regexp.MustCompile("^" + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, ".*") + "$")
		if got := match(pattern, topic); got != re.MatchString(topic) {
			t.Fatalf("%s matches %s: %v", pattern, topic, got)
		}
	})
}

func TestChoiceHas(t *testing.T) {
	c, err := parseChoice("clicks,dead.g,orders.*")
	if err != nil {
		t.Fatal(err)
	}
	for topic, want := range map[string]bool{"clicks": true, "dead.g": true, "dead.h": false, "orders.eu": true, "orders": false} {
		if c.has(topic) != want {
			t.Errorf("%s: %v", topic, !want)
		}
	}
	if c.named("orders.eu") || !c.named("clicks") {
		t.Error("named")
	}
}
