package upstream

import (
	"errors"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kerr"
)

// notAppended begins the words of a broker that is certain that nothing of what it
// refuses is, or will be, in its log: its disk is full, say. The code beside it
// (KAFKA_STORAGE_ERROR, most often) may as well mean that a write has failed
// half way. Our brokers say so (NotAppended in broker/kafka); a broker of another
// make that begins its words alike means the same.
const notAppended = "not appended: "

// longestWords is how much of a broker's words is kept, in bytes.
const longestWords = 500

// BrokerError is an error code in an answer, with the broker's own words.
type BrokerError struct {
	Code  error  // of package kerr
	Words string // for people; "" where it said none
	// NotAppended: nothing of what it refuses was appended, whatever the code is.
	NotAppended bool
}

// Said is what an answer's error code and words mean; nil for code 0.
func Said(code int16, words *string) error {
	err := kerr.ErrorForCode(code)
	if err == nil || words == nil {
		return err
	}
	e := &BrokerError{Code: err}
	e.Words, e.NotAppended = strings.CutPrefix(*words, notAppended)
	e.Words = oneLine(e.Words)
	if e.Words == "" && !e.NotAppended {
		return err
	}
	return e
}

// oneLine is a text of somebody else's on one line, of a bounded length.
func oneLine(s string) string {
	s = strings.ToValidUTF8(s, "\uFFFD")
	s = strings.TrimSpace(strings.Map(func(r rune) rune {
		if unicode.IsControl(r) {
			return ' '
		}
		return r
	}, s))
	if len(s) <= longestWords {
		return s
	}
	cut := longestWords
	for !utf8.RuneStart(s[cut]) {
		cut--
	}
	return s[:cut] + "…"
}

// Error names the code and has the broker's words in place of the code's own text.
func (e *BrokerError) Error() string {
	k, ok := errors.AsType[*kerr.Error](e.Code)
	switch {
	case e.Words == "":
		return e.Code.Error()
	case !ok:
		return e.Words
	}
	return k.Message + ": " + e.Words
}

func (e *BrokerError) Unwrap() error { return e.Code }
