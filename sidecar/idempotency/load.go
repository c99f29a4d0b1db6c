package idempotency

import "go.uber.org/zap"

// load reads the journal.
func (k *Keys) load() (err error) {
	loaded := 0
	k.journal, err = openJournal(k.deps.FS, k.deps.Dir, k.log, k.deps.Now, func(offset int64, n note) {
		e := k.entries[n.key]
		if e == nil && n.kind != noteIntent {
			return // of a key that was forgotten
		}
		if e != nil && n.kind != noteFates {
			k.drop(e, "")
		}
		if n.kind == noteIntent {
			e = &entry{
				key: n.key, request: n.request, topic: n.topic, ack: n.ack, batch: n.batch, count: n.count,
				millis: n.millis, age: n.at.age, note: offset, keep: offset, opens: n.count, places: n.places, ask: true,
			}
			k.add(e)
			loaded++
		}
		if n.kind == noteDropped || (n.kind == noteIntent && len(n.fates) == 0) {
			return
		}
		fates, err := readFates(n.fates, e.count)
		if err != nil {
			k.log.Warn("fates in the journal of Idempotency-Keys cannot be read; they are looked for", zap.Error(err))
			return
		}
		e.set(fates)
		k.recount(e)
		if len(k.entries) > 2*k.cfg.MaxKeys { // the journal may hold many more than are kept
			k.makeRoom()
		}
	})
	if err != nil {
		return err
	}
	k.expire()
	if n := len(k.open); n > 0 {
		k.log.Info("requests of an earlier life are being settled", zap.Int("keys", n))
	}
	return nil
}
