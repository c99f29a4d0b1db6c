package spool

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"io/fs"
	"strconv"
	"strings"

	"go.uber.org/zap"

	"sidestream/broker/disk"
)

// An id is a nonce and the event's number. Each Open begins a nonce of its own,
// for the numbers from the journal's end on: of two copies of a folder, or of a
// folder and what it is after it was put back to an earlier state, no two give
// the same id to different events. An event keeps its id for ever, so that it is
// found where it was sent before.

const (
	nonceName   = "nonce"
	nonceLength = 16
	// nonceMost bounds those that are kept only for ids of settled events.
	nonceMost = 1000
)

// nonces are in the order of their numbers. They do not change once the spool is
// open.
type nonces []nonceFrom

// nonceFrom is the nonce of numbers from one on, up to the next one's.
type nonceFrom struct {
	from  int64
	nonce string
}

// of is the nonce of a number; "" when it is not known any more.
func (n nonces) of(seq int64) (nonce string) {
	for i := len(n) - 1; i >= 0; i-- { // mostly the last
		if n[i].from <= seq {
			return n[i].nonce
		}
	}
	return ""
}

// begin adds a nonce for the numbers from end on. Those before needed have no
// event that may still be sent, those before remembered have no fate any more.
func (n nonces) begin(nonce string, end, needed, remembered int64) nonces {
	var out nonces
	for _, x := range n {
		if x.from < end { // the others had no event, or lost them
			out = append(out, x)
		}
	}
	if len(out) == 0 {
		end = 0 // the list is new, or was lost
	}
	out = append(out, nonceFrom{end, nonce})
	for len(out) > 1 && out[1].from <= needed && (out[1].from <= remembered || len(out) > nonceMost) {
		out = out[1:]
	}
	return out
}

func (n nonces) encode() []byte {
	var b []byte
	for _, x := range n {
		b = fmt.Appendf(b, "%d %s\n", x.from, x.nonce)
	}
	return b
}

func parseNonces(b string) (nonces, error) {
	var n nonces
	for line := range strings.Lines(b) {
		from, nonce, ok := strings.Cut(strings.TrimSpace(line), " ")
		if !ok && len(n) == 0 { // a nonce alone is that of all numbers
			from, nonce = "0", from
		}
		at, err := strconv.ParseInt(from, 10, 64)
		if raw, hexErr := hex.DecodeString(nonce); err != nil || hexErr != nil || len(raw) != nonceLength/2 || at < 0 || len(n) > 0 && at <= n[len(n)-1].from {
			return nil, fmt.Errorf("%q is not a rising number and %d digits of hexadecimal", strings.TrimSpace(line), nonceLength)
		}
		n = append(n, nonceFrom{at, nonce})
	}
	if len(n) == 0 {
		return nil, errors.New("it is empty")
	}
	return n, nil
}

func newNonce() string {
	raw := make([]byte, nonceLength/2)
	_, _ = rand.Read(raw) // it never fails
	return hex.EncodeToString(raw)
}

// readNonces reads the list; it is empty at the first start.
func readNonces(fsys disk.FS, dir string) (nonces, error) {
	name := dir + "/" + nonceName
	b, err := disk.ReadFile(fsys, name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	n, err := parseNonces(string(b))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return n, nil
}

// beginNonce begins the nonce of this life. What is to be sent is known.
func (s *Spool) beginNonce() error {
	end := s.journal.EndOffset()
	needed := s.journal.StartOffset()
	for _, l := range s.lanes {
		if l.isPending() {
			needed = min(needed, l.first)
		}
	}
	lost := len(s.nonce) == 0 && end > 0
	s.nonce = s.nonce.begin(newNonce(), end, needed, end-int64(s.cfg.Outcomes))
	err := s.keepNonces()
	if err != nil && !lost {
		// On a full disk what was taken is sent all the same: its ids are on disk.
		s.log.Warn("the spool cannot note what the ids of new messages begin with, and tries again at the first one", zap.Error(err))
		return nil
	}
	return err
}

// keepNonces syncs the list, once: no event may be taken before. Call with the
// turn of accepting, or while nothing runs.
func (s *Spool) keepNonces() error {
	if s.nonceKept {
		return nil
	}
	if err := disk.WriteFileAtomic(s.fsys, s.dir, s.dir+"/"+nonceName, s.nonce.encode()); err != nil {
		return fmt.Errorf("%w: %w", errNonce, err)
	}
	s.nonceKept = true
	return nil
}

var errNonce = errors.New("the spool's disk does not take the list of nonces")

func appendID(b []byte, n nonces, seq int64) []byte {
	b = append(b, n.of(seq)...)
	b = append(b, '-')
	return strconv.AppendInt(b, seq, 36)
}

func idOf(n nonces, seq int64) string { return string(appendID(nil, n, seq)) }

// parseID is the number of an id of this spool.
func parseID(n nonces, id string) (seq int64, ok bool) {
	nonce, rest, ok := strings.Cut(id, "-")
	if !ok || len(nonce) != nonceLength {
		return 0, false
	}
	seq, err := strconv.ParseInt(rest, 36, 64)
	return seq, err == nil && seq > 0 && idOf(n, seq) == id
}
