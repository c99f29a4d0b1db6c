package api

import (
	"net/url"
	"slices"
	"strings"
)

// compiled is a route with its pattern cut into elements.
type compiled struct {
	route
	elements []string
	labels   string // "POST /topics/{topic}", for metrics
	histo    observer
}

type observer interface{ Observe(float64) }

// router finds routes by the number of path elements, then by the elements.
type router map[int][]*compiled

func newRouter(routes []route, histo func(method, pattern string) observer) router {
	r := router{}
	for _, rt := range routes {
		c := &compiled{route: rt, elements: strings.Split(rt.pattern[1:], "/"), labels: rt.method + " " + rt.pattern}
		c.histo = histo(rt.method, rt.pattern)
		r[len(c.elements)] = append(r[len(c.elements)], c)
	}
	return r
}

// find returns the route with the values of its {…} elements in order. Without
// a route for the method, allowed are the methods that the path has: none when
// there is no such path.
func (r router) find(method, path string) (found *compiled, args []string, allowed []string) {
	if !strings.HasPrefix(path, "/") {
		return nil, nil, nil
	}
	elements := strings.Split(path[1:], "/")
	for _, c := range r[len(elements)] {
		if !matches(c.elements, elements) {
			continue
		}
		if c.method == method || c.method == "GET" && method == "HEAD" {
			return c, argsOf(c.elements, elements), nil
		}
		allowed = append(allowed, c.method)
	}
	slices.Sort(allowed)
	return nil, nil, allowed
}

func matches(pattern, elements []string) bool {
	for i, p := range pattern {
		if p[0] != '{' && p != elements[i] {
			return false
		}
	}
	return true
}

// argsOf decodes the elements one by one, so that an escaped slash stays part
// of a name, where it is then refused as such.
func argsOf(pattern, elements []string) []string {
	var args []string
	for i, p := range pattern {
		if p[0] != '{' {
			continue
		}
		arg, err := url.PathUnescape(elements[i])
		if err != nil {
			arg = elements[i] // no valid name either
		}
		args = append(args, arg)
	}
	return args
}
