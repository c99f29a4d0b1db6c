package kafka

import "sync"

// admission counts connections, in all and by address.
type admission struct {
	max, perIP int

	mu   sync.Mutex // guards all and byIP
	all  int
	byIP map[string]int
}

// enter admits a connection or tells which limit is against it.
func (a *admission) enter(ip string) (reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.all >= a.max:
		return "max_connections"
	case a.byIP[ip] >= a.perIP:
		return "max_connections_per_ip"
	}
	a.all++
	a.byIP[ip]++
	return ""
}

func (a *admission) leave(ip string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.byIP[ip]--; a.byIP[ip] <= 0 {
		delete(a.byIP, ip)
	}
}
