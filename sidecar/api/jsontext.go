package api

import (
	"encoding/binary"
	"math/bits"
	"unicode/utf8"
)

// Batches hold up to millions of records a second, and encoding/json spends
// several times on each what all the rest of publishing it does. What follows
// reads JSON as most clients write it. It never decides that something is
// wrong: where it finds what it does not know, it says so, and encoding/json
// reads it again (readRecord, lookUp), with its errors. So there is one answer
// to each input; tests compare the two.

// unknown stands for an end that was not found.
const unknown = -1

// deepest is how deep values are looked through; encoding/json goes deeper.
const deepest = 64

func skipSpace(b []byte, i int) int {
	for i < len(b) && (b[i] == ' ' || b[i] == '\t' || b[i] == '\r' || b[i] == '\n') {
		i++
	}
	return i
}

// skipValue returns the end of the JSON value that begins at or behind b[i]
// after space, or unknown. Whether it is UTF-8 is for the caller to know.
func skipValue(b []byte, i, depth int) int {
	i = skipSpace(b, i)
	if i >= len(b) {
		return unknown
	}
	switch c := b[i]; c {
	case '"':
		return skipString(b, i+1)
	case '{', '[':
		return skipMembers(b, i, depth+1)
	case 't':
		return skipWord(b, i, "true")
	case 'f':
		return skipWord(b, i, "false")
	case 'n':
		return skipWord(b, i, "null")
	}
	return skipNumber(b, i)
}

// skipMembers is skipValue of the object or array that begins at b[i].
func skipMembers(b []byte, i, depth int) int {
	if depth > deepest {
		return unknown
	}
	named, end := b[i] == '{', b[i]+2 // the closing bracket is two behind
	if i = skipSpace(b, i+1); i < len(b) && b[i] == end {
		return i + 1
	}
	for {
		if named {
			if i = skipSpace(b, i); i >= len(b) || b[i] != '"' {
				return unknown
			}
			if i = skipString(b, i+1); i == unknown {
				return unknown
			}
			if i = skipSpace(b, i); i >= len(b) || b[i] != ':' {
				return unknown
			}
			i++
		}
		if i = skipValue(b, i, depth); i == unknown {
			return unknown
		}
		if i = skipSpace(b, i); i >= len(b) {
			return unknown
		}
		switch b[i] {
		case end:
			return i + 1
		case ',':
			i++
		default:
			return unknown
		}
	}
}

func skipWord(b []byte, i int, word string) int {
	if len(b)-i >= len(word) && string(b[i:i+len(word)]) == word {
		return i + len(word)
	}
	return unknown
}

func skipNumber(b []byte, i int) int {
	if i < len(b) && b[i] == '-' {
		i++
	}
	switch {
	case i >= len(b):
		return unknown
	case b[i] == '0':
		i++
	default:
		if i = skipDigits(b, i); i == unknown {
			return unknown
		}
	}
	if i < len(b) && b[i] == '.' {
		if i = skipDigits(b, i+1); i == unknown {
			return unknown
		}
	}
	if i < len(b) && (b[i] == 'e' || b[i] == 'E') {
		if i++; i < len(b) && (b[i] == '+' || b[i] == '-') {
			i++
		}
		return skipDigits(b, i)
	}
	return i
}

// skipDigits passes over one digit at least.
func skipDigits(b []byte, i int) int {
	begin := i
	for i < len(b) && b[i]-'0' <= 9 {
		i++
	}
	if i == begin {
		return unknown
	}
	return i
}

// skipString returns the end of the string whose opening quote is before b[i],
// behind its closing quote.
func skipString(b []byte, i int) int {
	for {
		if i = nextSpecial(b, i); i >= len(b) {
			return unknown
		}
		switch b[i] {
		case '"':
			return i + 1
		case '\\':
			if i++; i >= len(b) {
				return unknown
			}
			switch b[i] {
			case '"', '\\', '/', 'b', 'f', 'n', 'r', 't':
				i++
			case 'u':
				if _, ok := hex4(b, i+1); !ok {
					return unknown
				}
				i += 5
			default:
				return unknown
			}
		default:
			return unknown // a control character
		}
	}
}

// nextSpecial finds the next quote, backslash or control character.
func nextSpecial(b []byte, i int) int {
	for len(b)-i >= 8 {
		if found := specials(binary.LittleEndian.Uint64(b[i:])); found != 0 {
			return i + bits.TrailingZeros64(found)/8
		}
		i += 8
	}
	for i < len(b) && b[i] != '"' && b[i] != '\\' && b[i] >= ' ' {
		i++
	}
	return i
}

// specials has the high bit set in the lowest byte that is a quote, a backslash
// or a control character; bits above it may be set wrongly. 0: there is none.
func specials(v uint64) uint64 {
	const (
		ones  = 0x0101010101010101
		highs = 0x8080808080808080
	)
	quote, slash := v^'"'*ones, v^'\\'*ones
	return ((v-' '*ones)&^v | (quote-ones)&^quote | (slash-ones)&^slash) & highs
}

func hex4(b []byte, i int) (r rune, ok bool) {
	if len(b)-i < 4 {
		return 0, false
	}
	for _, c := range b[i : i+4] {
		switch {
		case c-'0' <= 9:
			c -= '0'
		case c|0x20 >= 'a' && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// readString returns the bytes of the string whose opening quote is before b[i],
// and its end: a part of b where no escape is in it, else written to the arena.
func readString(b []byte, i int, a *byteArena) (s []byte, end int) {
	special := nextSpecial(b, i)
	switch {
	case special >= len(b):
		return nil, unknown
	case b[special] == '"':
		return b[i:special:special], special + 1
	case b[special] != '\\':
		return nil, unknown
	}
	// It gets no longer by reading it.
	room := a.room(len(b) - i)
	n := copy(room, b[i:special])
	n, end = unescape(room, n, b, special)
	if end == unknown {
		return nil, unknown
	}
	return a.take(n), end
}

// stretch is how many bytes are read one by one before eight at once are tried
// again.
const stretch = 64

// unescape reads the rest of a string from b[i], which is in no escape, to
// out[n:], which has room for all of b. It returns how long out is then, and
// the end as readString. Text in JSON that is JSON itself has a quote every few
// bytes, so simple escapes cost no branch of their own: a backslash is written
// like any byte, and what follows it over it.
func unescape(out []byte, n int, b []byte, i int) (length, end int) {
	for i < len(b) {
		if len(b)-i >= 8 {
			v := binary.LittleEndian.Uint64(b[i:])
			if specials(v) == 0 {
				binary.LittleEndian.PutUint64(out[n:], v)
				i += 8
				n += 8
				continue
			}
		}
		var after uint8 // 1 behind a backslash
		other := false
		for _, c := range b[i:min(i+stretch, len(b))] {
			if other = standsForOther[after][c]; other {
				break
			}
			out[n] = c
			after = backslash[c] &^ after
			n += 1 - int(after)
			i++
		}
		switch {
		case !other:
			i -= int(after) // the backslash is read again with what follows it
			if i >= len(b)-1 {
				return 0, unknown
			}
		case after == 0 && b[i] == '"':
			return n, i + 1
		case after == 0: // a control character
			return 0, unknown
		default:
			if n, i = rareEscape(out, n, b, i); i == unknown {
				return 0, unknown
			}
		}
	}
	return 0, unknown
}

// backslash is 1 for the backslash.
var backslash = [256]uint8{'\\': 1}

// standsForOther tells of bytes, not behind and behind a backslash, that they do
// not stand for themselves, or may not stand there.
var standsForOther = func() (other [2][256]bool) {
	for c := range 256 {
		other[0][c] = c == '"' || c < ' '
		other[1][c] = c != '"' && c != '\\' && c != '/'
	}
	return other
}()

// rareEscape writes what the escape stands for that goes on at b[i], behind its
// backslash. Half of a surrogate pair is unknown.
func rareEscape(out []byte, n int, b []byte, i int) (length, end int) {
	c := b[i]
	switch c {
	case 'n':
		c = '\n'
	case 't':
		c = '\t'
	case 'r':
		c = '\r'
	case 'b':
		c = '\b'
	case 'f':
		c = '\f'
	case 'u':
		r, ok := hex4(b, i+1)
		i += 5
		if ok && r >= 0xd800 && r < 0xe000 {
			var low rune
			if i+1 >= len(b) || b[i] != '\\' || b[i+1] != 'u' {
				return 0, unknown
			}
			low, ok = hex4(b, i+2)
			if r >= 0xdc00 || low < 0xdc00 || low >= 0xe000 {
				return 0, unknown
			}
			r = (r-0xd800)<<10 | (low - 0xdc00) + 0x10000
			i += 6
		}
		if !ok {
			return 0, unknown
		}
		return n + utf8.EncodeRune(out[n:n+utf8.RuneLen(r)], r), i
	default:
		return 0, unknown
	}
	out[n] = c
	return n + 1, i + 1
}

// byteArena holds many pieces of bytes that are made and given up together.
type byteArena struct {
	block []byte
	size  int // of the next block at least
}

// room has n bytes to be written. They are kept by take, which must follow
// before the next room.
func (a *byteArena) room(n int) []byte {
	if a.block == nil || cap(a.block)-len(a.block) < n {
		a.block = make([]byte, 0, max(n, a.size)) // the pieces keep the one before
	}
	return a.block[len(a.block) : len(a.block)+n]
}

// take keeps the first n bytes of the last room.
func (a *byteArena) take(n int) []byte {
	at := len(a.block)
	a.block = a.block[:at+n]
	return a.block[at : at+n : at+n]
}
