package sidecar

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
)

// ReloadStatus is how the configuration in force came about.
type ReloadStatus struct {
	LoadedAt     time.Time  `json:"loaded_at"`               // when what is in force was read
	FailedAt     *time.Time `json:"failed_at,omitempty"`     // a later attempt, which changed nothing
	Error        string     `json:"error,omitempty"`         // why
	NeedsRestart []string   `json:"needs_restart,omitempty"` // keys that were changed and wait for a restart
}

// reloads remembers what became of the reloads.
type reloads struct {
	total *prometheus.CounterVec

	// mu guards status.
	mu     sync.Mutex
	status ReloadStatus
}

func newReloads(reg prometheus.Registerer) (*reloads, error) {
	r := &reloads{
		status: ReloadStatus{LoadedAt: time.Now()},
		total: prometheus.NewCounterVec(prometheus.CounterOpts{
			Name: "sidestream_config_reloads_total", Help: "Reloads of the configuration (SIGHUP) by result: ok, or error, which changed nothing.",
		}, []string{"result"}),
	}
	failing := prometheus.NewGaugeFunc(prometheus.GaugeOpts{
		Name: "sidestream_config_reload_failing", Help: "1 when the last reload of the configuration changed nothing because of an error.",
	}, func() float64 {
		if r.get().FailedAt != nil {
			return 1
		}
		return 0
	})
	r.total.WithLabelValues("ok") // shown as 0 before the first
	r.total.WithLabelValues("error")
	return r, errors.Join(reg.Register(r.total), reg.Register(failing))
}

func (r *reloads) get() ReloadStatus {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.status
}

func (r *reloads) note(needsRestart []string, err error) {
	now := time.Now()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		r.status.FailedAt, r.status.Error = &now, err.Error()
		r.total.WithLabelValues("error").Inc()
		return
	}
	r.status = ReloadStatus{LoadedAt: now, NeedsRestart: needsRestart}
	r.total.WithLabelValues("ok").Inc()
}

// Reload puts what can change of a configuration in force: the keys with the
// tag live. The others must be as they are. Requests under way go on as they
// began. On an error nothing changes. It may be called once Ready is closed, by
// one goroutine at a time.
func (s *Sidecar) Reload(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	if err := s.publisher.Configure(cfg.Publish); err != nil {
		return fmt.Errorf("publish.%w", err)
	}
	if err := s.limited.Change(cfg.Limits); err != nil {
		return fmt.Errorf("limits.%w", err)
	}
	s.http.SetUsers(cfg.users(s.log))
	s.http.SetHosts(cfg.AllowedHosts)
	s.live.Store(&cfg)
	return nil
}

// NoteReload tells the status and the metrics what became of a reload: which
// keys wait for a restart, or why nothing changed.
func (s *Sidecar) NoteReload(needsRestart []string, err error) { s.reloads.note(needsRestart, err) }
