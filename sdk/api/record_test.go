package api_test

import (
	"encoding/json"
	"reflect"
	"testing"

	"sidestream/sdk/api"
)

func TestRecordHasHeadersOfBothForms(t *testing.T) {
	for want, r := range map[string]api.Record{
		`{"value":1}`:                   {Value: json.RawMessage("1")},
		`{"headers":{"a":"1","b":"2"}}`: {Headers: map[string]string{"b": "2", "a": "1"}},
		`{"key":"k","partition":3,"headers":[{"name":"b","value":""},{"name":"a"},{"name":"a","value64":"/w=="}]}`: {
			Key: new("k"), Partition: new(int32(3)), HeaderList: []api.HeaderPair{{Name: "b", Value: new("")}, {Name: "a"}, {Name: "a", Value64: new("/w==")}},
		},
	} {
		got, err := json.Marshal(r)
		if err != nil || string(got) != want {
			t.Errorf("%s, %v, want %s", got, err, want)
		}
		var back api.Record
		if err := json.Unmarshal(got, &back); err != nil || !reflect.DeepEqual(back, r) {
			t.Errorf("%s came back as %+v, %v", got, back, err)
		}
	}
	if b, err := json.Marshal(api.Record{Headers: map[string]string{"a": "1"}, HeaderList: []api.HeaderPair{{Name: "b"}}}); err == nil {
		t.Errorf("one of the forms is lost: %s", b)
	}
}
