package api

import (
	"encoding/json"
	"fmt"
)

// plainRecord is a Record that encoding/json reads and writes by its fields.
type plainRecord Record

// recordJSON is a Record whose headers are in either form.
type recordJSON struct {
	plainRecord
	Headers json.RawMessage `json:"headers,omitempty"`
}

// MarshalJSON writes HeaderList as the record's headers where there is one.
func (r Record) MarshalJSON() ([]byte, error) {
	if r.HeaderList == nil {
		return json.Marshal(plainRecord(r))
	}
	if len(r.Headers) > 0 {
		return nil, fmt.Errorf("api: a record has both Headers and HeaderList: use one")
	}
	list, err := json.Marshal(r.HeaderList)
	if err != nil {
		return nil, err
	}
	return json.Marshal(recordJSON{plainRecord(r), list})
}

// UnmarshalJSON reads an object of headers into Headers, and a list into
// HeaderList.
func (r *Record) UnmarshalJSON(b []byte) error {
	var in recordJSON
	if err := json.Unmarshal(b, &in); err != nil {
		return err
	}
	out := Record(in.plainRecord)
	var err error
	switch {
	case len(in.Headers) == 0:
	case in.Headers[0] == '[':
		err = json.Unmarshal(in.Headers, &out.HeaderList)
	default:
		err = json.Unmarshal(in.Headers, &out.Headers)
	}
	if err == nil {
		*r = out
	}
	return err
}
