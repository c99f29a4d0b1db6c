package commitlog

// hints are what recent reads found out about places in the log, for those that
// read on from there. They save searching, are guarded by Log.mu, and are
// thrown away whenever a place may mean something else.
type hints struct {
	marks    [8]mark // where reads ended: where the next ones begin
	nextMark int
	parts    [4]indexPart // where in the offset indexes they ended
	nextPart int
}

func (h *hints) add(m mark) {
	h.marks[h.nextMark] = m
	h.nextMark = (h.nextMark + 1) % len(h.marks)
}

// markAt finds where the batch that begins with the offset lies, if a read ended
// there before.
func (h *hints) markAt(offset, base int64) (pos int64, known bool) {
	for _, m := range h.marks {
		if m.offset == offset && m.base == base && m.pos > 0 {
			return m.pos, true
		}
	}
	return 0, offset == base
}

// part is the part of the segment's index that was of use last.
func (h *hints) part(base int64) indexPart {
	for i := range h.parts {
		if p := h.parts[(h.nextPart+len(h.parts)-1-i)%len(h.parts)]; p.base == base && len(p.bytes) > 0 {
			return p
		}
	}
	return indexPart{}
}

// keep remembers a part that is not known yet.
func (h *hints) keep(p indexPart) {
	if len(p.bytes) == 0 {
		return
	}
	for _, known := range h.parts {
		if known.base == p.base && known.first == p.first && len(known.bytes) == len(p.bytes) {
			return
		}
	}
	h.parts[h.nextPart] = p
	h.nextPart = (h.nextPart + 1) % len(h.parts)
}
