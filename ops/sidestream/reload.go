package main

import (
	"go.uber.org/zap"

	"sidestream/ops/sidestream/settings"
)

// reloader puts changed settings in force while a server runs, for SIGHUP. It is
// used by one goroutine.
type reloader[C validated] struct {
	running C                     // what is in force, and what the server was started with
	read    func() (C, error)     // the settings as a start would read them now
	apply   func(next C) error    // takes over the live ones; on error all stay
	note    func([]string, error) // may be nil: which keys wait for a restart, or why nothing changed
	log     *zap.Logger
}

// reload reads the settings again. Anything wrong with them leaves those in
// force, and is logged; so is what changed and what waits for a restart.
func (r *reloader[C]) reload() {
	next, err := r.read()
	if err != nil {
		r.failed(err)
		return
	}
	var changed, waiting, keys []string
	for _, c := range settings.Diff(r.running, next) {
		if c.Live {
			changed = append(changed, c.String())
		} else {
			waiting, keys = append(waiting, c.String()), append(keys, c.Path)
		}
	}
	// What cannot change is as the server was started with.
	settings.TakeRest(next, r.running)
	if err := r.apply(next); err != nil {
		r.failed(err)
		return
	}
	r.running = next
	if r.note != nil {
		r.note(keys, nil)
	}
	r.log.Info("the configuration was read again", zap.Strings("changed", changed))
	if len(waiting) > 0 {
		r.log.Warn("settings were changed that wait for a restart", zap.Strings("waiting", waiting))
	}
}

func (r *reloader[C]) failed(err error) {
	r.log.Error("the configuration cannot be reloaded; the one in force stays", zap.Error(err))
	if r.note != nil {
		r.note(nil, err)
	}
}
