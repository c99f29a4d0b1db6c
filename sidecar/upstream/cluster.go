package upstream

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"slices"
	"time"

	"github.com/twmb/franz-go/pkg/kmsg"
	"go.uber.org/zap"

	"sidestream/discovery"
)

// Which cluster's brokers the sidecar speaks to. Those that agents register are
// taken only if they are of its own cluster, and each connection to one is asked
// for its cluster-id before anything else is sent: an address may by now be
// another's. Nothing of this holds for clusters that are no Sidestream's, which
// are named by kafka.bootstrap or by a service of another name.

// errStranger is what dialling a broker of another cluster gives.
var errStranger = errors.New("it is another cluster's broker")

// Ours says whether brokers are expected to be of the store's cluster.
func (c Config) Ours() bool { return len(c.Bootstrap) == 0 && c.Service == discovery.ServiceBroker }

// Pin says which cluster the data folder belongs to, before anything is sent;
// "" is none. It goes before the store's word.
func (u *Upstream) Pin(clusterID string) {
	if clusterID != "" && u.cfg.Ours() {
		u.setCluster(clusterID, true)
	}
}

// ClusterID is that of the cluster whose brokers are expected, "" while it is
// not known or when any broker may answer.
func (u *Upstream) ClusterID() string {
	u.mu.Lock()
	defer u.mu.Unlock()
	return u.clusterID
}

// Known is closed once ClusterID is known.
func (u *Upstream) Known() <-chan struct{} { return u.known }

// setCluster keeps the first id that it is given, and a pinned one in any case.
func (u *Upstream) setCluster(clusterID string, pinned bool) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.clusterID == "" {
		close(u.known)
	}
	if u.clusterID == "" || pinned {
		u.clusterID = clusterID
	}
}

// learnCluster asks the store for the cluster-id until it has told that, or that
// there is none. An agent writes it before it registers, so it is there when a
// broker is.
func (u *Upstream) learnCluster(instances []discovery.Instance) {
	for n := 0; u.ClusterID() == "" && u.ctx.Err() == nil; n++ {
		id, err := u.storeCluster()
		switch {
		case err == nil && id != "":
			u.setCluster(id, false)
		case err == nil: // the store was wiped, or has never had an agent
			if id := saidBy(instances, u.store.Cluster()); id != "" {
				u.setCluster(id, false)
			}
			return
		default:
			if n == 0 {
				u.log.Warn("the cluster-id cannot be read; brokers are not taken before", zap.Error(err))
			}
			select {
			case <-time.After(adminBackoff(n)):
			case <-u.ctx.Done():
			}
		}
	}
}

func (u *Upstream) storeCluster() (string, error) {
	ctx, cancel := context.WithTimeout(u.ctx, u.cfg.RequestTimeout)
	defer cancel()
	e, err := u.store.Get(ctx, discovery.KeyClusterID)
	if errors.Is(err, discovery.ErrNotFound) {
		return "", nil
	}
	if err != nil {
		return "", err
	}
	id, err := discovery.Decode[discovery.ClusterID](e)
	if err != nil {
		return "", fmt.Errorf("the key %s is not readable: %w", discovery.KeyClusterID, err)
	}
	return id.ID, nil
}

// saidBy is the cluster-id of the brokers that say that they are of the cluster,
// "" when there is none or they differ.
func saidBy(instances []discovery.Instance, cluster string) string {
	said := ""
	for _, in := range instances {
		id := in.Meta[discovery.MetaClusterID]
		switch {
		case in.Cluster != cluster || id == "" || id == said:
		case said != "":
			return ""
		default:
			said = id
		}
	}
	return said
}

// admitted leaves the brokers that may be asked. One that an agent of an older
// version registered does not say the name of its cluster, only the cluster-id:
// it is taken when that is known to be ours. One without either is no agent's.
func admitted(instances []discovery.Instance, clusterID string) (list []discovery.Instance, strangers int) {
	list = slices.DeleteFunc(slices.Clone(instances), func(in discovery.Instance) bool {
		id := in.Meta[discovery.MetaClusterID]
		return in.Cluster == "" && id != "" && id != clusterID
	})
	return list, len(instances) - len(list)
}

// verified asks each connection for its cluster before it is used, once the
// cluster is known. Brokers that want a login answer nothing before it; agents'
// brokers have none.
func (u *Upstream) verified(dial dialFunc) dialFunc {
	if !u.cfg.Ours() || u.cfg.SASL.Mechanism != "" {
		return dial
	}
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := dial(ctx, network, addr)
		want := u.ClusterID()
		if err != nil || want == "" {
			return c, err
		}
		if err := u.verify(ctx, c, want); err != nil {
			_ = c.Close() // nothing of anybody's was sent on it
			u.dials.note(addr, err)
			if errors.Is(err, errStranger) && u.tellStranger(addr) {
				u.log.Error("a broker is not asked: it belongs to another cluster", zap.String("address", addr), zap.Error(err))
			}
			return nil, &net.OpError{Op: "dial", Net: network, Err: fmt.Errorf("broker %s: %w", addr, err)}
		}
		return c, nil
	}
}

func (u *Upstream) verify(ctx context.Context, c net.Conn, want string) error {
	until := time.Now().Add(u.cfg.DialTimeout)
	if d, ok := ctx.Deadline(); ok && d.Before(until) {
		until = d
	}
	if err := c.SetDeadline(until); err != nil {
		return err
	}
	stop := context.AfterFunc(ctx, func() { _ = c.SetDeadline(time.Now()) })
	got, err := askCluster(c, u.cfg.ClientID)
	if !stop() && ctx.Err() != nil {
		return ctx.Err()
	}
	switch {
	case err != nil:
		return fmt.Errorf("asked for its cluster: %w", err)
	case got == "":
		return errors.New("it does not know yet which cluster it belongs to")
	case got != want:
		return fmt.Errorf("%w: of cluster %s, and this sidecar belongs to %s (consul.cluster %q)", errStranger, got, want, u.store.Cluster())
	}
	return c.SetDeadline(time.Time{})
}

// strangersTold bounds what is remembered of addresses that were told of.
const strangersTold = 1000

// tellStranger says whether the address is news: dials are repeated.
func (u *Upstream) tellStranger(addr string) bool {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.strangers[addr] {
		return false
	}
	if len(u.strangers) >= strangersTold {
		clear(u.strangers)
	}
	u.strangers[addr] = true
	return true
}

const (
	askVersion = 4       // of Metadata: 2 brought the cluster-id, 9 another form of the header
	askMost    = 1 << 20 // bytes of the answer: it lists the brokers and no topic
)

// askCluster asks the broker at the other end for its cluster-id.
func askCluster(c net.Conn, clientID string) (string, error) {
	req := kmsg.NewPtrMetadataRequest()
	req.SetVersion(askVersion)
	req.Topics = []kmsg.MetadataRequestTopic{} // none, not all
	const correlation = 1
	if _, err := c.Write(kmsg.NewRequestFormatter(kmsg.FormatterClientID(clientID)).AppendRequest(nil, req, correlation)); err != nil {
		return "", err
	}
	var head [8]byte
	if _, err := io.ReadFull(c, head[:]); err != nil {
		return "", err
	}
	size, number := binary.BigEndian.Uint32(head[:4]), binary.BigEndian.Uint32(head[4:])
	if size < 4 || size > askMost || number != correlation {
		return "", errors.New("it does not answer as a broker does")
	}
	body := make([]byte, size-4)
	if _, err := io.ReadFull(c, body); err != nil {
		return "", err
	}
	resp := kmsg.NewPtrMetadataResponse()
	resp.SetVersion(askVersion)
	if err := resp.ReadFrom(body); err != nil {
		return "", fmt.Errorf("its answer is not readable: %w", err)
	}
	if resp.ClusterID == nil {
		return "", nil
	}
	return *resp.ClusterID, nil
}
