package main

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"strconv"
	"time"
)

// poster sends one request again and again over a connection of its own. It
// costs as little as it can, since it shares the processors with the servers.
type poster struct {
	conn    net.Conn
	in      *bufio.Reader
	request []byte
	body    []byte // of the last answer
}

func newPoster(addr string, request []byte) (*poster, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return nil, err
	}
	return &poster{conn: c, in: bufio.NewReaderSize(c, 64<<10), request: request}, nil
}

// post sends the request and reads its answer, which must be 200 or 202.
func (p *poster) post() error {
	if err := p.conn.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		return err
	}
	if _, err := p.conn.Write(p.request); err != nil {
		return err
	}
	line, err := p.in.ReadSlice('\n')
	if err != nil {
		return err
	}
	if !bytes.HasPrefix(line, []byte("HTTP/1.1 20")) { // 202: in the spool
		rest, _ := p.in.Peek(p.in.Buffered())
		return fmt.Errorf("answered %q %q", line, rest)
	}
	length := -1
	for {
		if line, err = p.in.ReadSlice('\n'); err != nil {
			return err
		}
		if len(line) <= 2 {
			break
		}
		if value, ok := bytes.CutPrefix(line, []byte("Content-Length: ")); ok {
			if length, err = strconv.Atoi(string(bytes.TrimSpace(value))); err != nil {
				return err
			}
		}
	}
	if length < 0 {
		return errors.New("the answer does not tell its length")
	}
	if cap(p.body) < length {
		p.body = make([]byte, length)
	}
	p.body = p.body[:length]
	_, err = io.ReadFull(p.in, p.body)
	return err
}

// requestOf is a whole HTTP request.
func requestOf(addr, path string, body []byte) []byte {
	head := fmt.Sprintf("POST %s HTTP/1.1\r\nHost: %s\r\nContent-Length: %d\r\n\r\n", path, addr, len(body))
	return append([]byte(head), body...)
}
