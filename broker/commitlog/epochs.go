package commitlog

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// epochFile is Kafka's leader epoch checkpoint (Kafka, LeaderEpochCheckpointFile):
// a version, a count, and a line "epoch start-offset" for each epoch.
const epochFile = "leader-epoch-checkpoint"

const epochFileVersion = "0"

// epochStart is the offset at which a leader epoch began.
type epochStart struct {
	epoch int32
	start int64
}

// epochs are the leader epochs of a log, rising in both fields (KIP-101).
type epochs []epochStart

// last is the newest epoch, -1 when there is none.
func (e epochs) last() int32 {
	if len(e) == 0 {
		return -1
	}
	return e[len(e)-1].epoch
}

// assign notes that the batch at offset carries the epoch. An epoch below the
// newest is old news; so is -1, which stands for none.
func (e epochs) assign(epoch int32, offset int64) (next epochs, changed bool) {
	if epoch < 0 || epoch <= e.last() {
		return e, false
	}
	// An epoch that wrote nothing gives way to the one that does.
	for len(e) > 0 && e[len(e)-1].start >= offset {
		e = e[:len(e)-1]
	}
	return append(slices.Clip(e), epochStart{epoch, offset}), true
}

// end answers where an epoch ended (Kafka, OffsetForLeaderEpoch): the newest
// epoch of the log that is not above the asked one, and the offset after its
// last record. Both are -1 when the log knows nothing of that epoch.
func (e epochs) end(epoch int32, logEnd int64) (found int32, endOffset int64) {
	if epoch < 0 || len(e) == 0 || epoch > e.last() {
		return -1, -1
	}
	if epoch == e.last() {
		return epoch, logEnd
	}
	i, _ := slices.BinarySearchFunc(e, epoch, func(s epochStart, epoch int32) int {
		if s.epoch <= epoch {
			return -1
		}
		return 1
	})
	if i == 0 {
		return epoch, e[0].start
	}
	return e[i-1].epoch, e[i].start
}

// cutEnd drops the epochs that begin at or above the log's new end.
func (e epochs) cutEnd(end int64) (next epochs, changed bool) {
	n := len(e)
	for n > 0 && e[n-1].start >= end {
		n--
	}
	return e[:n:n], n < len(e)
}

// cutStart drops the epochs that end at or below the log's new start.
func (e epochs) cutStart(start int64) (next epochs, changed bool) {
	first := 0
	for first+1 < len(e) && e[first+1].start <= start {
		first++
	}
	if len(e) == 0 || (first == 0 && e[0].start >= start) {
		return e, false
	}
	next = slices.Clone(e[first:])
	next[0].start = max(next[0].start, start)
	return next, true
}

func (e epochs) encode() []byte {
	b := fmt.Appendf(nil, "%s\n%d\n", epochFileVersion, len(e))
	for _, s := range e {
		b = fmt.Appendf(b, "%d %d\n", s.epoch, s.start)
	}
	return b
}

func parseEpochs(b []byte) (epochs, error) {
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	if len(lines) < 2 || lines[0] != epochFileVersion {
		return nil, fmt.Errorf("the first line is %q, it must be the version, %s", lines[0], epochFileVersion)
	}
	count, err := strconv.Atoi(lines[1])
	if err != nil || count != len(lines)-2 {
		return nil, fmt.Errorf("%q epochs announced, %d lines follow", lines[1], len(lines)-2)
	}
	list := make(epochs, 0, count)
	for _, line := range lines[2:] {
		a, b, _ := strings.Cut(line, " ")
		epoch, err1 := strconv.ParseInt(a, 10, 32)
		start, err2 := strconv.ParseInt(b, 10, 64)
		if err := errors.Join(err1, err2); err != nil {
			return nil, fmt.Errorf("line %q: %w", line, err)
		}
		if n := len(list); epoch < 0 || start < 0 || n > 0 && (int32(epoch) <= list[n-1].epoch || start < list[n-1].start) {
			return nil, fmt.Errorf("line %q: epochs and offsets must rise", line)
		}
		list = append(list, epochStart{int32(epoch), start})
	}
	return list, nil
}
