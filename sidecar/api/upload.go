package api

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/publish"
)

// A batch that is answered as it goes is read in pieces: whole lines, as many as
// have arrived. Each piece is sent once the one before has its place in the order
// of its partitions, so the next is read and sent while others are under way, and
// they are answered in order.
const (
	pieceBytes    = 256 << 10 // of a piece, unless one line is longer
	pieceLines    = 4000      // that are not blank, of a piece
	pieceMessages = 2000      // of what is sent at once, where no limit is met
	piecesAtOnce  = 8         // read, under way, or with answers that the client has not taken
)

// upload is one batch that is answered as it goes: one goroutine reads it, one a
// piece sends it, and whoever reads the upload gets the answers.
type upload struct {
	s        *Server
	topic    string
	options  publish.Options
	lines    bool
	path     []string // of the field with the key; nil: none
	keyField keyField
	headers  func(ms []publish.Message) // adds what the request carries

	from  io.Reader // unpacked
	alive func()    // called before each read of the body

	sock      net.Conn
	stopDrain func() bool
	// What the body is unpacked by, of which who reads it makes the first.
	unpacker     unpacker
	how          *packing
	packedMemory int64

	ctx    context.Context // of what is sent
	cancel context.CancelFunc
	wg     sync.WaitGroup
	slots  chan struct{}
	pieces chan *piece  // in their order; closed behind the last
	atOnce atomic.Int64 // messages that are sent at once

	// What follows belongs to who reads the body, and to others once pieces is
	// closed.
	first   *piece
	rest    []byte // what the next piece begins with
	bodyEnd error  // of the body, which rest is the last of
	line    int    // the last that was read
	over    bool
	err     error // why reading ended early

	// What follows belongs to who reads the answers.
	reading bool // read was begun
	current *piece
	out     []byte
	at      int
	end     api.BatchEnd
	ended   bool
}

// piece is some lines of an upload.
type piece struct {
	body  *body
	batch *batch
	taken int64 // for its messages, of the memory for bodies
	bad   []badLine

	whole   *api.Error // nothing of it was sent, for this
	results []api.BatchResult
	entered chan struct{} // closed when the next piece may be sent
	known   atomic.Int64  // so many of the results are there
	more    chan struct{} // says that known has grown
	done    chan struct{} // closed when all are there

	told int // of them, by who reads the answers
}

func newPiece() *piece {
	return &piece{body: newBody(), entered: make(chan struct{}), more: make(chan struct{}, 1), done: make(chan struct{})}
}

// knows says that the results up to one are there.
func (p *piece) knows(n int) {
	if p.known.Swap(int64(n)) == int64(n) {
		return // it was another attempt
	}
	select {
	case p.more <- struct{}{}:
	default: // it is said already
	}
}

// badLine is one that cannot be sent.
type badLine struct {
	line int
	err  *api.Error
}

// read reads the body to its end, from behind its first piece on.
func (u *upload) read() {
	defer close(u.pieces)
	for before := u.first; !u.over; {
		p := u.next()
		if p == nil {
			continue
		}
		select {
		case <-before.entered:
		case <-u.ctx.Done():
			u.over, u.err = true, u.ctx.Err()
			u.free(p)
			return
		}
		u.wg.Go(func() { u.publish(p) })
		u.pieces <- p // it has a slot, so there is room
		before = p
	}
}

// next reads a piece; nil when there is nothing in it, or the upload is over.
func (u *upload) next() *piece {
	select {
	case u.slots <- struct{}{}:
	case <-u.ctx.Done():
		u.over, u.err = true, u.ctx.Err()
		return nil
	}
	u.awaitMemory()
	p := newPiece()
	whole, err := u.fill(p.body, u.rest)
	if err == io.EOF { // and nothing that wraps it, which is a body that was cut off
		whole = len(p.body.b) // the last line needs no end
	}
	cut, n := cutLines(p.body.b[:whole], u.lines, pieceLines)
	switch {
	case cut < whole:
		u.bodyEnd = err // once the rest is read
	case err == io.EOF:
		u.over = true
	case err != nil:
		u.over, u.err = true, err
	}
	if n > 0 {
		if err := u.takePiece(p, n, cut); err != nil {
			u.over, u.err, cut, n = true, err, 0, 0
		}
	}
	u.rest = append(u.rest[:0], p.body.b[cut:]...)
	u.parse(p, p.body.b[:cut], n)
	if len(p.batch.messages) == 0 && len(p.bad) == 0 {
		u.free(p)
		return nil
	}
	return p
}

// fill begins a piece with the rest of the one before, and reads until it has a
// whole line if there is none in that. whole is how much of it is whole lines;
// the error is that of the body.
func (u *upload) fill(b *body, rest []byte) (whole int, err error) {
	if err := b.grow(u.ctx, u.s.memory, max(pieceBytes, len(rest)+1)); err != nil {
		return 0, err
	}
	b.b = append(b.b, rest...)
	if i := bytes.LastIndexByte(rest, '\n'); i >= 0 || u.bodyEnd != nil {
		return i + 1, u.bodyEnd
	}
	most := max(u.s.opt.MaxRequestSize, pieceBytes)
	for {
		if len(b.b) == cap(b.b) {
			if len(b.b) >= most {
				return 0, apiError(api.CodeRequestTooLarge, fmt.Sprintf("line %d has more than the %d bytes allowed (max_request_bytes)", u.line+1, most))
			}
			if err := b.grow(u.ctx, u.s.memory, min(2*cap(b.b), most)); err != nil {
				return 0, err
			}
		}
		u.alive()
		n, err := u.from.Read(b.b[len(b.b):cap(b.b)])
		begin := len(b.b)
		b.b = b.b[:begin+n]
		if i := bytes.LastIndexByte(b.b[begin:], '\n'); i >= 0 {
			return begin + i + 1, err
		}
		if err != nil {
			return 0, err
		}
	}
}

// parse reads the lines of a piece, of which n are not blank.
func (u *upload) parse(p *piece, whole []byte, n int) {
	p.batch = newBatch(n, len(whole))
	b := p.batch
	for len(whole) > 0 {
		var blank int
		var line []byte
		blank, line, whole = cutLine(whole, u.lines)
		u.line += blank
		if len(line) == 0 {
			break
		}
		u.line++
		var err error
		if u.lines {
			b.add(u.line, publish.Message{Value: line})
		} else {
			err = b.readLine(u.line, line)
		}
		last := len(b.messages) - 1
		if err == nil && u.path != nil && last >= 0 && b.lines[last] == u.line && u.keyField.isFor(&b.messages[last]) {
			if err = b.keyOf(last, u.path); err != nil {
				err = fmt.Errorf("key_field %s: %w", u.keyField.name, err)
				b.messages, b.lines = b.messages[:last], b.lines[:last]
			}
		}
		if err != nil {
			e := apiError(api.CodeBadRecord, err.Error())
			e.Line = u.line
			p.bad = append(p.bad, badLine{u.line, e})
		}
	}
	u.headers(b.messages)
}

// publish sends a piece, some messages at a time, and waits for their fates.
func (u *upload) publish(p *piece) {
	defer close(p.done)
	var once sync.Once
	entered := func() { once.Do(func() { close(p.entered) }) }
	defer entered()
	ms := p.batch.messages
	p.results = make([]api.BatchResult, len(ms))
	var bad *api.Error // of the message at badAt
	for at, badAt := 0, -1; at < len(ms); p.knows(at) {
		if at == badAt {
			p.results[at].Offset, p.results[at].Error = -1, bad
			at++
			continue
		}
		end := at + min(int(u.atOnce.Load()), u.s.opt.MaxBatch, len(ms)-at)
		if at < badAt {
			end = min(end, badAt)
		}
		o := u.options
		o.Begun = time.Now()
		if end == len(ms) {
			o.Entered = entered
		}
		done, err := u.s.opt.Publisher.PublishBatch(u.ctx, u.topic, ms[at:end], o)
		if err == nil {
			at += copy(p.results[at:end], done)
			u.quicken(time.Since(o.Begun))
			continue
		}
		e := asError(err)
		switch {
		case e.Code == api.CodeRateLimited && u.hold(e, end-at):
			// It was not its fault; the body is read more slowly.
		case e.Line > 0 && e.Line <= end-at:
			// One message cannot be sent at all, and the others were not either.
			badAt, bad = at+e.Line-1, ofOne(e)
		case e.Code == api.CodeRequestTooLarge && end-at > 1:
			u.atOnce.Store(int64(max(1, (end-at)/16)))
		default:
			if at == 0 && (e.Code != api.CodeRequestTooLarge || len(ms) == 1) {
				p.whole, end = e, len(ms)
			}
			for ; at < end; at++ {
				p.results[at].Offset, p.results[at].Error = -1, e
			}
		}
	}
}

// A limit has what is sent at once pass as a whole, and what follows wait for it.
// So that answers do not come in heaps with long silences between them, there is
// less of it where limits make it wait for long.
const (
	longHold  = time.Second            // it is less afterwards
	quickTime = 200 * time.Millisecond // it is more afterwards
)

func (u *upload) quicken(took time.Duration) {
	if n := u.atOnce.Load(); took < quickTime && n < pieceMessages {
		u.atOnce.CompareAndSwap(n, min(2*n, pieceMessages))
	}
}

// hold waits as long as a limit asks for so many messages; false when the upload
// is over.
func (u *upload) hold(e *api.Error, messages int) bool {
	after := max(time.Duration(e.RetryAfterMillis)*time.Millisecond, 10*time.Millisecond)
	if after > longHold {
		u.atOnce.Store(int64(max(1, messages/2)))
	}
	wait := time.NewTimer(after)
	defer wait.Stop()
	select {
	case <-wait.C:
		return true
	case <-u.ctx.Done():
	case <-u.s.ctx.Done():
	}
	return false
}

// ofOne is the error of a message alone, without what it says of a batch.
func ofOne(e *api.Error) *api.Error {
	one := *e
	one.Line = 0
	if _, after, ok := strings.Cut(one.Message, " of the batch: "); ok {
		one.Message = strings.TrimSuffix(after, "; nothing was sent")
	}
	return &one
}

func (u *upload) free(p *piece) {
	p.batch.free()
	p.body.free(u.s.memory)
	u.s.memory.give(p.taken)
	<-u.slots
}

// begin sends the first lines and waits for the first fates. The error is the
// answer: then nothing was sent and nothing is. Until the answer is written nobody
// else may read the body, since fasthttp looks at it.
func (u *upload) begin() error {
	u.atOnce.Store(pieceMessages)
	for !u.over && u.first == nil {
		u.first = u.next()
	}
	p := u.first
	switch {
	case p == nil && u.err != nil:
		return u.reason()
	case p == nil:
		return apiError(api.CodeBadRequest, "the batch is empty: send one JSON object a line, or raw lines with ?lines=1")
	}
	u.current = p
	if len(p.bad) > 0 && !u.lines && p.isArray() {
		close(p.done)
		return apiError(api.CodeBadRequest, "an array is not answered as it goes: send one JSON object a line, or leave Accept: application/x-ndjson out")
	}
	if len(p.batch.messages) == 0 && u.over && u.err == nil {
		close(p.done) // all lines are bad
		e := *p.bad[0].err
		e.Message = badRecord(p.bad[0].line, e.Message).Message
		return &e
	}
	u.wg.Go(func() { u.publish(p) })
	select {
	case <-p.more:
		if int(p.known.Load()) == len(p.batch.messages) {
			<-p.done // which it is about to be
		}
	case <-p.done:
	}
	select {
	case <-p.done:
		if p.whole != nil && len(p.bad) == 0 {
			return p.whole
		}
	default:
	}
	return nil
}

// isArray says whether the first line begins as a JSON array.
func (p *piece) isArray() bool {
	b := p.body.b
	i := skipSpace(b, 0)
	return i < len(b) && b[i] == '['
}

// reason is why the body was not read to its end.
func (u *upload) reason() error {
	var e *api.Error
	switch {
	case errors.As(u.err, &e):
		return e
	case u.s.ctx.Err() != nil:
		return draining()
	}
	return u.err
}

// Read gives the answers.
func (u *upload) Read(to []byte) (int, error) {
	if !u.reading {
		u.reading = true
		u.wg.Go(u.read)
	}
	for u.at == len(u.out) {
		if u.ended {
			return 0, io.EOF
		}
		u.out, u.at = u.out[:0], 0
		p := u.current
		if p == nil {
			p = <-u.pieces
			u.current = p
		}
		if p == nil {
			u.ended = true
			u.tellEnd()
			continue
		}
		if n := int(p.known.Load()); n > p.told { // that it grew may have been heard by begin
			u.tell(p, n)
			continue
		}
		select {
		case <-p.done:
			u.tell(p, len(p.results))
			u.tellBad(p, math.MaxInt)
			u.current = nil
			u.free(p)
		case <-p.more:
			u.tell(p, int(p.known.Load()))
		}
	}
	_ = u.sock.SetWriteDeadline(time.Now().Add(u.s.http.WriteTimeout)) // a failure shows when writing
	n := copy(to, u.out[u.at:])
	u.at += n
	return n, nil
}

// tell writes the answers of a piece up to a message, in the order of its lines.
func (u *upload) tell(p *piece, upTo int) {
	for ; p.told < upTo; p.told++ {
		line := p.batch.lines[p.told]
		u.tellBad(p, line)
		u.tellOne(line, p.results[p.told])
	}
}

// tellBad writes the answers to bad lines of a piece before a line.
func (u *upload) tellBad(p *piece, before int) {
	for len(p.bad) > 0 && p.bad[0].line < before {
		u.tellOne(p.bad[0].line, api.BatchResult{Offset: -1, Error: p.bad[0].err})
		p.bad = p.bad[1:]
	}
}

func (u *upload) tellOne(line int, r api.BatchResult) {
	switch {
	case r.Error != nil:
		u.end.Failed++
		e := *r.Error // others may have the same
		e.Line = line
		r.Error = &e
	case r.SpoolID != "":
		u.end.Spooled++
	default:
		u.end.Written++
	}
	l := api.BatchLine{Line: line, BatchResult: r}
	u.out = append(l.AppendJSON(u.out), '\n')
}

func (u *upload) tellEnd() {
	u.end.Status = api.StreamEnded
	if u.err != nil {
		u.end.Error = asRequestError(u.reason())
	}
	b, err := appendJSON(u.out, u.end)
	if err != nil { // it is plain numbers and texts
		return
	}
	u.out = append(b, '\n')
}
