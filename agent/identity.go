package agent

import (
	"context"
	"errors"
	"fmt"
	"strconv"

	"go.uber.org/zap"

	"sidestream/agent/facts"
	"sidestream/discovery"
)

// record is this broker's key as it is to be written with the session.
func (a *Agent) record(s discovery.Session) discovery.Broker {
	rec := discovery.Broker{Rack: a.cfg.Rack, Version: Version, Session: s.ID()}
	if b := a.theBroker(); b != nil && b.Addr() != "" {
		rec.Host, rec.Port = b.Advertised()
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	rec.ID, rec.Nonce, rec.Service = a.id, a.identity.Nonce, serviceID(a.clusterID, a.id)
	return rec
}

// serviceID is unlike that of a broker of another cluster in the same registry.
func serviceID(cluster string, id int32) string {
	return fmt.Sprintf("%s-%.8s-%d", discovery.ServiceBroker, cluster, id)
}

func (a *Agent) nonce() string {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.identity.Nonce
}

// liveSession is the session under which the broker is registered, nil when
// there is none or the store ended it.
func (a *Agent) liveSession() discovery.Session {
	a.mu.Lock()
	s := a.session
	a.mu.Unlock()
	if s == nil || s.Ownership() != discovery.Lost {
		return s
	}
	a.drop(s)
	return nil
}

// drop forgets a session that the store ended.
func (a *Agent) drop(s discovery.Session) {
	a.mu.Lock()
	dropped := a.session == s
	if dropped {
		a.session = nil
	}
	a.mu.Unlock()
	if dropped {
		a.metrics.sessionsLost.Inc()
		a.log.Warn("the coordination store ended this broker's session; serving goes on, registering again", zap.String("session", s.ID()))
	}
}

func (a *Agent) setSession(s discovery.Session) {
	a.mu.Lock()
	a.session = s
	a.mu.Unlock()
	nudge(a.wake)
	nudge(a.stand)
}

func (a *Agent) registration() discovery.Registration {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.service
}

// keptID is the id that the folder says, 0 when none.
func (a *Agent) keptID() int32 {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.kept
}

// keepID writes the id to the folder.
func (a *Agent) keepID(ctx context.Context, id int32) error {
	if err := a.writeIdentity(ctx, func(i *discovery.Identity) error { return i.SetID(strconv.Itoa(int(id))) }); err != nil {
		return err
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.id, a.kept = id, id
	return nil
}

// keepCluster writes the cluster-id to a folder that has none.
func (a *Agent) keepCluster(ctx context.Context, clusterID string) error {
	if err := a.writeIdentity(ctx, func(i *discovery.Identity) error { return i.SetClusterID(clusterID) }); err != nil {
		return err
	}
	a.mu.Lock()
	a.clusterID = clusterID
	a.mu.Unlock()
	a.mirror.Resync()
	return nil
}

// writeIdentity changes the identity file, one writer at a time.
func (a *Agent) writeIdentity(ctx context.Context, write func(*discovery.Identity) error) error {
	select {
	case <-a.identityTurn:
	case <-ctx.Done():
		return ctx.Err()
	}
	defer func() { a.identityTurn <- struct{}{} }()
	return write(a.identity)
}

// settleCluster compares the store's cluster-id with the folder's. A folder
// without one takes the store's. One is made only when neither has any and no
// broker of another cluster is registered.
func (a *Agent) settleCluster(ctx context.Context) (facts.Cluster, error) {
	for range 10 {
		storeID, err := a.storeCluster(ctx)
		if err != nil {
			return facts.Unread, err
		}
		folder := a.folderCluster()
		if folder == "" && storeID != "" {
			if err := a.keepCluster(ctx, storeID); err != nil {
				return facts.Unread, err
			}
			folder = storeID
		}
		if folder != "" {
			cluster := facts.Compare(folder, storeID)
			switch f, _ := a.mirror.Latest(); {
			case a.theBroker() == nil:
				a.clusterAlarm(cluster, storeID)
			case f.Cluster != cluster:
				// The reconciler raises and clears the alarm by the mirror's picture.
				// If both did, the alarm would come and go while one has yet to see
				// what the other has seen.
				a.mirror.Resync()
			}
			return cluster, nil
		}
		if err := a.makeCluster(ctx); err != nil {
			return facts.Unread, err
		}
	}
	return facts.Unread, fmt.Errorf("%w: the cluster-id changes all the time", discovery.ErrUnavailable)
}

func (a *Agent) storeCluster(ctx context.Context) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	e, err := a.store.Get(ctx, discovery.KeyClusterID)
	if errors.Is(err, discovery.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	id, err := discovery.Decode[discovery.ClusterID](e)
	if err == nil && id.ID == "" {
		err = errors.New("it is empty")
	}
	if err != nil {
		return "", fmt.Errorf("the store's cluster-id is not readable: %w", err)
	}
	return id.ID, nil
}

// makeCluster writes a new cluster-id; when another agent was quicker, or the
// outcome is unknown, the caller reads again.
func (a *Agent) makeCluster(ctx context.Context) error {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	instances, neighbours, err := a.registered(ctx)
	if err != nil {
		return err
	}
	if text := wiped(a.store.Cluster(), instances, neighbours); text != "" {
		a.alarms.put(alarmCluster, text)
		return fmt.Errorf("%w: %s", errBlocked, text)
	}
	id := discovery.ClusterID{ID: discovery.NewUUID()}
	_, err = a.store.Commit(ctx, discovery.Create(discovery.KeyClusterID, discovery.Encode(id)))
	switch {
	case err == nil:
		a.log.Info("a new cluster begins", zap.String("cluster", id.ID))
	case errors.Is(err, discovery.ErrConflict), errors.Is(err, discovery.ErrUnknownOutcome):
		err = nil
	}
	return err
}

// registered lists the brokers of this cluster, and what there is of others.
func (a *Agent) registered(ctx context.Context) ([]discovery.Instance, discovery.Neighbours, error) {
	instances, _, err := a.store.WatchServices(ctx, discovery.ServiceBroker, 0)
	if err != nil {
		return nil, discovery.Neighbours{}, err
	}
	neighbours, err := a.store.Neighbours(ctx, discovery.ServiceBroker)
	return instances, neighbours, err
}

// wiped says why no cluster may begin in a store without a cluster-id: brokers
// are registered that had one here. What to run is told only where that is
// certain: one that does not say the name of its cluster, as an older version
// does not, may be another's.
func wiped(cluster string, instances []discovery.Instance, neighbours discovery.Neighbours) string {
	for _, in := range instances {
		other := in.Meta[discovery.MetaClusterID]
		switch {
		case other == "":
		case in.Cluster == cluster:
			return fmt.Sprintf("the store has no cluster-id under consul.cluster %q, but broker %s of cluster %s is registered there: the store was wiped; "+
				"run `sidestream metadata rebuild --cluster-id %s --agent HOST:4101` with the address of each of its agents (or deregister service %s if that cluster is gone for good)",
				cluster, in.Meta["id"], other, other, discovery.RegisteredID(cluster, in.ID))
		case neighbours.Named(other) == "":
			return fmt.Sprintf("the store has no cluster-id under consul.cluster %q, and broker %s of cluster %s is registered without the name of its cluster, as older versions do: "+
				"it may be of this cluster or of another in the same Consul; upgrade its agent, which then says it (or deregister service %s if that cluster is gone for good)",
				cluster, in.Meta["id"], other, in.ID)
		}
	}
	return ""
}

// rebuildHint is what an operator is to run when the store has lost keys.
func (a *Agent) rebuildHint() string {
	return fmt.Sprintf("run metadata rebuild: `sidestream metadata rebuild --cluster-id %s --agent %s` with every agent: "+
		"name them all by further --agent HOST:PORT, or run it on each host with its own", a.folderCluster(), a.HTTPAddr())
}

// clusterAlarm raises or clears the alarm about the cluster-id.
func (a *Agent) clusterAlarm(c facts.Cluster, storeID string) {
	switch c {
	case facts.Missing:
		a.alarms.put(alarmCluster, fmt.Sprintf("cluster-id missing: %s; "+
			"what is led goes on being served, nothing else is done (there is none under consul.cluster %q: is that this cluster's name?)", a.rebuildHint(), a.store.Cluster()))
	case facts.Foreign:
		a.alarms.put(alarmCluster, fmt.Sprintf("the store belongs to cluster %s and this folder to %s: nothing is taken or removed; "+
			"point this agent at its own store", storeID, a.folderCluster()))
	case facts.Same:
		a.alarms.put(alarmCluster, "")
	case facts.Unread:
	}
}
