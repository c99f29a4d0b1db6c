package agent

import (
	"encoding/json"
	"io"
	"net"
	"net/http"
	"os"
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

// literally sends a request and a further one behind it, and returns all that is
// answered until the connection ends.
func literally(t *testing.T, h *storageHost, request string) string {
	t.Helper()
	c, err := net.Dial("tcp", h.HTTPAddr())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(patience))
	_, _ = io.WriteString(c, strings.ReplaceAll(request, "|", "\r\n")+"\r\nConnection: close\r\n\r\n{}")
	b, err := io.ReadAll(c)
	if err != nil && len(b) == 0 {
		t.Fatalf("%s: %v", request, err)
	}
	return string(b)
}

func TestHTTP(t *testing.T) {
	c := newTestCluster(t)
	h := c.host("one")
	h.cfg.AllowedHosts = []string{"Agent.example"}
	h.start(c)
	h.ready()
	one := h
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
		"elsewhere":         {"GET", "/else", "", 404, "/metadata/rebuild"},
		"what it is":        {"GET", "/", "", 200, "agent of a Sidestream storage host"},
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
	// A name that its owner points at this host makes a page's requests those of
	// the same origin; a body that nobody announced is none.
	self, err := os.Hostname()
	if err != nil {
		t.Fatal(err)
	}
	for request, status := range map[string]string{
		"GET /status HTTP/1.1|Host: evil.example":                                                      "403",
		"GET http://evil.example/status HTTP/1.1|Host: localhost":                                      "403",
		"GET /status HTTP/1.1|Host: 0.0.0.0:4101":                                                      "403",
		"GET /status HTTP/1.1|Host: localhost|Sec-Fetch-Site: cross-site":                              "403",
		"GET /status HTTP/1.1|Host: localhost:4101":                                                    "200",
		"GET /status HTTP/1.1|Host: 10.1.2.3:4101":                                                     "200",
		"GET /status HTTP/1.1|Host: agent.example:4101":                                                "200",
		"GET /status HTTP/1.1|Host: " + self:                                                           "200",
		"GET /status HTTP/1.0":                                                                         "200",
		"POST /metadata/rebuild HTTP/1.1|Host: localhost":                                              "411",
		"POST /metadata/rebuild HTTP/1.1|Host: localhost|Transfer-Encoding: identity":                  "501",
		"POST /metadata/rebuild HTTP/1.1|Host: localhost|Transfer-Encoding: gzip":                      "501",
		"POST /metadata/rebuild HTTP/1.1|Host: localhost|Content-Length: 2|Content-Length: 2":          "400",
		"POST /metadata/rebuild HTTP/1.1|Host: localhost|Content-Length: 2|Transfer-Encoding: chunked": "400",
		"POST /metadata/rebuild HTTP/1.1|Host: localhost|Content-Length: 0":                            "400", // no JSON
		"POST /metadata/rebuild HTTP/1.1|Host: localhost|Content-Length: 65537":                        "413",
		"nonsense": "400",
	} {
		if got := literally(t, one, request); !strings.HasPrefix(got, "HTTP/1.1 "+status) || !strings.Contains(got, "{") {
			t.Errorf("%s: got %.300q; want %s", request, got, status)
		}
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
