package api

import (
	"fmt"
	"strconv"

	"sidestream/sdk/api"
)

// maxCaller is the longest name of an application.
const maxCaller = 128

// callerOf is the application that a request comes from, for limits and
// metrics, "" when nothing tells: on the UNIX socket the one that its user was
// given in the configuration; else what the header says; else, on the UNIX
// socket, the number of its user. Over TCP anybody may say anything.
func (s *Server) callerOf(c *call) (string, error) {
	said := ""
	if values := c.Request.Header.PeekAll(api.HeaderCaller); len(values) > 0 {
		said = string(values[0])
		if len(values) > 1 {
			return "", apiError(api.CodeBadRequest, api.HeaderCaller+" is given several times: use one")
		}
		if !IsCaller(said) {
			return "", bad(api.HeaderCaller, said, "one name of 1 to "+strconv.Itoa(maxCaller)+" of a-z A-Z 0-9 . _ -")
		}
	}
	sock, _ := c.Conn().(*conn)
	uid, ok := sock.user()
	if !ok {
		return said, nil
	}
	name := (*s.users.Load())[uid]
	switch {
	case name != "" && said != "" && said != name:
		return "", apiError(api.CodeForbidden, fmt.Sprintf("%s says %q, but user %d of this socket is %q (callers in the configuration): leave the header out, or send that name", api.HeaderCaller, said, uid, name))
	case name != "":
		return name, nil
	case said != "":
		return said, nil
	}
	return "uid-" + strconv.FormatUint(uint64(uid), 10), nil
}

// IsCaller tells whether an application may call itself so.
func IsCaller(s string) bool {
	for i := range len(s) {
		switch c := s[i]; {
		case c >= 'a' && c <= 'z', c >= 'A' && c <= 'Z', c >= '0' && c <= '9', c == '.', c == '_', c == '-':
		default:
			return false
		}
	}
	return len(s) >= 1 && len(s) <= maxCaller
}

// SetUsers names the applications on the UNIX socket by the number of the user
// they run as, from the next request on.
func (s *Server) SetUsers(byUser map[uint32]string) { s.users.Store(&byUser) }

// user is the number of the user that the other side of a UNIX socket ran as
// when it connected, as the kernel tells it.
func (c *conn) user() (uid uint32, ok bool) {
	if c == nil {
		return 0, false
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	if !c.peerAsked {
		c.peerAsked = true
		c.peer, c.peerKnown = userOf(c.Conn)
	}
	return c.peer, c.peerKnown
}
