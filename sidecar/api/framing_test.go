package api

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
)

// A POST that does not say how long its body is has none, as RFC 9112 has it. It
// was answered 200, an empty message was stored, and what the client meant as
// the body was taken for its next request: whatever it said was done.
func TestBodiesThatAreNotAnnounced(t *testing.T) {
	const smuggled = "POST /topics/t HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8\r\n\r\nsmuggled"
	s := serve(t, nil)
	for head, want := range map[string]struct {
		status int
		says   string
	}{
		"POST /topics/t HTTP/1.0|":                                                                   {411, "length_required"},
		"POST /topics/t HTTP/1.0|Connection: keep-alive":                                             {411, "length_required"},
		"POST /topics/t HTTP/1.1|Host: localhost":                                                    {411, "Transfer-Encoding: chunked"},
		"POST /topics/t HTTP/1.1|Host: localhost|Expect: 100-continue":                               {411, "length_required"},
		"POST /topics/t HTTP/1.1|Host: localhost|X-Content-Length: 5":                                {411, "length_required"},
		"POST /topics/t/batch HTTP/1.1|Host: localhost":                                              {411, "length_required"},
		"POST /topics/t/batch?lines HTTP/1.1|Host: localhost|Accept: application/x-ndjson":           {411, "length_required"},
		"PUT /groups/g HTTP/1.1|Host: localhost|Content-Type: application/json":                      {411, "length_required"},
		"POST /drain HTTP/1.1|Host: localhost|Content-Type: text/plain":                              {411, "length_required"},
		"POST /nothing HTTP/1.1|Host: localhost|Content-Type: text/plain":                            {411, "length_required"},
		"POST /nothing HTTP/1.1|Host: localhost":                                                     {404, "not_found"}, // no length, no body; but no further request
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding: identity":                        {501, "not_implemented"},
		"GET /healthz HTTP/1.1|Host: localhost|Transfer-Encoding: identity":                          {501, "not_implemented"},
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding: gzip, chunked":                   {501, "not_implemented"},
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding: gzip":                            {501, "not_implemented"},
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding: xchunked":                        {501, "not_implemented"},
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding: gzip|Transfer-Encoding: chunked": {501, "not_implemented"},
		"POST /topics/t HTTP/1.0|Transfer-Encoding: chunked":                                         {501, "HTTP/1.0"},
		// Two ways to say it are two opinions of where the next request begins.
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 0|Transfer-Encoding: chunked":                      {400, "send one of them"},
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding: chunked|content-length: 4":                      {400, "send one of them"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 0|Transfer-Encoding: identity":                     {400, "send one of them"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 3|Transfer-Encoding: identity":                     {400, "send one of them"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 3|Transfer-Encoding: chunked|Expect: 100-continue": {400, "send one of them"},
		"GET /healthz HTTP/1.1|Host: localhost|Content-Length: 3|Transfer-Encoding: chunked":                        {400, "send one of them"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 3|Content-Length: 3":                               {400, "several headers Content-Length"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 3|Content-Length: 4":                               {400, "several headers Content-Length"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 3, 3":                                              {400, "bad_request"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: -3":                                                {400, "bad_request"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: +3":                                                {400, "bad_request"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 0x3":                                               {400, "bad_request"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length:":                                                   {400, "bad_request"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length : 3":                                                {400, "bad_request"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 99999999999999999999999":                           {400, "bad_request"},
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 9223372036854775807":                               {413, "request_too_large"},
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding : chunked":                                       {400, "bad_request"},
	} {
		t.Run(head, func(t *testing.T) {
			c, r := s.dial()
			_, _ = io.WriteString(c, strings.ReplaceAll(head, "|", "\r\n")+"\r\n\r\n"+smuggled)
			if status, text := answered(t, r); status != want.status || !strings.Contains(text, want.says) {
				t.Errorf("%d %s, want %d and %q", status, text, want.status, want.says)
			}
			if rest, err := io.ReadAll(r); err != nil || len(rest) > 0 {
				t.Errorf("then %q, %v: the connection goes on", rest, err)
			}
		})
	}
	if ms := s.sink.taken(); len(ms) > 0 {
		t.Errorf("stored: %s", values(ms))
	}
}

// What RFC 9112 allows stays as it was, on connections that stay open.
func TestBodiesThatMayBeEmpty(t *testing.T) {
	s := serve(t, nil)
	for head, status := range map[string]int{
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 0||":                          200,
		"POST /topics/t HTTP/1.1|Host: localhost|Content-Length: 0|Content-Type: text/plain||": 200,
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding: chunked||0||":              200,
		"POST /topics/t HTTP/1.1|Host: localhost|Transfer-Encoding: Chunked||0||":              200,
		"GET /healthz HTTP/1.1|Host: localhost|Content-Type: application/json||":               200, // general clients do
		"HEAD /healthz HTTP/1.1|Host: localhost||":                                             200,
		"DELETE /nothing HTTP/1.1|Host: localhost|Content-Type: application/json||":            404,
		"GET /healthz HTTP/1.1|Host: localhost|Content-Length: 3||abc":                         200,
	} {
		c, r := s.dial()
		for range 2 { // the second shows that the connection is where it should be
			fmt.Fprint(c, strings.ReplaceAll(head, "|", "\r\n"))
			a, err := http.ReadResponse(r, &http.Request{Method: head[:strings.IndexByte(head, ' ')]})
			if err != nil {
				t.Fatalf("%s: %v", head, err)
			}
			if _, err := io.Copy(io.Discard, a.Body); err != nil || a.StatusCode != status {
				t.Errorf("%s: %d, %v, want %d", head, a.StatusCode, err, status)
			}
		}
	}
}
