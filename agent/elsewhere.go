package agent

import (
	"context"
	"fmt"
	"time"

	"sidestream/discovery"
)

// refuseElsewhere returns errElsewhere when the folder's cluster is to be seen
// in the same registry under another name: the agent was given the wrong name, or
// the folder is a copy. A cluster that is nowhere to be seen is one whose store
// was wiped.
func (r *registrar) refuseElsewhere(ctx context.Context) error {
	call, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
	defer cancel()
	n, err := r.a.store.Neighbours(call, discovery.ServiceBroker)
	if err != nil {
		return err
	}
	folder := r.a.folderCluster()
	name := n.Named(folder)
	if name == "" {
		return nil
	}
	return fmt.Errorf("%w: %s is of cluster %s, which is consul.cluster %q, and this agent was given %q: start it with --consul-cluster %s; if the folder is a copy, do not start it, and give this agent an empty one",
		errElsewhere, r.a.cfg.DataDir, folder, name, r.a.store.Cluster(), name)
}

// refuseTwin returns errCopy when a broker is alive with the folder's nonce that
// refuseCopy does not see: in another cluster of the registry, or under another
// id. Our own earlier life stops passing its check within the check's TTL.
func (r *registrar) refuseTwin(ctx context.Context) error {
	own := serviceID(r.a.folderCluster(), r.a.ID())
	for began := time.Now(); ; {
		call, cancel := context.WithTimeout(ctx, r.a.cfg.StoreTimeout)
		in, live, err := discovery.LiveTwin(call, r.a.store, discovery.ServiceBroker, own, r.a.nonce())
		cancel()
		if err != nil || !live {
			return err
		}
		if r.registered || time.Since(began) > aliveProof {
			return fmt.Errorf("%w: broker %s of consul.cluster %q is alive at %s:%d with the identity of %s: one of the two folders is a copy; stop one process, and give it an empty data folder if both are to run",
				errCopy, in.Meta["id"], in.Cluster, in.Address, in.Port, r.a.cfg.DataDir)
		}
		if !sleep(ctx, 500*time.Millisecond) {
			return ctx.Err()
		}
	}
}

// refuseOther returns ErrRebuild when a rebuild would make two clusters one: the
// cluster-id is in use under another name of the same registry, or brokers of
// another cluster live in this store.
func (a *Agent) refuseOther(ctx context.Context, clusterID string) error {
	call, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	instances, neighbours, err := a.registered(call)
	if err != nil {
		return a.unavailable(err)
	}
	if name := neighbours.Named(clusterID); name != "" {
		return fmt.Errorf("%w: cluster %s is consul.cluster %q, and this agent was given %q: nothing was written; start it with the right name",
			ErrRebuild, clusterID, name, a.store.Cluster())
	}
	for _, in := range instances {
		other := in.Meta[discovery.MetaClusterID]
		if other == "" || other == clusterID || !in.Passing || in.Cluster == "" && neighbours.Named(other) != "" {
			continue
		}
		return fmt.Errorf("%w: broker %s of cluster %s is alive in this store (service %s at %s:%d), so it is not cluster %s's to write: nothing was written; stop that cluster's agents first, or point this agent at its own store",
			ErrRebuild, in.Meta["id"], other, in.ID, in.Address, in.Port, clusterID)
	}
	return nil
}

// servedBy says whether brokers of a cluster are alive in this store.
func (a *Agent) servedBy(ctx context.Context, clusterID string) (bool, error) {
	call, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	instances, _, err := a.store.WatchServices(call, discovery.ServiceBroker, 0)
	if err != nil {
		return false, a.unavailable(err)
	}
	for _, in := range instances {
		if in.Passing && in.Meta[discovery.MetaClusterID] == clusterID {
			return true, nil
		}
	}
	return false, nil
}
