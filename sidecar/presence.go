package sidecar

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"strconv"
	"sync"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
)

// Version is what the sidecar calls itself in the registry; set by the build.
var Version = "dev"

// storeTime bounds one call to the store.
const storeTime = 5 * time.Second

// presence is this sidecar's life in the coordination store: its one session,
// made anew after it was lost, its ephemeral key and its registered service.
// While the store is away it keeps trying.
type presence struct {
	store   discovery.Store
	log     *zap.Logger
	id      string
	nonce   string // of the data folder
	process string // of this process alone
	address string // host:port
	service string // ID of the registration
	home    *home

	// mu guards what follows; it is never held across I/O.
	mu           sync.Mutex
	session      discovery.Session
	registration discovery.Registration
	live         int    // sidecars, as last counted
	held         bool   // the key was ours in this process's life
	rival        string // who else has our folder's identity, "": nobody
	trouble      string
	away         time.Time // since when the store cannot be used; zero: it can
	failures     int       // since then
}

func newPresence(store discovery.Store, log *zap.Logger, id *discovery.Identity, address string) *presence {
	return &presence{store: store, log: log, id: id.ID, nonce: id.Nonce, process: discovery.NewNonce(), address: address,
		service: discovery.ServiceSidecar + "-" + id.ID, home: newHome(id), live: 1, trouble: "not reached yet"}
}

// Session is the present one, nil while there is none.
func (p *presence) Session() discovery.Session {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.session
}

// Registration is the sidecar's own, nil while there is none.
func (p *presence) Registration() discovery.Registration {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.registration
}

// wasHeld says whether the key was ours in this process's life.
func (p *presence) wasHeld() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.held
}

// liveSidecars is how many there are, as last counted.
func (p *presence) liveSidecars() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.live
}

// cause is what is amiss with the store, "" for nothing. serves says that
// groups go on all the same with what is owned: a session that is not proven
// any more allows that for unprovenMax.
func (p *presence) cause(unprovenMax time.Duration) (cause string, serves bool) {
	p.mu.Lock()
	session, trouble, rival := p.session, p.trouble, p.rival
	p.mu.Unlock()
	switch {
	case rival != "":
		return rival, false
	case session == nil:
		return "coordination store: " + trouble, false
	case session.Ownership() == discovery.Lost:
		return "coordination store: the session was lost and is being made anew", false
	case session.Ownership() == discovery.Unproven:
		age := session.Age()
		if age > unprovenMax {
			return "coordination store: not reached for " + age.Round(time.Second).String() + ", longer than consume.unproven_max: nothing is handed out", false
		}
		return "coordination store: not reached for " + age.Round(time.Second).String() + "; what is owned is kept, unproven", true
	}
	return "", true
}

// countEvery is how often the live sidecars are counted.
const countEvery = 30 * time.Second

// run keeps the presence until ctx ends. It returns early only with an error
// that no repeat mends: the id belongs to somebody else.
func (p *presence) run(ctx context.Context) error {
	backoff := 100 * time.Millisecond
	count := time.NewTicker(countEvery)
	defer count.Stop()
	for ctx.Err() == nil {
		err := p.appear(ctx)
		if errors.Is(err, discovery.ErrIDTaken) {
			return fmt.Errorf("id: %q: %w", p.id, err)
		}
		if first := !p.wasHeld(); first && (errors.Is(err, errElsewhere) || errors.Is(err, errTwin)) {
			return err
		}
		if err != nil {
			if errors.Is(err, errCopy) {
				p.usable() // nothing is amiss with the store
				backoff = rivalPause
			} else {
				p.setTrouble(err)
			}
			select {
			case <-time.After(backoff/2 + rand.N(backoff)):
			case <-ctx.Done():
			}
			backoff = min(2*backoff, 5*time.Second)
			continue
		}
		backoff = 100 * time.Millisecond
		p.usable()
		p.count(ctx)
		session, known := p.Session(), p.home.known()
		for lost := false; !lost; {
			select {
			case <-session.Lost():
				p.log.Warn("the store says that our session is gone; making another")
				p.mu.Lock()
				p.session, p.trouble = nil, "the session was lost and is being made anew"
				p.mu.Unlock()
				lost = true
			case <-known:
				known = nil
				p.home.keep(p.log)
			case <-count.C:
				p.home.keep(p.log) // again, where it could not be written
				p.count(ctx)
			case <-ctx.Done():
				return nil
			}
		}
	}
	return nil
}

func (p *presence) setTrouble(err error) {
	p.mu.Lock()
	p.trouble = err.Error()
	first := p.away.IsZero()
	if first {
		p.away, p.failures = time.Now(), 0
	}
	p.failures++
	p.mu.Unlock()
	if first { // the text differs from try to try, by a port or a URL
		p.log.Warn("the coordination store cannot be used now; publishing goes on, groups wait", zap.Error(err))
	}
}

// usable ends what setTrouble began.
func (p *presence) usable() {
	p.mu.Lock()
	since, failures := p.away, p.failures
	p.away = time.Time{}
	p.mu.Unlock()
	if !since.IsZero() {
		p.log.Info("the coordination store can be used again", zap.Duration("after", time.Since(since)), zap.Int("failures", failures))
	}
}

// appear makes what is missing of registration, session and key.
func (p *presence) appear(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	if err := p.home.settle(ctx, p.store, p.service); err != nil {
		return err
	}
	if p.Registration() == nil {
		host, port, err := net.SplitHostPort(p.address)
		if err != nil {
			return err
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			return err
		}
		r, err := p.store.Register(ctx, discovery.Service{ID: p.service, Name: discovery.ServiceSidecar, Address: host, Port: n,
			Meta: map[string]string{"id": p.id, "version": Version, discovery.MetaNonce: p.nonce}})
		if err != nil {
			return fmt.Errorf("registering: %w", err)
		}
		p.mu.Lock()
		p.registration = r
		p.mu.Unlock()
	}
	if err := p.refuseCopy(ctx); err != nil {
		return err
	}
	session, err := p.store.NewSession(ctx, "sidecar "+p.id)
	if err != nil {
		return fmt.Errorf("session: %w", err)
	}
	value := discovery.Encode(discovery.Sidecar{ID: p.id, Address: p.address, Version: Version,
		Nonce: p.nonce, Process: p.process, Session: session.ID(), Service: p.service})
	if err := discovery.ClaimID(ctx, p.store, session, discovery.KeySidecar(p.id), value, p.nonce); err != nil {
		end, cancel := context.WithTimeout(context.WithoutCancel(ctx), time.Second)
		defer cancel()
		_ = session.Destroy(end) // it holds nothing, and ends by itself
		return err
	}
	p.mu.Lock()
	p.session, p.held = session, true
	p.mu.Unlock()
	p.log.Info("in the coordination store", zap.String("id", p.id), zap.String("session", session.ID()))
	return nil
}

func (p *presence) count(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, storeTime)
	defer cancel()
	entries, err := p.store.List(ctx, discovery.PrefixSidecars)
	if err != nil {
		return // the number before is good enough
	}
	p.mu.Lock()
	p.live = max(1, len(entries))
	p.mu.Unlock()
}

// leave takes the key, the registration and the session away, as far as the
// store can be reached until ctx ends.
func (p *presence) leave(ctx context.Context) {
	p.mu.Lock()
	session, registration := p.session, p.registration
	p.session, p.registration = nil, nil
	p.mu.Unlock()
	if registration != nil {
		if err := registration.Deregister(ctx); err != nil {
			p.log.Info("not deregistered; the check ends by itself", zap.Error(err))
		}
	}
	if session == nil {
		return
	}
	key := discovery.KeySidecar(p.id)
	_, err := p.store.Commit(ctx, discovery.Held(key, session.ID()), discovery.Delete(key))
	if err := errors.Join(err, session.Destroy(ctx)); err != nil {
		p.log.Info("the session was not ended; it ends by itself", zap.Error(err))
	}
}
