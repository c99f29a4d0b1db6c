package consume

import (
	"slices"
	"strings"

	"sidestream/discovery"
)

// MaxChoice is how many topics and patterns one request may name.
const MaxChoice = 100

// choice is what a request chooses of the topics: one, or a list of topics and
// patterns. Choices of the same topics in another order are the same.
type choice struct {
	text     string   // its one form
	names    []string // sorted
	patterns []string // sorted
}

// parseChoice reads the topics of a request: names and patterns with commas
// between them.
func parseChoice(text string) (choice, error) {
	if !strings.ContainsAny(text, ",*") {
		if err := discovery.CheckName("topic", text); err != nil {
			return choice{}, badRequest("%v", err)
		}
		return choice{text: text, names: []string{text}}, nil
	}
	items := strings.Split(text, ",")
	if len(items) > MaxChoice {
		return choice{}, badRequest("%d topics are named: use at most %d, or a pattern such as orders.*", len(items), MaxChoice)
	}
	var c choice
	for _, item := range items {
		if err := checkItem(item); err != nil {
			return choice{}, err
		}
		if isPattern(item) {
			c.patterns = append(c.patterns, item)
		} else {
			c.names = append(c.names, item)
		}
	}
	slices.Sort(c.names)
	slices.Sort(c.patterns)
	c.names, c.patterns = slices.Compact(c.names), slices.Compact(c.patterns)
	c.text = strings.Join(append(slices.Clone(c.names), c.patterns...), ",")
	return c, nil
}

func checkItem(item string) error {
	plain := item
	if isPattern(item) {
		// A star stands for any run of characters, so a name with letters in
		// their place tells whether the rest is in order.
		plain = strings.ReplaceAll(item, "*", "x")
		if strings.HasPrefix(item, deadLetterPrefix) {
			return badRequest("pattern %q: no pattern matches the topics of dead letters: name them", item)
		}
	}
	if err := discovery.CheckName("topic", plain); err != nil {
		if item == "" {
			return badRequest("topics are named with single commas between them, such as orders,returns")
		}
		return badRequest("%q: use a topic's name (1 to %d of a-z A-Z 0-9 . _ -), a pattern with *, or several with commas between them", item, discovery.MaxNameLen)
	}
	return nil
}

// CheckTopics says what is wrong with the topics of a request, or nil: one
// name, or names and patterns with commas between them.
func CheckTopics(text string) error {
	_, err := parseChoice(text)
	return err
}

// isPattern tells a pattern from a topic's name, which has no star.
func isPattern(item string) bool { return strings.IndexByte(item, '*') >= 0 }

// single says whether one topic is chosen by its name.
func (c choice) single() bool { return len(c.names) == 1 && len(c.patterns) == 0 }

// items are names and patterns.
func (c choice) items() []string { return append(slices.Clone(c.names), c.patterns...) }

// has says whether a topic is chosen.
func (c choice) has(topic string) bool { return c.named(topic) || matchAny(c.patterns, topic) }

// named says whether a topic is chosen by its name.
func (c choice) named(topic string) bool {
	_, found := slices.BinarySearch(c.names, topic)
	return found
}

func matchAny(patterns []string, topic string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return match(p, topic) })
}

// match says whether a pattern matches a topic's name: a star stands for any
// run of characters, an empty one too. The topics of dead letters are matched
// by none: a group over all topics would be given its own.
func match(pattern, topic string) bool {
	if strings.HasPrefix(topic, deadLetterPrefix) {
		return false
	}
	first, rest, star := strings.Cut(pattern, "*")
	if !star {
		return pattern == topic
	}
	if !strings.HasPrefix(topic, first) {
		return false
	}
	topic = topic[len(first):]
	for {
		part, more, star := strings.Cut(rest, "*")
		if !star {
			return strings.HasSuffix(topic, part)
		}
		// The earliest place leaves the most for what follows.
		at := strings.Index(topic, part)
		if at < 0 {
			return false
		}
		topic, rest = topic[at+len(part):], more
	}
}

// ownDead is the topic of a group's dead letters; "" when it has none. A pattern
// that happens to match it does not give them to the group again.
func ownDead(group string, c discovery.GroupConfig) string {
	if dead := deadOf(group, c); dead != deadSkip && dead != deadOff {
		return dead
	}
	return ""
}
