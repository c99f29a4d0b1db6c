package api

import (
	"bufio"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// ask sends a request to the letter and returns the status and body of its answer.
func ask(t *testing.T, to net.Addr, request string) (status int, body string) {
	t.Helper()
	c, err := net.Dial(to.Network(), to.String())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = c.Close() }()
	_ = c.SetDeadline(time.Now().Add(30 * time.Second))
	if _, err := io.WriteString(c, request); err != nil {
		t.Fatal(err)
	}
	resp, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatalf("%q: %v", request, err)
	}
	return resp.StatusCode, string(b)
}

// What a browser could be made to send is refused on TCP, and nothing is on a
// UNIX socket.
func TestGuard(t *testing.T) {
	s, err := New(Options{Listen: "127.0.0.1:4100", AllowedHosts: []string{"Sidecar.example:80"}, MaxRequestSize: 1 << 20})
	if err != nil {
		t.Fatal(err)
	}
	tcp, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	sock, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	s.Serve(tcp)
	s.Serve(sock)
	defer func() {
		if err := s.Shutdown(t.Context()); err != nil {
			t.Error(err)
		}
	}()
	for request, want := range map[string]int{ // on TCP; lines are ended below
		"GET /healthz HTTP/1.1|Host: localhost":                                                                              200,
		"GET /healthz HTTP/1.1|Host: localhost:4100":                                                                         200,
		"GET /healthz HTTP/1.1|Host: LocalHost.:80":                                                                          200,
		"GET /healthz HTTP/1.1|Host: 127.0.0.1:4100":                                                                         200,
		"GET /healthz HTTP/1.1|Host: [::1]:4100":                                                                             200,
		"GET /healthz HTTP/1.1|Host: sidecar.example":                                                                        200,
		"GET /healthz HTTP/1.1|Host: sidecar.example:4100":                                                                   200,
		"GET /healthz HTTP/1.0":                                                                                              200,
		"GET http://localhost/healthz HTTP/1.1|Host: localhost":                                                              200,
		"GET /healthz HTTP/1.1|Host: localhost|Sec-Fetch-Site: none":                                                         200,
		"GET /healthz HTTP/1.1|Host: localhost|User-Agent: curl/8":                                                           200,
		"GET /healthz HTTP/1.1|Host: evil.example":                                                                           403,
		"GET /healthz HTTP/1.1|Host: localhost.evil.example":                                                                 403,
		"GET /healthz HTTP/1.1|Host: 127.0.0.1.evil.example:4100":                                                            403,
		"GET /healthz HTTP/1.1|Host: evil.sidecar.example":                                                                   403,
		"GET /healthz HTTP/1.1|Host: user@localhost":                                                                         403,
		"GET /healthz HTTP/1.1|Host: 0.0.0.0:4100":                                                                           403,
		"GET /healthz HTTP/1.1|Host: 2130706433":                                                                             403,
		"GET /healthz HTTP/1.1|Host: [::ffff:10.0.0.1]":                                                                      403,
		"GET http://evil.example/healthz HTTP/1.1|Host: localhost":                                                           403,
		"GET /healthz HTTP/1.1|Host: localhost|Origin: http://evil":                                                          403,
		"GET /healthz HTTP/1.1|Host: localhost|origin: null":                                                                 403,
		"GET /healthz HTTP/1.0|Origin: http://localhost:4100":                                                                403,
		"OPTIONS /topics/t HTTP/1.1|Host: localhost|Origin: http://e":                                                        403,
		"GET /groups/g/topics/t/stream?ack=auto HTTP/1.1|Host: localhost|Sec-Fetch-Site: cross-site|Sec-Fetch-Mode: no-cors": 403,
		"GET /healthz HTTP/1.1|Host: localhost|Sec-Fetch-Site: same-site":                                                    403,
		"GET /healthz HTTP/1.1":                                                                                              400,
		"GET /healthz HTTP/1.1|Host: ":                                                                                       400,
		"GET /healthz HTTP/1.1|Host: localhost|Host: evil.example":                                                           400,
		"GET /healthz HTTP/1.1|Host: [::1":                                                                                   400,
		"GET /healthz HTTP/1.1|Host: localhost/evil":                                                                         400,
	} {
		request = strings.ReplaceAll(request, "|", "\r\n") + "\r\n\r\n"
		status, body := ask(t, tcp.Addr(), request)
		if status != want || status == 403 && !strings.Contains(body, `"forbidden"`) || status == 400 && !strings.Contains(body, "one Host") {
			t.Errorf("%q: got %d %s, want %d", request, status, body, want)
		}
		if want == 403 && !strings.HasPrefix(request, "OPTIONS") && !strings.Contains(request, "/stream") {
			if status, body := ask(t, sock.Addr(), request); status != 200 {
				t.Errorf("%q on a UNIX socket: got %d %s", request, status, body)
			}
		}
	}

	s.SetHosts([]string{"other.example"})
	for host, want := range map[string]int{"other.example": 200, "sidecar.example": 403} {
		if status, body := ask(t, tcp.Addr(), "GET /healthz HTTP/1.1\r\nHost: "+host+"\r\n\r\n"); status != want {
			t.Errorf("%s after a change: got %d %s, want %d", host, status, body, want)
		}
	}
}

func TestRouterFindsByElements(t *testing.T) {
	m, err := newMetrics(nil)
	if err != nil {
		t.Fatal(err)
	}
	r := newRouter([]route{
		{method: "GET", pattern: "/topics"},
		{method: "GET", pattern: "/topics/{topic}"},
		{method: "PUT", pattern: "/topics/{topic}"},
		{method: "POST", pattern: "/topics/{topic}/batch"},
	}, m)
	for _, c := range []struct {
		method, path, label string
		args                int
		allowed             int
	}{
		{"GET", "/topics", "GET /topics", 0, 0},
		{"HEAD", "/topics", "GET /topics", 0, 0},
		{"PUT", "/topics/a%2Fb", "PUT /topics/{topic}", 1, 0},
		{"DELETE", "/topics/a", "", 0, 2},
		{"GET", "/topics/a/batch", "", 0, 1},
		{"GET", "/topics/a/b/c", "", 0, 0},
		{"GET", "topics", "", 0, 0},
		{"GET", "/", "", 0, 0},
	} {
		found, args, allowed := r.find(c.method, c.path)
		label := ""
		if found != nil {
			label = found.labels
		}
		if label != c.label || len(args) != c.args || len(allowed) != c.allowed {
			t.Errorf("%s %s: %q %v %v", c.method, c.path, label, args, allowed)
		}
	}
	if _, args, _ := r.find("PUT", "/topics/a%2Fb"); args[0] != "a/b" {
		t.Errorf("argument %q: an escaped slash belongs to the name", args[0])
	}
}
