package httpd

import "testing"

// A daemon that listens on all addresses is reached by each of them, but not by
// the one that stands for all, which browsers let pages use.
func TestGuardOfAllAddresses(t *testing.T) {
	if g := NewGuard("0.0.0.0:4100", nil, false); len(g.hosts) != 3 {
		t.Errorf("allowed: %q", g.hosts)
	}
	if g := NewGuard("[::]:4100", nil, false); len(g.hosts) != 3 {
		t.Errorf("allowed: %q", g.hosts)
	}
	if g := NewGuard("10.1.2.3:4100", nil, false); len(g.hosts) != 4 {
		t.Errorf("allowed: %q", g.hosts)
	}
}

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
