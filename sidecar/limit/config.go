package limit

import (
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Config limits what applications publish through one sidecar.
type Config struct {
	MessagesPerSecond int64             `yaml:"messages_per_second" live:"true" help:"Most messages per second that this sidecar takes in all; 0 means no limit."`
	BytesPerSecond    int64             `yaml:"bytes_per_second" live:"true" help:"Most bytes per second (keys, values and headers) that this sidecar takes in all, such as 5MiB; 0 means no limit."`
	MaxWait           time.Duration     `yaml:"max_wait" live:"true" help:"How long a request may be held back by a limit before it is refused with 429, up to 10m; 0s refuses at once."`
	Topics            map[string]string `yaml:"topics" live:"true" help:"Limits by topic: messages per second, bytes per second, or both, such as orders: \"500\", views: 5MiB, clicks: 10000 2MiB, with /s behind a number or not. Bytes have a unit: B, kB or KB (1000), MB, GB, KiB (1024), MiB or GiB. The topic \"*\" stands for each other one."`
	Callers           map[string]string `yaml:"callers" live:"true" help:"Limits by calling application, written as those by topic: it names itself in the header Sidestream-Caller, or is known by the user it runs as on the UNIX socket. \"*\" stands for each other one; those without a name count as one."`
}

// DefaultConfig limits nothing.
func DefaultConfig() Config { return Config{MaxWait: time.Second} }

const (
	maxMessages = 1_000_000_000     // a second; above it nothing is limited in practice
	maxBytes    = 1_000_000_000_000 // likewise
	maxMaxWait  = 10 * time.Minute
)

// Validate says which field is wrong and what would be right.
func (c Config) Validate() error {
	if c.MessagesPerSecond < 0 || c.MessagesPerSecond > maxMessages {
		return fmt.Errorf("messages_per_second: got %d: use 1 to %d, or 0 for no limit", c.MessagesPerSecond, maxMessages)
	}
	if c.BytesPerSecond < 0 || c.BytesPerSecond > maxBytes {
		return fmt.Errorf("bytes_per_second: got %d: use 1 to %d, or 0 for no limit", c.BytesPerSecond, int64(maxBytes))
	}
	if c.MaxWait < 0 || c.MaxWait > maxMaxWait {
		return fmt.Errorf("max_wait: got %q: use a duration from 0s to 10m", c.MaxWait)
	}
	for _, part := range []struct {
		key    string
		limits map[string]string
	}{{"topics", c.Topics}, {"callers", c.Callers}} {
		for _, name := range slices.Sorted(maps.Keys(part.limits)) {
			if !isName(name) {
				return fmt.Errorf("%s: got the name %q: use 1 to 249 of a-z A-Z 0-9 . _ -, or \"*\" for each other one", part.key, name)
			}
			if _, err := parseRates(part.limits[name]); err != nil {
				return fmt.Errorf("%s.%s: %w", part.key, name, err)
			}
		}
	}
	return nil
}

// isName tells what topics and callers may be called.
func isName(s string) bool {
	return s == every || len(s) >= 1 && len(s) <= 249 && !strings.ContainsFunc(s, func(c rune) bool {
		return !(c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '.' || c == '_' || c == '-')
	})
}

// rates are the limits of one topic or caller; 0 is none.
type rates struct{ messages, bytes int64 }

func (r rates) none() bool { return r == rates{} }

// parseRates reads "500", "5MiB" or "500 5MiB".
func parseRates(text string) (r rates, err error) {
	words := strings.Fields(text)
	for _, word := range words {
		bare := strings.TrimSuffix(word, "/s")
		n, isBytes, ok := parseAmount(bare)
		dest, most := &r.messages, int64(maxMessages)
		if isBytes {
			dest, most = &r.bytes, maxBytes
		}
		if !ok || n < 1 || n > most || *dest != 0 {
			return rates{}, wrongRates(text)
		}
		*dest = n
	}
	if len(words) == 0 {
		return rates{}, wrongRates(text)
	}
	return r, nil
}

func wrongRates(text string) error {
	return fmt.Errorf(`got %q: use messages per second such as "500" (at most %d), bytes per second such as 5MiB or 5MB (a number without a unit is messages), or both: "500 5MiB"`, text, maxMessages)
}

// units of bytes; the longer ones first, since all end in B.
var units = []struct {
	suffix string
	bytes  int64
}{
	{"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30},
	{"kB", 1e3}, {"KB", 1e3}, {"MB", 1e6}, {"GB", 1e9}, {"B", 1},
}

// parseAmount reads a number of messages, or of bytes when it has a unit.
func parseAmount(s string) (n int64, isBytes, ok bool) {
	scale := int64(1)
	for _, u := range units {
		if bare, has := strings.CutSuffix(s, u.suffix); has {
			s, scale, isBytes = bare, u.bytes, true
			break
		}
	}
	n, err := strconv.ParseInt(strings.ReplaceAll(s, "_", ""), 10, 64)
	if err != nil || n < 0 || n > maxBytes/scale {
		return 0, isBytes, false
	}
	return n * scale, isBytes, true
}
