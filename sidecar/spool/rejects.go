package spool

import (
	"bufio"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"
	"unicode/utf8"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
)

// RejectsName is the file of rejected messages in the spool's folder: a line of
// JSON for each, with the fields that POST /topics/T/batch takes and why.
const RejectsName = "rejects.ndjson"

// Rejected is one line of the file of rejected messages.
type Rejected struct {
	ID        string          `json:"id"`
	Topic     string          `json:"topic"`
	Partition int32           `json:"partition"`
	Key       *string         `json:"key,omitempty"`
	Key64     *string         `json:"key64,omitempty"`
	Value     *string         `json:"value,omitempty"`
	Value64   *string         `json:"value64,omitempty"`
	Headers   []RejectedField `json:"headers,omitempty"`
	TS        int64           `json:"ts"`
	Rejected  time.Time       `json:"rejected"`
	Error     *api.Error      `json:"error"`
}

// RejectedField is one header of a rejected message.
type RejectedField struct {
	Name    string  `json:"name"` // when UTF-8
	Name64  *string `json:"name64,omitempty"`
	Value   *string `json:"value,omitempty"`
	Value64 *string `json:"value64,omitempty"`
}

func text(b []byte) (plain, base *string) {
	switch {
	case b == nil:
		return nil, nil
	case utf8.Valid(b):
		s := string(b)
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
}

func rejectedOf(nonce nonces, key laneKey, e event, why *api.Error, now time.Time) Rejected {
	r := Rejected{ID: idOf(nonce, e.seq), Topic: key.topic, Partition: key.partition, TS: e.timestamp, Rejected: now, Error: why}
	r.Key, r.Key64 = text(e.key)
	r.Value, r.Value64 = text(e.value)
	for _, h := range e.headers {
		f := RejectedField{Name: h.Key}
		if !utf8.ValidString(h.Key) {
			f.Name = ""
			_, f.Name64 = text([]byte(h.Key))
		}
		f.Value, f.Value64 = text(h.Value)
		r.Headers = append(r.Headers, f)
	}
	return r
}

// rejects is the file of rejected messages. It is opened for each use, so that an
// operator may move it away at any time. One goroutine at a time uses it.
type rejects struct {
	fsys  disk.FS
	dir   string
	limit int64
	turn  turn
	gone  func() error // nil, or why the folder is not ours to write to
}

// errRejectsFull says that nothing can be rejected for want of room.
var errRejectsFull = errors.New("the file of rejected messages has reached its limit (spool.reject_bytes): move it away")

// add appends lines, durably, and returns where each begins.
func (r *rejects) add(lines [][]byte) (places []int64, err error) {
	r.turn.take()
	defer r.turn.leave()
	if err := r.gone(); err != nil {
		return nil, err
	}
	name := r.dir + "/" + RejectsName
	_, missing := r.fsys.Stat(name)
	f, err := r.fsys.OpenFile(name, os.O_RDWR|os.O_CREATE|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	size, err := f.Size()
	if err != nil {
		return nil, err
	}
	at, total := size, int64(0)
	var bufs [][]byte
	if size > 0 {
		var last [1]byte
		if _, err := f.ReadAt(last[:], size-1); err != nil {
			return nil, err
		}
		if last[0] != '\n' { // a crash cut the line before
			bufs = append(bufs, []byte{'\n'})
			at++
		}
	}
	for _, line := range lines {
		places = append(places, at)
		at += int64(len(line)) + 1
		total += int64(len(line)) + 1
		bufs = append(bufs, line, []byte{'\n'})
	}
	if size > 0 && size+total > r.limit {
		return nil, errRejectsFull
	}
	if _, err := f.Writev(bufs); err != nil {
		return nil, errors.Join(err, f.Truncate(size))
	}
	if err := f.Datasync(); err != nil {
		return nil, err
	}
	if missing != nil {
		if err := r.fsys.SyncDir(r.dir); err != nil {
			return nil, err
		}
	}
	if err := f.Linked(); err != nil { // one that was moved away keeps its lines
		return nil, err
	}
	return places, nil
}

// at reads the line that begins at a place; the error is not found when another
// one is there, or none: the file was moved away.
func (r *rejects) at(place int64, id string) (*Rejected, error) {
	f, err := r.fsys.OpenFile(r.dir+"/"+RejectsName, os.O_RDONLY, 0)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	var line Rejected
	if err := json.NewDecoder(io.NewSectionReader(f, place, 1<<31)).Decode(&line); err != nil {
		return nil, err
	}
	if line.ID != id {
		return nil, fmt.Errorf("another message is there")
	}
	return &line, nil
}

// size is the bytes of the file.
func (r *rejects) size() int64 {
	info, err := r.fsys.Stat(r.dir + "/" + RejectsName)
	if err != nil {
		return 0
	}
	return info.Size()
}

// ReadRejects reads a file of rejected messages. A line that a crash cut short is
// passed over.
func ReadRejects(in io.Reader, yield func(Rejected) error) error {
	lines := bufio.NewReaderSize(in, 64<<10)
	for {
		line, err := lines.ReadBytes('\n')
		var r Rejected
		if len(line) > 1 && json.Unmarshal(line, &r) == nil && r.ID != "" {
			if err := yield(r); err != nil {
				return err
			}
		}
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil {
			return err
		}
	}
}
