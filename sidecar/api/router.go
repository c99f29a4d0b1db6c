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
	ok       adder // counts answers with status 200
	cost     int64 // of an answer, before it is made
}

type (
	observer interface{ Observe(float64) }
	adder    interface{ Inc() }
)

// router finds routes by the number of path elements, then by the elements.
type router map[int][]*compiled

func newRouter(routes []route, m *metrics) router {
	r := router{}
	for _, rt := range routes {
		c := &compiled{route: rt, elements: strings.Split(rt.pattern[1:], "/"), labels: rt.method + " " + rt.pattern, cost: answerCost(rt.method, rt.pattern)}
		c.histo = m.seconds.WithLabelValues(c.labels)
		c.ok = m.requests.WithLabelValues(c.labels, "200")
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
	path = path[1:]
	for _, c := range r[strings.Count(path, "/")+1] {
		if !matches(c.elements, path) {
			continue
		}
		if c.method == method || c.method == "GET" && method == "HEAD" {
			return c, argsOf(c.elements, path), nil
		}
		allowed = append(allowed, c.method)
	}
	slices.Sort(allowed)
	return nil, nil, allowed
}

// matches compares a pattern with a path of as many elements.
func matches(pattern []string, path string) bool {
	for _, p := range pattern {
		var element string
		element, path, _ = strings.Cut(path, "/")
		if !strings.HasPrefix(p, "{") && p != element {
			return false
		}
	}
	return true
}

// argsOf decodes the elements one by one, so that an escaped slash stays part
// of a name, where it is then refused as such.
func argsOf(pattern []string, path string) []string {
	var args []string
	for _, p := range pattern {
		var element string
		element, path, _ = strings.Cut(path, "/")
		if !strings.HasPrefix(p, "{") {
			continue
		}
		arg, err := url.PathUnescape(element)
		if err != nil {
			arg = element // no valid name either
		}
		args = append(args, arg)
	}
	return args
}
