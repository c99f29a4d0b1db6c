package sidecar

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"sidestream/sdk/api"
)

// What was taken and meant something else, or was refused with a text that
// contradicts itself: each row was so.
func TestRefusals(t *testing.T) {
	r := newRig(t, nil)
	late := strconv.FormatInt(9223372036855, 10) // overflows the client's clock
	for _, c := range []struct {
		method, path, body string
		status             int
		says               string
	}{
		{"POST", "/topics/t?timeout=1ns", "x", 400, "1ms"},
		{"POST", "/topics/t?ts=" + late, "x", 400, "0 to 9223372036854"},
		{"POST", "/topics/t/batch", `{"ts":` + late + `}`, 422, "0 to 9223372036854"},
		{"POST", "/topics/t/batch", "{}\n\n{\"partition\":99}\n", 422, "no partition 99"},
		{"POST", "/topics/t/batch", `{"Value":"x"}`, 422, "Value"},
		{"POST", "/topics/t/batch", `{"headers":{"a":null}}`, 422, `"a" is null`},
		{"POST", "/topics/t/batch?key_field=k&lines=1", `{"k":"\ud800"}`, 422, "surrogate"},
		{"POST", "/groups/g/topics/t/pull?max=10001", "", 400, "1 to 10000"},
		{"POST", "/groups/g/topics/t/pull?lease=13h", "", 400, "12h"},
		{"POST", "/groups/g/topics/t/pull?lease=0", "", 400, "100ms"},
		{"POST", "/groups/g/topics/t/pull?from=", "", 400, "earliest"},
		{"POST", "/groups/g/topics/t/ack", `{"Receipts":["x"]}`, 400, "Receipts"},
		{"PUT", "/groups/g", `{"LEASE":"1m"}`, 400, "LEASE"},
		// {"0":null}, which JavaScript makes of NaN, was a seek to 0; of a name that
		// is there twice the last counted.
		{"PUT", "/groups/g/topics/t/offsets", `{"offsets":{"0":null}}`, 400, `"offsets.0" is null`},
		{"PUT", "/groups/g/topics/t/offsets", `{"offsets":{"0":1,"0":2}}`, 400, `"offsets.0" is given twice`},
		{"PUT", "/groups/g/topics/t/offsets", `{"to":"earliest","to":"latest"}`, 400, `"to" is given twice`},
		{"POST", "/groups/g/topics/t/ack", `{"receipts":[],"receipts":["x"]}`, 400, `"receipts" is given twice`},
		{"POST", "/groups/g/topics/t/ack", `{"receipts":["x",null]}`, 400, `"receipts.1" is null`},
		{"POST", "/groups/g/topics/t/ack", `{"receipts":null}`, 400, `receipts is empty`},
		{"POST", "/groups/g/topics/t/nack", `{"receipts":["x"],"delay":"","delay":"5s"}`, 400, `"delay" is given twice`},
		{"POST", "/groups/g/topics/t/nack", `{"receipts":["x"],"error":"","error":"e"}`, 400, `"error" is given twice`},
		{"POST", "/groups/g/topics/t/extend", `{"receipts":["x"],"lease":"","lease":"5s"}`, 400, `"lease" is given twice`},
		{"POST", "/groups/g/topics/t/pull", `{"ack":[],"ack":["x"]}`, 400, `"ack" is given twice`},
		{"POST", "/groups/g/topics/t/pull", `{"ack":["x"],"nack":[null]}`, 400, `"nack.0" is null`},
		{"PUT", "/groups/g", `{"max_attempts":null}`, 400, `"max_attempts" is null`},
		{"PUT", "/groups/g", `{"lease":"1m","lease":"2m"}`, 400, `"lease" is given twice`},
		{"PUT", "/topics/new", `{"partitions":null}`, 400, `"partitions" is null`},
		{"PUT", "/topics/new", `{"configs":{"retention.ms":null}}`, 400, `"configs.retention.ms" is null`},
		{"PUT", "/topics/new", `{"configs":{"retention.ms":"1","retention.ms":"2"}}`, 400, `"configs.retention.ms" is given twice`},
		{"POST", "/groups/g/topics/t/dead/redrive", `{"max":null}`, 400, `"max" is null`},
		{"POST", "/groups/g/topics/t/dead/redrive", `{"discard":false,"discard":true}`, 400, `"discard" is given twice`},
		{"GET", "/topics/t/partitions/00/messages", "", 400, "such as 12"},
		{"GET", "/topics/t/partitions/+0/messages", "", 400, "such as 12"},
	} {
		a := r.do(c.method, c.path, c.body)
		if a.status != c.status || !strings.Contains(string(a.body), strings.ReplaceAll(c.says, `"`, `\"`)) {
			t.Errorf("%s %s %q: got %s, want %d and %q", c.method, c.path, c.body, a, c.status, c.says)
		}
	}
	for p := range 4 {
		if ms := r.peek("t", p); len(ms) > 0 {
			t.Errorf("written all the same: %+v", ms)
		}
	}
	a := r.raw("NONSENSE\r\n\r\n")
	if a.status != 400 || strings.Contains(string(a.body), "cannot find") || !strings.Contains(string(a.body), "HTTP/1.1") {
		t.Errorf("no HTTP: got %s", a)
	}
	// Names may be written with escapes, and the last moment is taken.
	into[api.BatchPublished](t, r.do("POST", "/topics/one/batch", `{"\u0076alue":{"Value":[{"x":1}]},"ts":9223372036854}`), 200)
	ms := r.peek("one", 0)
	if len(ms) != 1 || *ms[0].Value != `{"Value":[{"x":1}]}` || ms[0].Timestamp != 9223372036854 {
		t.Errorf("%+v", ms)
	}
}

// On a full disk every acknowledgement fails, and /readyz said ok.
func TestReadyTellsOfTheDisk(t *testing.T) {
	r := newRig(t, nil)
	into[api.Health](t, r.do("GET", "/readyz", ""), 200)
	if _, err := os.Stat(r.cfg.DataDir + "/" + diskCheckFile); !os.IsNotExist(err) {
		t.Errorf("the file stays: %v", err)
	}
	r.sidecar.disk.mu.Lock()
	r.sidecar.disk.at, r.sidecar.disk.err = time.Now(), &os.PathError{Op: "write", Path: "x", Err: os.ErrPermission}
	r.sidecar.disk.mu.Unlock()
	h := into[api.Health](t, r.do("GET", "/readyz", ""), 503)
	if len(h.Causes) != 1 || !strings.Contains(h.Causes[0], "acknowledgements cannot be kept") {
		t.Errorf("%+v", h)
	}
	if err := tryWrite(r.cfg.DataDir + "/nowhere/x"); err == nil {
		t.Error("a folder that is not there takes writes")
	}
}
