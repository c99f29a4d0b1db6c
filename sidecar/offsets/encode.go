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

// maxAttempt bounds what is written of an attempt count, so that 64 retries
// always leave room for ranges.
const maxAttempt = 1_000_000

// wirePosition is the JSON of a position. Ranges and retries are written
// relative to the low edge, which makes thrice as many fit: acked is the list
// skip, run, skip, run … from Low upwards; a retry is [offset-Low, attempts,
// not before in Unix milliseconds or 0].
type wirePosition struct {
	Topic       string     `json:"topic,omitempty"`
	SeekEpoch   uint64     `json:"seek,omitempty"`
	Low         int64      `json:"low"`
	HandOut     int64      `json:"hand_out"`
	LeaderEpoch int32      `json:"leader_epoch"`
	Retries     [][3]int64 `json:"retries,omitempty"`
	Acked       []int64    `json:"acked,omitempty"`
}

// Encode writes the position as JSON of at most MaxEncoded bytes. Where all of
// it would not fit the highest acked ranges are left out, and dropped says how
// many: their messages are then delivered again by whoever reads only this.
func (p Position) Encode() (b []byte, dropped int) {
	b = p.encode(len(p.Acked))
	if len(b) <= MaxEncoded {
		return b, 0
	}
	// The length grows with the number of ranges kept, so bisect for the most
	// that fit.
	fits, over := 0, len(p.Acked)
	for fits+1 < over {
		mid := (fits + over) / 2
		if len(p.encode(mid)) <= MaxEncoded {
			fits = mid
		} else {
			over = mid
		}
	}
	return p.encode(fits), len(p.Acked) - fits
}

// EncodeAll writes the whole position, however long. It is for the local store,
// where an acknowledgement that was answered may not be forgotten.
func (p Position) EncodeAll() []byte { return p.encode(len(p.Acked)) }

func (p Position) encode(ranges int) []byte {
	w := wirePosition{Topic: p.Topic, SeekEpoch: p.SeekEpoch, Low: p.Low, HandOut: p.HandOut, LeaderEpoch: p.LeaderEpoch}
	at := p.Low
	for _, r := range p.Acked[:ranges] {
		w.Acked = append(w.Acked, r.From-at, r.To-r.From)
		at = r.To
	}
	for i, r := range p.Retries {
		if i == MaxRetries {
			break
		}
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
	if len(w.Acked)%2 != 0 {
		return Position{}, fmt.Errorf("position: acked has %d numbers, but they come in pairs of skip and run", len(w.Acked))
	}
	p := Position{Topic: w.Topic, SeekEpoch: w.SeekEpoch, Low: w.Low, HandOut: max(w.HandOut, w.Low), LeaderEpoch: w.LeaderEpoch}
	at := w.Low
	for i := 0; i < len(w.Acked); i += 2 {
		skip, run := w.Acked[i], w.Acked[i+1]
		if skip < 1 || run < 1 || skip > math.MaxInt64-at || run > math.MaxInt64-at-skip {
			return Position{}, fmt.Errorf("position: acked range %d has skip %d and run %d: both must be at least 1 and stay below 2^63", i/2, skip, run)
		}
		from := at + skip
		at = from + run
		p.Acked = append(p.Acked, Range{from, at})
	}
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
