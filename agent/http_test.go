package agent

import (
	"encoding/json"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

func call(t *testing.T, h *storageHost, method, path, body string, header ...string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, "http://"+h.HTTPAddr()+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}, Timeout: patience}
	resp, err := client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(b)
}

func TestHTTP(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	one.create("t", 2)
	one.create("a", 8)
	one.await("a settled status", func() bool { return len(one.Status().Partitions) == 10 })

	if code, body := call(t, one, "GET", "/healthz", ""); code != 200 || body != "{\n  \"status\": \"ok\"\n}\n" {
		t.Errorf("healthz: %d %q", code, body)
	}
	if code, body := call(t, one, "GET", "/readyz", ""); code != 200 || !strings.Contains(body, `"status": "ok"`) {
		t.Errorf("readyz: %d %q", code, body)
	}
	code, body := call(t, one, "GET", "/status", "")
	var s Status
	if err := json.Unmarshal([]byte(body), &s); err != nil || code != 200 {
		t.Fatalf("status: %d %v %s", code, err, body)
	}
	if s.ID != 1 || s.ClusterID == "" || s.Controller != 1 || len(s.Partitions) != 10 || s.Store != "same" || s.Session != "proven" || s.Broker != one.BrokerAddr() {
		t.Errorf("status: %+v", s)
	}
	for i, p := range s.Partitions { // for people, and for diff
		if want := (PartitionStatus{Topic: "a", Partition: int32(i)}); i < 8 && (p.Topic != want.Topic || p.Partition != want.Partition) {
			t.Errorf("partition %d of the status is %s-%d", i, p.Topic, p.Partition)
		}
	}
	if !strings.Contains(body, `"alarms": []`) {
		t.Errorf("no empty list of alarms in %s", body)
	}
	if code, body := call(t, one, "GET", "/metrics", ""); code != 200 || !strings.Contains(body, "sidestream_agent_led_partitions 10") || !strings.Contains(body, "sidestream_agent_controller 1") {
		t.Errorf("metrics: %d %s", code, body)
	}

	for name, x := range map[string]struct {
		method, path, body string
		code               int
		says               string
	}{
		"elsewhere":         {"GET", "/", "", 404, "/metadata/rebuild"},
		"wrong method":      {"GET", "/metadata/rebuild", "", 405, "use POST"},
		"no JSON":           {"POST", "/metadata/rebuild", "x", 400, "cluster_id"},
		"null":              {"POST", "/metadata/rebuild", `{"cluster_id":null}`, 400, "cluster_id"},
		"twice":             {"POST", "/metadata/rebuild", `{"cluster_id":"` + s.ClusterID + `","cluster_id":"` + s.ClusterID + `"}`, 400, "given twice"},
		"no cluster":        {"POST", "/metadata/rebuild", "{}", 400, "cluster_id"},
		"another cluster":   {"POST", "/metadata/rebuild", `{"cluster_id":"aaaaaaaa-0000-4000-8000-000000000001"}`, 409, s.ClusterID},
		"nothing to do":     {"POST", "/metadata/rebuild", `{"cluster_id":"` + s.ClusterID + `"}`, 200, `"unchanged": 10`},
		"posting to status": {"POST", "/status", "", 405, "use GET"},
	} {
		t.Run(name, func(t *testing.T) {
			code, body := call(t, one, x.method, x.path, x.body)
			if code != x.code || !strings.Contains(body, x.says) {
				t.Errorf("got %d %s; want %d with %q", code, body, x.code, x.says)
			}
		})
	}
	if code, _ := call(t, one, "POST", "/metadata/rebuild", "{}", "Origin", "http://evil.example"); code != 403 {
		t.Errorf("a web page got %d; want 403", code)
	}

	c.store.Wipe()
	one.await("the alarm", func() bool { return one.hasAlarm("cluster-id missing") })
	if _, body := call(t, one, "GET", "/status", ""); !strings.Contains(body, "run metadata rebuild") {
		t.Errorf("no alarm in %s", body)
	}
	if code, body := call(t, one, "POST", "/metadata/rebuild", `{"cluster_id":"`+s.ClusterID+`"}`); code != 200 || !strings.Contains(body, `"t-0"`) || !strings.Contains(body, `"cluster_id_written": true`) {
		t.Errorf("rebuild: %d %s", code, body)
	}
}

func TestHTTPBeforeTheStoreIsThere(t *testing.T) {
	c := newTestCluster(t)
	c.store.SetDown(true)
	one := c.host("one")
	one.start(c)
	one.await("HTTP", func() bool { return one.HTTPAddr() != "" })
	if code, _ := call(t, one, "GET", "/healthz", ""); code != 200 {
		t.Errorf("healthz: %d", code)
	}
	if code, body := call(t, one, "GET", "/readyz", ""); code != 503 || !strings.Contains(body, `"status": "not ready"`) || !strings.Contains(body, "starting") {
		t.Errorf("readyz: %d %s", code, body)
	}
	if code, body := call(t, one, "GET", "/status", ""); code != 200 || !strings.Contains(body, `"id": 0`) {
		t.Errorf("status: %d %s", code, body)
	}
	if code, body := call(t, one, "POST", "/metadata/rebuild", `{"cluster_id":"aaaaaaaa-0000-4000-8000-000000000001"}`); code != 503 {
		t.Errorf("rebuild: %d %s", code, body)
	}
	time.Sleep(2 * one.cfg.StartWait) // a new folder waits however long it takes
	if one.BrokerAddr() != "" {
		t.Error("a broker without an id serves")
	}
	c.store.SetDown(false)
	one.ready()
}

func TestAListenerThatIsTaken(t *testing.T) {
	c := newTestCluster(t)
	one := c.started("one")[0]
	two := c.host("two")
	two.cfg.Listen = one.HTTPAddr()
	two.start(c)
	if err := two.wait(); err == nil || !strings.Contains(err.Error(), "listen:") {
		t.Errorf("got %v", err)
	}
}
