package api

import (
	"encoding/base64"
	"fmt"
	"strconv"
	"strings"

	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
	"sidestream/sidecar/consume"
)

// Bounds of the head of a raw answer, of which a record may fill any number of
// megabytes. Every client and proxy takes so much at its defaults: nginx holds
// one page (proxy_buffer_size), Node 16 KiB, Python 64 KiB a line and 100 lines,
// as many as Rust's hyper.
const (
	maxRawHead  = 4 << 10 // bytes, the status line and all that the server adds included
	maxRawLines = 80      // headers

	// Of them for what any answer may have besides: the status line, Server, Date,
	// Content-Length, Connection, headerOwnership, headerAway, headerAcksBad and the
	// last end.
	serverHead  = 256
	serverLines = 7
)

// Headers of a raw pull that say what is not in its head, and where that is.
const (
	headerLeftOut = "Sidestream-Left-Out"
	headerPeek    = "Sidestream-Peek"
)

// headerLine is one header of an answer.
type headerLine struct{ name, value string }

// rawPart is what belongs together in a raw answer's head: half of it would say
// something else.
type rawPart struct {
	name  string // in headerLeftOut
	lines []headerLine
}

// fitHead chooses the parts that go into a head beside what must be in it. The
// first come first. It is pure.
func fitHead(must []headerLine, parts []rawPart, where string) (lines []headerLine, leftOut []string) {
	bytes, count := serverHead+sizeOfLines(must), serverLines+len(must)
	all, allLines := bytes, count
	for _, p := range parts {
		all += sizeOfLines(p.lines)
		allLines += len(p.lines)
	}
	lines = must
	whole := all <= maxRawHead && allLines <= maxRawLines
	if !whole { // room for saying so, of any of them
		names := make([]string, len(parts))
		for i, p := range parts {
			names[i] = p.name
		}
		bytes += sizeOfLines([]headerLine{{headerLeftOut, strings.Join(names, ", ")}, {headerPeek, where}})
		count += 2
	}
	for _, p := range parts {
		size := sizeOfLines(p.lines)
		if !whole && (bytes+size > maxRawHead || count+len(p.lines) > maxRawLines) {
			leftOut = append(leftOut, p.name)
			continue
		}
		bytes, count = bytes+size, count+len(p.lines)
		lines = append(lines, p.lines...)
	}
	if len(leftOut) > 0 {
		lines = append(lines, headerLine{headerLeftOut, strings.Join(leftOut, ", ")}, headerLine{headerPeek, where})
	}
	return lines, leftOut
}

// sizeOfLines is how many bytes lines take in a head.
func sizeOfLines(lines []headerLine) (n int) {
	for _, l := range lines {
		n += len(l.name) + len(": ") + len(l.value) + len("\r\n")
	}
	return n
}

// rawHead is the head of an answer that is one message.
func rawHead(m *api.Message) (lines []headerLine, leftOut []string, err error) {
	must := []headerLine{{headerID, m.ID}, {headerTimestamp, strconv.FormatInt(m.Timestamp, 10)}}
	if m.Receipt != "" {
		must = append(must, headerLine{headerReceipt, m.Receipt})
	}
	if m.Attempt > 0 {
		must = append(must, headerLine{headerAttempt, strconv.Itoa(m.Attempt)})
	}
	if m.Tombstone() {
		must = append(must, headerLine{headerTombstone, "1"})
	}
	var parts []rawPart
	add := func(name string, lines ...headerLine) {
		if len(lines) > 0 {
			parts = append(parts, rawPart{name, lines})
		}
	}
	switch {
	case m.Key != nil && fitsHeader(*m.Key):
		add("key", headerLine{headerKey, *m.Key})
	case m.Key != nil:
		add("key", headerLine{headerKey + "64", base64.StdEncoding.EncodeToString([]byte(*m.Key))})
	case m.Key64 != nil:
		add("key", headerLine{headerKey + "64", *m.Key64})
	}
	contentType, event, trace := eventHead(m)
	must = append(must, headerLine{fasthttp.HeaderContentType, contentType})
	add("trace", trace...)
	add("event", event...)
	headers, err := recordHead(m.Headers)
	if err != nil {
		return nil, nil, err
	}
	add("headers", headers...)
	where := fmt.Sprintf("/topics/%s/partitions/%d/messages?offset=%d&max=1", m.Topic, m.Partition, m.Offset)
	lines, leftOut = fitHead(must, parts, where)
	return lines, leftOut, nil
}

// setHead adds lines to the head of an answer.
func setHead(h *fasthttp.ResponseHeader, lines []headerLine) {
	for _, l := range lines {
		h.Add(l.name, l.value)
	}
}

// rawHeadOf is the head of a raw answer. With settle the message is acknowledged
// if all of it goes out, as ack=auto asks; else its receipt is in the head, and it
// comes again unless the client acknowledges it.
func (s *Server) rawHeadOf(r consume.PullRequest, d *consume.Delivery, settle bool) ([]headerLine, error) {
	m := &d.Messages[0]
	lines, leftOut, err := rawHead(m)
	if err != nil || len(leftOut) > 0 || !settle {
		return lines, err
	}
	ctx, cancel := s.callContext() // the stop of this sidecar does not cut it off
	defer cancel()
	done, err := s.opt.Consumer.Ack(ctx, r.Group, r.Topic, api.Receipts{Receipts: []string{m.Receipt}})
	if err == nil && done.Failed > 0 {
		err = done.Results[0].Error
	}
	if err != nil {
		d.Return()
		return nil, err
	}
	d.Return, m.Receipt, m.LeaseUntil = nil, "", nil
	lines, _, err = rawHead(m)
	return lines, err
}
