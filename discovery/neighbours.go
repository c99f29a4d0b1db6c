package discovery

import (
	"context"
	"maps"
	"slices"
	"strings"
)

// Several clusters may share one Consul. Their keys lie under roots of their
// own; services have one name in all of them, since that is how they are found.
// So what is registered says which cluster it is of, in its meta (metaCluster),
// a tag and its id.

// metaCluster is the meta key of the cluster's name.
const metaCluster = "sidestream-cluster"

// Meta keys that Sidestream's own services have.
const (
	MetaClusterID = "cluster-id" // of a broker: its data folder's
	MetaNonce     = "nonce"      // of the data folder
)

// Neighbours is what is to be seen of the other clusters in the same registry.
type Neighbours struct {
	// IDs are their cluster-ids by their names. Those that this process may not
	// read are not in it.
	IDs map[string]string
	// Instances are those of the service that was asked for.
	Instances []Instance
}

// Named is the name of the cluster with the cluster-id, "" when no neighbour is
// known to have it. A broker that is alive tells as well as a key does.
func (n Neighbours) Named(clusterID string) string {
	if clusterID == "" {
		return ""
	}
	for _, name := range slices.Sorted(maps.Keys(n.IDs)) {
		if n.IDs[name] == clusterID {
			return name
		}
	}
	for _, in := range n.Instances {
		if in.Passing && in.Meta[MetaClusterID] == clusterID {
			return in.Cluster
		}
	}
	return ""
}

// RegisteredID is the id of a service in the registry, where equal ids of
// different clusters live side by side. Names of clusters have no @.
func RegisteredID(cluster, id string) string { return id + "@" + cluster }

// registrant reads who registered what, and as what.
func registrant(registered string, meta map[string]string) (id, cluster string, own map[string]string) {
	cluster = meta[metaCluster]
	if cluster == "" {
		return registered, "", meta
	}
	own = maps.Clone(meta)
	delete(own, metaCluster)
	return strings.TrimSuffix(registered, RegisteredID(cluster, "")), cluster, own
}

func withCluster(meta map[string]string, cluster string) map[string]string {
	with := map[string]string{metaCluster: cluster}
	maps.Copy(with, meta)
	return with
}

// ofCluster leaves out what another cluster registered.
func ofCluster(instances []Instance, cluster string) []Instance {
	return slices.DeleteFunc(instances, func(in Instance) bool { return in.Cluster != "" && in.Cluster != cluster })
}

// ofOthers leaves only that.
func ofOthers(instances []Instance, cluster string) []Instance {
	return slices.DeleteFunc(instances, func(in Instance) bool { return in.Cluster == "" || in.Cluster == cluster })
}

// LiveTwin finds an instance of a service that passes its check with the nonce
// of our data folder, in any cluster of the registry, under another id or in
// another cluster than our own: it runs on a copy of the folder, or was this
// folder's process until a moment ago. The second result is false when there is
// none.
func LiveTwin(ctx context.Context, store Store, service, ownID, nonce string) (Instance, bool, error) {
	here, _, err := store.WatchServices(ctx, service, 0)
	if err != nil {
		return Instance{}, false, err
	}
	n, err := store.Neighbours(ctx, service)
	if err != nil {
		return Instance{}, false, err
	}
	for _, in := range slices.Concat(here, n.Instances) {
		ours := in.ID == ownID && (in.Cluster == "" || in.Cluster == store.Cluster())
		if in.Passing && !ours && nonce != "" && in.Meta[MetaNonce] == nonce {
			return in, true, nil
		}
	}
	return Instance{}, false, nil
}
