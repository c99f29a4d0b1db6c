package sidecar

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"sidestream/sdk/api"
)

// A batch that is answered as it goes is larger than a request may be, and its
// answers say where each record is.
func TestStreamedBatch(t *testing.T) {
	r := newRig(t, func(c *Config) { c.MaxRequestBytes = 64 << 10 })
	const records = 20_000
	from, to := io.Pipe()
	go func() {
		w := bufio.NewWriter(to)
		for i := range records {
			if i == 7 {
				fmt.Fprintln(w, "{}}")
				continue
			}
			fmt.Fprintf(w, "{\"value\":\"%d\",\"key\":\"k%d\"}\n", i, i%10)
		}
		_ = w.Flush()
		to.Close()
	}()
	req, err := http.NewRequest("POST", r.base+"/topics/t/batch", from)
	if err != nil {
		t.Fatal(err)
	}
	req.Header.Set("Accept", api.ContentTypeNDJSON)
	a, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Body.Close()
	if a.StatusCode != 200 || a.Header.Get("Content-Type") != api.ContentTypeNDJSON {
		t.Fatalf("%d %v", a.StatusCode, a.Header)
	}
	at := map[string]int{} // partition/offset → line
	in := bufio.NewScanner(a.Body)
	for line := 1; line <= records; line++ {
		var l api.BatchLine
		if !in.Scan() || json.Unmarshal(in.Bytes(), &l) != nil || l.Line != line || (l.Error != nil) != (line == 8) {
			t.Fatalf("line %d: %s, %v", line, in.Text(), in.Err())
		}
		if l.Error == nil {
			at[fmt.Sprintf("%d/%d", l.Partition, l.Offset)] = line
		}
	}
	var end api.BatchEnd
	if !in.Scan() || json.Unmarshal(in.Bytes(), &end) != nil || end.Status != api.StreamEnded || end.Written != records-1 || end.Failed != 1 || end.Error != nil {
		t.Fatalf("%s", in.Text())
	}
	if len(at) != records-1 {
		t.Errorf("%d places", len(at))
	}
	// In order within each key, at the place that was answered.
	for p := range 4 {
		last := map[string]int{}
		for _, m := range r.peek("t", p) {
			line := at[fmt.Sprintf("%d/%d", p, m.Offset)]
			if *m.Value != fmt.Sprint(line-1) || last[*m.Key] >= line {
				t.Fatalf("partition %d, offset %d: %s of line %d, after %d", p, m.Offset, *m.Value, line, last[*m.Key])
			}
			last[*m.Key] = line
		}
	}
	if a := r.do("POST", "/topics/nowhere/batch?lines", strings.Repeat("x\n", 100_000), "Accept: application/x-ndjson"); a.status != 404 || a.code() != api.CodeTopicNotFound {
		t.Error(a)
	}
}
