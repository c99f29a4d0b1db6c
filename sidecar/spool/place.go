package spool

import (
	"errors"
	"fmt"
	"io/fs"

	"go.uber.org/zap"

	"sidestream/broker/disk"
)

// here is why nothing can be taken any more: the journal is offline, or is not at
// its path, nor then is what lies beside it. It costs a system call now and then.
func (s *Spool) here() error { return s.journal.Check() }

// gone is why the folder is not ours any more to write new files to, nil while it
// is. A failed sync of the journal is no reason.
func (s *Spool) gone() error {
	if err := s.here(); errors.Is(err, disk.ErrGone) {
		return err
	}
	return nil
}

// Check looks whether the spool's files are still at their paths; call it each
// second or so, beside what is looked for when something is taken. When the
// journal is not, nothing is taken any more, see Err. The small files that a next
// start needs are made again when they were removed.
func (s *Spool) Check() {
	if s.here() != nil {
		return // it is in the log, and told by Err
	}
	s.checkParked()
	if s.missing(nonceName) {
		s.accepting.take()
		s.nonceKept = false
		err := s.keepNonces()
		s.accepting.leave()
		s.tellMended(nonceName, err)
	}
	if s.memory.any() && s.missing(topicsName) {
		s.tellMended(topicsName, s.memory.again())
	}
}

func (s *Spool) missing(name string) bool {
	_, err := s.fsys.Stat(s.dir + "/" + name)
	return errors.Is(err, fs.ErrNotExist)
}

func (s *Spool) tellMended(name string, err error) {
	if err != nil {
		s.log.Error("a file of the spool was removed while it was in use, and cannot be made again", zap.String("file", s.dir+"/"+name), zap.Error(err))
		return
	}
	s.log.Warn("a file of the spool was removed while it was in use, and is made again", zap.String("file", s.dir+"/"+name))
}

// checkParked looks for the files of parked messages: those were moved out of the
// journal, so a next start finds them there or nowhere.
func (s *Spool) checkParked() {
	s.keeping.take() // nobody removes them meanwhile
	defer s.keeping.leave()
	var gone error
	for _, l := range s.parkedLanes() {
		s.mu.Lock()
		p := l.parked
		s.mu.Unlock()
		if p == nil || p.f == nil {
			continue
		}
		if err := p.f.InPlace(p.name); err != nil {
			gone = fmt.Errorf("messages for partition %s are sent as long as this process lives and are lost with it: %w", l.key, err)
		}
	}
	before := s.parkedGone.Load()
	switch {
	case gone == nil:
		s.parkedGone.Store(nil)
	case before == nil:
		s.log.Error("a file of spooled messages is gone", zap.Error(gone))
		s.parkedGone.Store(&gone)
	}
}
