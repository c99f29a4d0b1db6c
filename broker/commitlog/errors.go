package commitlog

import (
	"errors"
	"fmt"
)

// Errors of a log, to be tested with errors.Is.
var (
	// ErrOutOfRange: the offset lies below the log's start or above its end.
	ErrOutOfRange = errors.New("commitlog: offset out of range")
	// ErrCorrupt: what is stored there is damaged. The concrete error is a
	// [*CorruptError], which says where sound data begins again.
	ErrCorrupt = errors.New("commitlog: stored data is corrupt")
	// ErrNoSpace: the disk is full. Nothing of the append is left in the log;
	// it may be tried again, and succeeds once there is room.
	ErrNoSpace = errors.New("commitlog: no space left on the disk")
	// ErrOffline: a sync failed, so it is unknown what of the unflushed data
	// the disk has, or the log's files are not at their paths any more
	// (disk.ErrGone). The log takes no more writes until it is opened again;
	// reads go on. Also, but only until it succeeds: a failed append could not
	// be taken back.
	ErrOffline = errors.New("commitlog: the log is offline for writes")
	// ErrNotAppended is said beside what was in the way of an append of which
	// nothing is in the log, nor will be after a power cut.
	ErrNotAppended = errors.New("commitlog: nothing was appended")
	// ErrClosed: the log was closed or removed.
	ErrClosed = errors.New("commitlog: the log is closed")
	// ErrTooLarge: a batch over Config.MaxBatchBytes, or an append that no
	// segment can hold.
	ErrTooLarge = errors.New("commitlog: batch too large")
	// ErrStaleEpoch: an append with a leader epoch below one the log has.
	ErrStaleEpoch = errors.New("commitlog: leader epoch is older than the log's")
)

// NotAppended makes an error be ErrNotAppended too. Its text stays as it is.
func NotAppended(err error) error { return notAppended{err} }

type notAppended struct{ error }

func (e notAppended) Is(target error) bool { return target == ErrNotAppended }
func (e notAppended) Unwrap() error        { return e.error }

// CorruptError describes one damaged stretch of a segment.
type CorruptError struct {
	Path   string
	Pos    int64 // where the damage begins in the file, in bytes
	End    int64 // where the next sound batch begins, or the file's end
	Offset int64 // the first offset that is lost
	Next   int64 // the first offset after the damage that can be read
	Cause  error
}

func (e *CorruptError) Error() string {
	if e.Next <= e.Offset { // what is lost is not known
		return fmt.Sprintf("%v: %s: %v", ErrCorrupt, e.Path, e.Cause)
	}
	return fmt.Sprintf("%v: %s: bytes %d to %d (offsets %d to %d): %v",
		ErrCorrupt, e.Path, e.Pos, e.End, e.Offset, e.Next-1, e.Cause)
}

// Is makes errors.Is(err, ErrCorrupt) hold.
func (e *CorruptError) Is(target error) bool { return target == ErrCorrupt }

// Unwrap gives the cause, one of package record's errors or an I/O error.
func (e *CorruptError) Unwrap() error { return e.Cause }
