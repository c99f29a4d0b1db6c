package api

import "testing"

func TestBareHost(t *testing.T) {
	for in, want := range map[string]string{
		"localhost": "localhost", "LOCALHOST:4100": "localhost", "127.0.0.1:80": "127.0.0.1",
		"[::1]:4100": "::1", "[::1]": "::1", "example.com.": "example.com",
	} {
		if got := bareHost(in); got != want {
			t.Errorf("%s: %s, want %s", in, got, want)
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
