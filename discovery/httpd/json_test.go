package httpd

import (
	"encoding/json"
	"strings"
	"testing"
)

// encoding/json took {"offsets":{"0":null}} for a seek to 0, and of a field that
// is there twice the last.
func TestCheckJSON(t *testing.T) {
	type body struct {
		To      string           `json:"to,omitempty"`
		Offsets map[string]int64 `json:"offsets,omitempty"`
		List    []string         `json:"list,omitempty"`
		Max     int32            `json:"max,omitempty"`
		Tries   *int             `json:"tries,omitempty"`
		Yes     *bool            `json:"yes,omitempty"`
		Hidden  int              `json:"-"`
	}
	for text, want := range map[string]string{
		`{}`: "",
		`{"to":"a","offsets":{"0":0,"1":-1},"list":["null",""],"max":1,"tries":0,"yes":false}`: "",
		`{"to":null,"offsets":null,"list":null,"yes":null}`:                                    "",
		`{"offsets":{"0":12345678901234567890123}}`:                                            "", // decoding tells that it is too large
		`{"offsets":{"0":null}}`:                                                               `"offsets.0" is null`,
		`{"offsets":{"0":1,"1":null}}`:                                                         `"offsets.1" is null`,
		`{"list":["a",null]}`:                                                                  `"list.1" is null`,
		`{"max":null}`:                                                                         `"max" is null: use a number`,
		`{"tries":null}`:                                                                       `"tries" is null: use a number`,
		`{"to":"a","to":"b"}`:                                                                  `"to" is given twice`,
		`{"to":null,"to":"b"}`:                                                                 `"to" is given twice`,
		`{"to":"a","t\u006f":"b"}`:                                                             `"to" is given twice`,
		`{"offsets":{"0":1,"1":2,"0":3}}`:                                                      `"offsets.0" is given twice`,
		`{"list":["a"],"list":["b"]}`:                                                          `"list" is given twice`,
		`{"list":[{"deep":1,"deep":2}]}`:                                                       `"list.0.deep" is given twice`,
		`{"To":"a"}`:                                                                           `unknown field "To"`,
		`{"to":"a","TO":"b"}`:                                                                  `unknown field "TO"`,
		`{"Hidden":1}`:                                                                         `unknown field "Hidden"`,
		`{"list":` + strings.Repeat("[", 500) + strings.Repeat("]", 500) + `}`: "",
	} {
		if !json.Valid([]byte(text)) {
			t.Fatal(text)
		}
		err := CheckJSON([]byte(text), new(body))
		if want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: got %v, want %q", text, err, want)
		}
	}
}
