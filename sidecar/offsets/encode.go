package offsets

import (
	"encoding/json"
	"fmt"
	"math"
	"time"
)

// MaxEncoded is the most bytes that Encode returns. A thousand partitions
// checkpointed by one host then stay a few MiB in the coordination store.
const MaxEncoded = 4 << 10

// maxPassed is how many of the ranges that were passed over Encode writes.
const maxPassed = 32

// maxAttempt bounds what is written of an attempt count, so that 64 stored retries
// always leave room for ranges.
const maxAttempt = 1_000_000

// wirePosition is the JSON of a position. Ranges and retries are written
// relative to the low edge, which makes thrice as many fit: acked and passed are
// lists skip, run, skip, run … from Low upwards; a retry is [offset-Low, attempts,
// not before in Unix milliseconds or 0].
type wirePosition struct {
	Topic       string     `json:"topic,omitempty"`
	SeekEpoch   uint64     `json:"seek,omitempty"`
	Low         int64      `json:"low"`
	HandOut     int64      `json:"hand_out"`
	LeaderEpoch int32      `json:"leader_epoch"`
	Retries     [][3]int64 `json:"retries,omitempty"`
	Acked       []int64    `json:"acked,omitempty"`
	Passed      []int64    `json:"passed,omitempty"`
}

// Encode writes the position as JSON of at most MaxEncoded bytes. Where all of
// it would not fit the ranges that were passed over are left out, then the
// highest acked ranges, and dropped says how many of those: their messages are
// then delivered again by whoever reads only this.
func (p Position) Encode() (b []byte, dropped int) {
	retries := min(len(p.Retries), storedRetries)
	b = p.encode(len(p.Acked), min(len(p.Passed), maxPassed), retries)
	if len(b) <= MaxEncoded {
		return b, 0
	}
	if b = p.encode(len(p.Acked), 0, retries); len(b) <= MaxEncoded {
		return b, 0
	}
	// The length grows with the number of ranges kept, so bisect for the most
	// that fit.
	fits, over := 0, len(p.Acked)
	for fits+1 < over {
		mid := (fits + over) / 2
		if len(p.encode(mid, 0, retries)) <= MaxEncoded {
			fits = mid
		} else {
			over = mid
		}
	}
	return p.encode(fits, 0, retries), len(p.Acked) - fits
}

// EncodeAll writes the whole position, however long. It is for the local store,
// where an acknowledgement that was answered may not be forgotten.
func (p Position) EncodeAll() []byte { return p.encode(len(p.Acked), len(p.Passed), len(p.Retries)) }

func (p Position) encode(acked, passed, retries int) []byte {
	w := wirePosition{Topic: p.Topic, SeekEpoch: p.SeekEpoch, Low: p.Low, HandOut: p.HandOut, LeaderEpoch: p.LeaderEpoch}
	w.Acked, w.Passed = skipsAndRuns(p.Low, p.Acked[:acked]), skipsAndRuns(p.Low, p.Passed[:passed])
	for _, r := range p.Retries[:retries] {
		var ms int64
		if !r.NotBefore.IsZero() {
			// Rounded up: a message never comes earlier than it was put off to.
			ms = max(1, r.NotBefore.Add(time.Millisecond-1).UnixMilli())
		}
		w.Retries = append(w.Retries, [3]int64{r.Offset - p.Low, int64(min(r.Attempt, maxAttempt)), ms})
	}
	b, err := json.Marshal(w)
	if err != nil {
		panic(err) // integers and a string always can be
	}
	return b
}

// Decode reads what Encode or EncodeAll wrote.
func Decode(b []byte) (Position, error) {
	var w wirePosition
	if err := json.Unmarshal(b, &w); err != nil {
		return Position{}, fmt.Errorf("position: %w", err)
	}
	if w.Low < 0 || w.HandOut < 0 {
		return Position{}, fmt.Errorf("position: low %d and hand_out %d must not be negative", w.Low, w.HandOut)
	}
	p := Position{Topic: w.Topic, SeekEpoch: w.SeekEpoch, Low: w.Low, HandOut: max(w.HandOut, w.Low), LeaderEpoch: w.LeaderEpoch}
	var err error
	if p.Acked, err = readRanges("acked", w.Low, 1, w.Acked); err != nil {
		return Position{}, err
	}
	passed, err := readRanges("passed", w.Low, 0, w.Passed)
	if err != nil {
		return Position{}, err
	}
	p.SetPassed(passed)
	var rs []Retry
	for i, r := range w.Retries {
		if r[0] < 0 || r[0] > math.MaxInt64-w.Low || r[1] < 0 || r[1] > maxAttempt || r[2] < 0 {
			return Position{}, fmt.Errorf("position: retry %d is %v: use [offset above low, attempts up to %d, Unix milliseconds]", i, r, maxAttempt)
		}
		t := Retry{Offset: w.Low + r[0], Attempt: int(r[1])}
		if r[2] > 0 {
			t.NotBefore = time.UnixMilli(r[2]).UTC()
		}
		rs = append(rs, t)
	}
	p.SetRetries(rs)
	return p, nil
}

func skipsAndRuns(at int64, list []Range) (numbers []int64) {
	for _, r := range list {
		numbers = append(numbers, r.From-at, r.To-r.From)
		at = r.To
	}
	return numbers
}

// readRanges reads skips and runs above an offset, of which the first skip is at
// least so much: what touches the low edge is not above it.
func readRanges(name string, at, first int64, numbers []int64) (list []Range, err error) {
	if len(numbers)%2 != 0 {
		return nil, fmt.Errorf("position: %s has %d numbers, but they come in pairs of skip and run", name, len(numbers))
	}
	for i := 0; i < len(numbers); i += 2 {
		skip, run := numbers[i], numbers[i+1]
		if skip < first || run < 1 || skip > math.MaxInt64-at || run > math.MaxInt64-at-skip {
			return nil, fmt.Errorf("position: %s range %d has skip %d and run %d: they must be at least %d and 1 and stay below 2^63", name, i/2, skip, run, first)
		}
		from := at + skip
		at = from + run
		list = append(list, Range{from, at})
		first = 1
	}
	return list, nil
}

// MarshalJSON is Encode.
func (p Position) MarshalJSON() ([]byte, error) {
	b, _ := p.Encode()
	return b, nil
}

// UnmarshalJSON is Decode.
func (p *Position) UnmarshalJSON(b []byte) error {
	q, err := Decode(b)
	if err != nil {
		return err
	}
	*p = q
	return nil
}
