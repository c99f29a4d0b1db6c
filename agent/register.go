package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net"
	"slices"
	"strconv"
	"time"

	"go.uber.org/zap"

	"sidestream/agent/facts"
	"sidestream/discovery"
)

const (
	tendEvery  = 2 * time.Second // the registration is looked after
	aliveProof = 6 * time.Second // twice the check's TTL: see refuseCopy
)

var (
	// errCopy: another process is alive with this folder's identity.
	errCopy = errors.New("this data folder is in use twice")
	// errNoID: the folder holds partitions, but does not say whose they are.
	errNoID = errors.New("this data folder has partitions, but no broker id")
	// errElsewhere: the folder is of another cluster in the same registry.
	errElsewhere = errors.New("this data folder belongs to another cluster")
	// errForeign: the store is another cluster's; nothing is registered in it.
	errForeign = errors.New("the store belongs to another cluster")
	// errBlocked: the store has no cluster-id, and this folder must not make one.
	errBlocked = errors.New("the store has no cluster-id")
)

// registrar keeps the agent registered: a session, the broker's key under its
// id, and the service with its check. It is used by the goroutine of Run, and
// after that by that of run alone.
type registrar struct {
	a          *Agent
	own        []string // ids of the sessions that this process made
	registered bool     // the id was ours once in this process
	announced  string   // session under which the key has the broker's address
}

// first registers before the broker is opened, so that the copy of a folder is
// refused before it serves anything. When the folder has an id and the store
// cannot be reached within the start wait, the start goes on without it.
func (r *registrar) first(ctx context.Context) error {
	began := time.Now()
	for n := 1; ; n++ {
		err := r.connect(ctx)
		if err == nil || fatal(err) {
			return err
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		if r.a.ID() != 0 && time.Since(began) > r.a.cfg.StartWait {
			r.a.log.Warn("starting without the coordination store: what the folder holds is served", zap.Error(err))
			return nil
		}
		if n == 1 {
			r.a.log.Info("waiting for the coordination store", zap.Error(err))
		}
		if !sleep(ctx, backoff(n)) {
			return ctx.Err()
		}
	}
}

// run looks after the registration until ctx ends. It returns an error only
// when this process must not go on: its folder is in use twice.
func (r *registrar) run(ctx context.Context) error {
	failures := 0
	for {
		var err error
		var lost <-chan struct{}
		if s := r.a.liveSession(); s == nil {
			err = r.connect(ctx)
		}
		if s := r.a.liveSession(); s != nil {
			err = r.tend(ctx, s)
			lost = s.Lost()
			if errors.Is(err, discovery.ErrSessionLost) {
				// Known before the next renewal would tell.
				r.destroy(ctx, s)
				r.a.drop(s)
				continue
			}
		}
		if ctx.Err() != nil {
			return nil
		}
		r.a.alarms.put(alarmStore, r.storeAlarm(err))
		if fatal(err) {
			if errors.Is(err, errCopy) || !r.registered {
				return err
			}
			// After a wipe a newcomer may have been quicker. What is led goes on
			// being served to those who are connected.
			r.a.alarms.put(alarmID, err.Error())
		} else if err == nil {
			r.a.alarms.put(alarmID, "")
		}
		pause := tendEvery
		if err != nil {
			failures++
			pause = backoff(failures)
		} else {
			failures = 0
		}
		timer := time.NewTimer(pause)
		select {
		case <-ctx.Done():
			timer.Stop()
			return nil
		case <-timer.C:
		case <-lost:
			timer.Stop()
		}
	}
}

func fatal(err error) bool {
	return errors.Is(err, discovery.ErrIDTaken) || errors.Is(err, errCopy) || errors.Is(err, errNoID) || errors.Is(err, errElsewhere)
}

// storeAlarm is the text while the store does not answer, or "".
func (r *registrar) storeAlarm(err error) string {
	switch s := r.a.liveSession(); {
	case s != nil && s.Ownership() == discovery.Unproven:
		return fmt.Sprintf("the coordination store has not answered since %s: serving goes on, nothing fails over and no topic can change",
			time.Now().Add(-s.Age()).UTC().Format("15:04:05 UTC"))
	case err != nil && !fatal(err) && !errors.Is(err, errForeign) && !errors.Is(err, errBlocked):
		return "not registered in the coordination store: " + err.Error()
	}
	return ""
}

// connect makes a session and claims the broker's id with it.
func (r *registrar) connect(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
	s, err := r.a.store.NewSession(call, "sidestream agent "+strconv.Itoa(int(r.a.ID())))
	cancel()
	if err != nil {
		return err
	}
	r.own = append(r.own, s.ID())
	if err := r.claim(ctx, s); err != nil {
		r.destroy(ctx, s)
		return err
	}
	r.registered = true
	r.a.setSession(s)
	r.a.log.Info("registered", zap.Int32("broker", r.a.ID()), zap.String("session", s.ID()))
	return nil
}

// destroy ends a session that is of no use.
func (r *registrar) destroy(ctx context.Context, s discovery.Session) {
	call, cancel := context.WithTimeout(context.WithoutCancel(ctx), r.a.cfg.StoreTimeout)
	defer cancel()
	if err := s.Destroy(call); err != nil {
		r.a.log.Debug("a session could not be destroyed; it ends by itself", zap.Error(err))
	}
}

func (r *registrar) claim(ctx context.Context, s discovery.Session) error {
	cluster, err := r.a.settleCluster(ctx)
	if err != nil {
		return err
	}
	if cluster != facts.Same {
		if err := r.refuseElsewhere(ctx); err != nil {
			return err
		}
	}
	if cluster == facts.Foreign {
		return errForeign
	}
	if err := r.refuseTwin(ctx); err != nil {
		return err
	}
	if r.a.ID() == 0 {
		if err := r.refuseNameless(ctx); err != nil {
			return err
		}
		return r.choose(ctx, s)
	}
	if err := r.refuseCopy(ctx); err != nil {
		return err
	}
	if err := r.take(ctx, s, r.a.record(s)); err != nil {
		return err
	}
	if r.a.keptID() == 0 {
		// Configured, and now known to be ours: the folder belongs to this id for
		// good, so that a start without it finds the same broker.
		return r.a.keepID(ctx, r.a.ID())
	}
	return nil
}

// refuseNameless returns errNoID when the folder holds partitions. A new id
// would leave them placed on a broker that there is no more, and a copied folder
// of a live broker would join as another.
func (r *registrar) refuseNameless(ctx context.Context) error {
	held, err := r.a.heldIn()
	if err != nil {
		return fmt.Errorf("%w: start it with its id (--id): %w", errNoID, err)
	}
	if len(held) == 0 {
		return nil
	}
	call, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
	defer cancel()
	owners := map[int32]bool{}
	read := map[string][]discovery.Entry{}
	for _, h := range held {
		part := facts.Part{UUID: h.ID.String(), Partition: h.Partition}
		entries, known := read[part.UUID]
		if !known {
			if entries, err = r.a.store.List(call, discovery.PrefixTopicState(part.UUID)); err != nil {
				return err
			}
			read[part.UUID] = entries
		}
		for _, e := range entries {
			s, err := discovery.Decode[discovery.Shard](e)
			if err != nil || e.Key != discovery.KeyShard(part.UUID, part.Shard()) || part.Slot() >= len(s.Partitions) {
				continue
			}
			for _, id := range s.Partitions[part.Slot()].Replicas {
				owners[id] = true
			}
		}
	}
	whose := "the store does not say whose they are"
	if len(owners) > 0 {
		whose = fmt.Sprintf("the store places them on %v", slices.Sorted(maps.Keys(owners)))
	}
	return fmt.Errorf("%w: %s holds %d partitions, and %s: start it with the id of their broker (--id); if the folder is a copy, do not start it",
		errNoID, r.a.cfg.DataDir, len(held), whose)
}

func (r *registrar) take(ctx context.Context, s discovery.Session, rec discovery.Broker) error {
	call, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
	defer cancel()
	return discovery.ClaimID(call, r.a.store, s, discovery.KeyBroker(rec.ID), discovery.Encode(rec), rec.Nonce)
}

// choose claims the lowest id that no broker has or ever had, and keeps it.
func (r *registrar) choose(ctx context.Context, s discovery.Session) error {
	for {
		used, err := r.usedIDs(ctx)
		if err != nil {
			return err
		}
		rec := r.a.record(s)
		rec.ID = lowestFree(used)
		rec.Service = serviceID(r.a.folderCluster(), rec.ID)
		err = r.take(ctx, s, rec)
		if errors.Is(err, discovery.ErrIDTaken) && ctx.Err() == nil {
			continue // another new folder was quicker
		}
		if err != nil {
			return err
		}
		r.a.writer.SetName(strconv.Itoa(int(rec.ID)))
		// The versions key stays when the session ends: it reserves the id.
		if err := r.a.writer.Commit(ctx); err != nil {
			return err
		}
		return r.a.keepID(ctx, rec.ID)
	}
}

// usedIDs lists the ids of brokers that are registered, that hold partitions,
// or that ever wrote.
func (r *registrar) usedIDs(ctx context.Context) (map[int32]bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
	defer cancel()
	used := map[int32]bool{}
	for _, prefix := range []string{discovery.PrefixBrokers, discovery.PrefixVersions} {
		entries, err := r.a.store.List(ctx, prefix)
		if err != nil {
			return nil, err
		}
		for _, e := range entries {
			if id, err := strconv.ParseInt(e.Key[len(prefix):], 10, 32); err == nil {
				used[int32(id)] = true
			}
		}
	}
	shards, err := r.a.store.List(ctx, discovery.PrefixState)
	if err != nil {
		return nil, err
	}
	for _, e := range shards {
		s, err := discovery.Decode[discovery.Shard](e)
		if err != nil {
			return nil, fmt.Errorf("%s is not readable, so no free broker id can be chosen: %w", e.Key, err)
		}
		for _, p := range s.Partitions {
			for _, id := range p.Replicas {
				used[id] = true
			}
		}
	}
	return used, nil
}

func lowestFree(used map[int32]bool) int32 {
	id := int32(1)
	for used[id] {
		id++
	}
	return id
}

// refuseCopy returns errCopy when the id is held with our own nonce by a
// process that is alive: a copied folder. Normally the holder is our earlier
// life, whose address refuses connections. One that goes on accepting them
// while its check stays fresh for twice the check's TTL is no earlier life. A
// holder that came after us in this process's time is none either.
func (r *registrar) refuseCopy(ctx context.Context) error {
	key := discovery.KeyBroker(r.a.ID())
	for began := time.Now(); ; {
		call, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
		e, err := r.a.store.Get(call, key)
		cancel()
		if errors.Is(err, discovery.ErrNotFound) {
			return nil
		}
		if err != nil {
			return err
		}
		b, err := discovery.Decode[discovery.Broker](e)
		if err != nil || b.Nonce != r.a.nonce() || e.Session == "" || slices.Contains(r.own, e.Session) {
			return nil // ClaimID judges the rest
		}
		where := net.JoinHostPort(b.Host, strconv.Itoa(int(b.Port)))
		text := fmt.Errorf("%w: broker %d is alive at %s with the identity of %s: one of the two folders is a copy; "+
			"stop one process, and remove identity.json from the copy if both are to run", errCopy, b.ID, where, r.a.cfg.DataDir)
		if r.registered {
			return text
		}
		if own := r.a.theBroker(); own != nil { // after a start without the store
			if host, port := own.Advertised(); host == b.Host && port == b.Port {
				return nil // it would be ourselves that we find alive
			}
		}
		if b.Port == 0 || !accepts(ctx, where) {
			return nil
		}
		fresh, err := r.passing(ctx, b.Service)
		if err != nil {
			return err
		}
		if !fresh {
			return nil
		}
		if time.Since(began) > aliveProof {
			return text
		}
		if !sleep(ctx, 500*time.Millisecond) {
			return ctx.Err()
		}
	}
}

func accepts(ctx context.Context, address string) bool {
	ctx, cancel := context.WithTimeout(ctx, time.Second)
	defer cancel()
	conn, err := new(net.Dialer).DialContext(ctx, "tcp", address)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func (r *registrar) passing(ctx context.Context, service string) (bool, error) {
	ctx, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
	defer cancel()
	instances, _, err := r.a.store.WatchServices(ctx, discovery.ServiceBroker, 0)
	return slices.ContainsFunc(instances, func(i discovery.Instance) bool { return i.ID == service && i.Passing }), err
}

// tend puts right what is missing of the registration: the key with the
// broker's address, which may also have gone with a wiped store, and the
// service.
func (r *registrar) tend(ctx context.Context, s discovery.Session) error {
	rec := r.a.record(s)
	if rec.Port == 0 {
		return nil // not serving yet
	}
	call, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
	defer cancel()
	// The service comes first: one that is announced while its earlier life's
	// check is still critical would be suspected.
	if err := r.register(call, rec); err != nil {
		return err
	}
	e, err := r.a.store.Get(call, discovery.KeyBroker(rec.ID))
	if err != nil && !errors.Is(err, discovery.ErrNotFound) {
		return err
	}
	if err != nil || e.Session != s.ID() || r.announced != s.ID() {
		if err := r.refuseCopy(ctx); err != nil {
			return err
		}
		if err := r.take(ctx, s, rec); err != nil {
			return err
		}
		r.announced = s.ID()
		nudge(r.a.wake)
		nudge(r.a.stand)
	}
	return nil
}

// register makes the broker visible as a service, once.
func (r *registrar) register(call context.Context, rec discovery.Broker) error {
	if r.a.registration() != nil {
		return nil
	}
	reg, err := r.a.store.Register(call, discovery.Service{
		ID: rec.Service, Name: discovery.ServiceBroker, Address: rec.Host, Port: int(rec.Port),
		Meta: map[string]string{"id": strconv.Itoa(int(rec.ID)), "rack": rec.Rack, "version": rec.Version,
			discovery.MetaClusterID: r.a.folderCluster(), discovery.MetaNonce: rec.Nonce},
	})
	if err != nil {
		return err
	}
	r.a.mu.Lock()
	r.a.service = reg
	r.a.mu.Unlock()
	nudge(r.a.suspects)
	return nil
}

// leave takes the agent out of the store: keys first, so that the session's
// end delays nobody, then the service and the session.
func (r *registrar) leave(ctx context.Context) {
	tell := func(what string, err error) {
		if err != nil && !errors.Is(err, discovery.ErrConflict) {
			r.a.log.Warn("leaving the coordination store: "+what, zap.Error(err))
		}
	}
	s := r.a.liveSession()
	if s != nil {
		for _, key := range []string{discovery.KeyController, discovery.KeyBroker(r.a.ID())} {
			_, err := r.a.store.Commit(ctx, discovery.Held(key, s.ID()), discovery.Delete(key))
			tell("delete "+key, err)
		}
	}
	if reg := r.a.registration(); reg != nil {
		tell("deregister", reg.Deregister(ctx))
	}
	if s != nil {
		tell("destroy the session", s.Destroy(ctx))
	}
	r.a.setSession(nil)
}

// sleep waits; false when ctx ended first.
func sleep(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return false
	case <-timer.C:
		return true
	}
}

// backoff is the pause after n failures in a row: 0.1 s doubling to 3 s, with
// jitter so that a fleet does not return in step.
func backoff(n int) time.Duration {
	d := min(100*time.Millisecond<<min(n-1, 5), 3*time.Second)
	return d/2 + rand.N(d/2+1)
}
