package kafka

import "sync"

// admission counts connections, in all and by address.
type admission struct {
	max, perIP int
	most       int // how many may be on their way out at once

	mu   sync.Mutex // guards everything below
	all  int
	byIP map[string]int
	out  int // of all, those that gave way and are not closed yet
}

// mostLeaving is how many connections may be on their way out at once when there are so many file descriptors: they come
// on top of those that are allowed.
func mostLeaving(descriptors int) int { return min(64, max(1, descriptors/64)) }

// The limits that a connection may meet, as they are counted.
const (
	limitAll         = "max_connections"
	limitPerIP       = "max_connections_per_ip"
	limitDescriptors = "file_descriptors"
)

// enter admits a connection or tells which limit is against it.
func (a *admission) enter(ip string) (reason string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	switch {
	case a.byIP[ip] >= a.perIP: // first: who has its part may take nobody else's
		return limitPerIP
	case a.all >= a.max:
		return limitAll
	}
	a.all++
	a.byIP[ip]++
	return ""
}

// mayReplace tells whether one more connection may be asked to give way. Until they are closed there are as many above
// the limit.
func (a *admission) mayReplace() bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.out < a.most
}

// replace admits a connection for which another gave way.
func (a *admission) replace(ip string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all++
	a.byIP[ip]++
}

// leaving counts those that gave way and are not closed yet.
func (a *admission) leaving(n int) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.out += n
}

func (a *admission) leave(ip string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.all--
	if a.byIP[ip]--; a.byIP[ip] <= 0 {
		delete(a.byIP, ip)
	}
}

// admit finds room for a connection with that descriptor, if need be an idle one's, or tells which limit is against it.
func (s *Server) admit(ip string, fd int) (reason string) {
	reason = s.admission.enter(ip)
	entered := reason == ""
	if entered && s.short(fd) {
		reason = limitDescriptors
	}
	if reason == "" {
		return ""
	}
	whose := ""
	if reason == limitPerIP {
		whose = ip
	}
	if s.admission.mayReplace() && s.giveWay(whose) {
		if !entered {
			s.admission.replace(ip)
		}
		return ""
	}
	if entered {
		s.admission.leave(ip)
	}
	return reason
}
