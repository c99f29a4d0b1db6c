package api

import (
	"bytes"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"unicode/utf8"
)

// ContentTypeBehind is the type of the answer to a pull that names it in Accept:
// the JSON of the answer, a line end, and then the values of the messages as they
// are, one after the other. In the JSON a message has the "size" of its value in
// bytes in place of "value" and "value64"; a tombstone has "value":null, and
// nothing follows for it. Of the receipts that came with the pull only those are
// listed whose fate is more than that they were settled. It spares both sides
// the escaping and the base64, which for values of some size is most of the work.
const ContentTypeBehind = "application/x-sidestream-pulled"

// AppendBehind appends the answer as [ContentTypeBehind].
func (p Pulled) AppendBehind(b []byte) ([]byte, error) {
	if p.Acks != nil {
		told := ReceiptResponse{OK: p.Acks.OK, Failed: p.Acks.Failed, Results: []ReceiptResult{}}
		for _, r := range p.Acks.Results {
			if r.Error != nil || r.Provisional {
				told.Results = append(told.Results, r)
			}
		}
		p.Acks = &told
	}
	b, err := p.append(b, true)
	if err != nil {
		return b, err
	}
	b = append(b, '\n')
	for i := range p.Messages {
		switch m := &p.Messages[i]; {
		case m.Value != nil:
			b = append(b, *m.Value...)
		case m.Value64 != nil:
			if b, err = base64.StdEncoding.AppendDecode(b, []byte(*m.Value64)); err != nil {
				return b, fmt.Errorf("value of message %s: %w", m.ID, err)
			}
		}
	}
	return b, nil
}

// size is the length of the value in bytes.
func (m *Message) size() int {
	if m.Value != nil {
		return len(*m.Value)
	}
	n := len(*m.Value64)
	for n > 0 && (*m.Value64)[n-1] == '=' {
		n--
	}
	return base64.RawStdEncoding.DecodedLen(n)
}

// DecodeBehind decodes a [ContentTypeBehind] answer. What it returns is as from
// the JSON form: text in Value, other bytes as base64 in Value64.
func (p *Pulled) DecodeBehind(b []byte) error {
	d := scanner{in: b, sizes: []int{}}
	var q Pulled
	d.expected = bytes.IndexByte(b, '\n') / messageJSON
	if !d.pulled(&q) {
		if err := d.slowly(&q); err != nil {
			return err
		}
	}
	if d.at >= len(b) || b[d.at] != '\n' {
		return errBehind
	}
	rest := b[d.at+1:]
	for i, size := range d.sizes {
		if size < 0 {
			continue
		}
		if size > len(rest) {
			return errBehind
		}
		value := rest[:size]
		rest = rest[size:]
		if m := &q.Messages[i]; utf8.Valid(value) {
			m.Value = new(string(value))
		} else {
			m.Value64 = new(base64.StdEncoding.EncodeToString(value))
		}
	}
	if len(rest) > 0 {
		return errBehind
	}
	*p = q
	return nil
}

// messageJSON is about the least that a message takes in JSON without its value.
const messageJSON = 160

var errBehind = errors.New("api: the values behind the answer do not have the sizes that it tells")

// slowly decodes the JSON with encoding/json, whatever it has.
func (d *scanner) slowly(p *Pulled) error {
	*d = scanner{in: d.in, sizes: []int{}}
	*p = Pulled{}
	for d.at < len(d.in) && d.in[d.at] != '\n' { // JSON of one line
		d.at++
	}
	line := d.in[:d.at]
	var told struct {
		Messages []struct {
			Size *int `json:"size"`
		} `json:"messages"`
	}
	if err := errors.Join(json.Unmarshal(line, p), json.Unmarshal(line, &told)); err != nil {
		return err
	}
	for _, m := range told.Messages {
		size := -1
		if m.Size != nil {
			size = *m.Size
		}
		d.sizes = append(d.sizes, size)
	}
	return nil
}
