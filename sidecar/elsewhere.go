package sidecar

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"go.uber.org/zap"

	"sidestream/discovery"
	"sidestream/sidecar/upstream"
)

var (
	// errElsewhere: the data folder is of another cluster.
	errElsewhere = errors.New("data_dir belongs to another cluster")
	// errTwin: another process lives with the data folder's nonce.
	errTwin = errors.New("another sidecar lives with the identity of data_dir")
)

// twinProof is how long another process must be seen alive to be no earlier life
// of ours, whose check passes for up to the check's TTL: twice that.
const twinProof = 6 * time.Second

// home is the cluster that the data folder belongs to. Beside Sidestream's own
// brokers a folder is of one cluster for good: its spooled messages, intents and
// positions mean nothing in another.
type home struct {
	up     *upstream.Upstream  // nil: the brokers are not Sidestream's
	folder *discovery.Identity // written by presence.run's goroutine alone

	// mu guards what follows; it is never held across I/O.
	mu        sync.Mutex
	clusterID string    // the folder's, "" while it has none
	twinSince time.Time // since when a twin is seen; zero: none is
}

func newHome(folder *discovery.Identity) *home {
	return &home{folder: folder, clusterID: folder.ClusterID}
}

func (h *home) cluster() string {
	h.mu.Lock()
	defer h.mu.Unlock()
	return h.clusterID
}

// settle refuses a folder that is of another cluster or lives elsewhere: at the
// first time of this process for good, later for as long as it is so.
func (h *home) settle(ctx context.Context, store discovery.Store, service string) error {
	if err := h.refuseTwin(ctx, store, service); err != nil {
		return err
	}
	ours := h.cluster()
	if h.up == nil || ours == "" {
		return nil
	}
	there := ""
	e, err := store.Get(ctx, discovery.KeyClusterID)
	switch {
	case errors.Is(err, discovery.ErrNotFound):
	case err != nil:
		return fmt.Errorf("reading the cluster-id: %w", err)
	default:
		id, err := discovery.Decode[discovery.ClusterID](e)
		if err != nil {
			return fmt.Errorf("the key %s is not readable: %w", discovery.KeyClusterID, err)
		}
		there = id.ID
	}
	if there == ours {
		return nil
	}
	n, err := store.Neighbours(ctx, discovery.ServiceBroker)
	if err != nil {
		return fmt.Errorf("looking at other clusters: %w", err)
	}
	name := n.Named(ours)
	switch {
	case name != "":
		return fmt.Errorf("%w: it is of cluster %s, which is consul.cluster %q, and this sidecar was given %q: start it with --consul-cluster %s, or give it an empty data_dir",
			errElsewhere, ours, name, store.Cluster(), name)
	case there != "":
		return fmt.Errorf("%w: it is of cluster %s, and consul.cluster %q is cluster %s: give this sidecar an empty data_dir; what the old one holds of that cluster (spooled messages, positions) stays in it",
			errElsewhere, ours, store.Cluster(), there)
	}
	return nil // the store was wiped; what the brokers say decides
}

func (h *home) refuseTwin(ctx context.Context, store discovery.Store, service string) error {
	in, live, err := discovery.LiveTwin(ctx, store, discovery.ServiceSidecar, service, h.folder.Nonce)
	if err != nil {
		return fmt.Errorf("looking for the folder's identity: %w", err)
	}
	if h.livesSince(live) == 0 {
		return nil
	}
	err = fmt.Errorf("sidecar %q of consul.cluster %q at %s:%d has the identity of this data_dir: it is this one's earlier life, or one of the two folders is a copy; stop one process, and remove identity.json from the copy if both are to run",
		in.Meta["id"], in.Cluster, in.Address, in.Port)
	if h.livesSince(live) > twinProof {
		return fmt.Errorf("%w: %w", errTwin, err)
	}
	return err
}

// livesSince is how long a twin is seen by now, 0 when none is.
func (h *home) livesSince(live bool) time.Duration {
	h.mu.Lock()
	defer h.mu.Unlock()
	switch {
	case !live:
		h.twinSince = time.Time{}
		return 0
	case h.twinSince.IsZero():
		h.twinSince = time.Now()
	}
	return max(1, time.Since(h.twinSince))
}

// keep writes to the folder which cluster it belongs to, once that is known.
func (h *home) keep(log *zap.Logger) {
	if h.up == nil || h.cluster() != "" || h.up.ClusterID() == "" {
		return
	}
	id := h.up.ClusterID()
	if err := h.folder.SetClusterID(id); err != nil {
		log.Warn("data_dir cannot be told which cluster it belongs to; tried again", zap.Error(err))
		return
	}
	h.mu.Lock()
	h.clusterID = id
	h.mu.Unlock()
}

// known is closed once keep has something to write; nil when it never has.
func (h *home) known() <-chan struct{} {
	if h.up == nil || h.cluster() != "" {
		return nil
	}
	return h.up.Known()
}
