package discovery

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	capi "github.com/hashicorp/consul/api"
	"go.uber.org/zap"
)

// Register implements Store. The service and its check live in the local
// Consul agent, which runs the check's timer.
func (c *consul) Register(ctx context.Context, s Service) (Registration, error) {
	if err := s.check(); err != nil {
		return nil, err
	}
	s = s.clone()
	register := func(ctx context.Context) error { return c.register(ctx, s) }
	first, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	if err := register(first); err != nil {
		return nil, err
	}
	c.awaitShown(first, s)
	id := RegisteredID(c.cfg.Cluster, s.ID)
	beat := func(ctx context.Context) error { return c.beat(ctx, id) }
	deregister := func(ctx context.Context) error { return c.deregister(ctx, id) }
	b, err := newBeacon(c.keep, s.ID, c.cfg.CheckTTL, c.log, register, beat, deregister)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrUnavailable, err)
	}
	return b, nil
}

const shownEvery = 50 * time.Millisecond

// awaitShown waits until the catalog no longer shows the service as critical.
// Consul's agent takes a registration at once and tells the servers after it;
// till then others see what the check was in the service's earlier life, and
// would suspect the new one. It gives up in the end: suspicion waits as well.
func (c *consul) awaitShown(ctx context.Context, s Service) {
	ctx, cancel := context.WithTimeout(ctx, c.cfg.CheckTTL/2) // then the next beat is due
	defer cancel()
	for {
		instances, _, err := c.WatchServices(ctx, s.Name, 0)
		if err != nil || !criticalIn(instances, s.ID) {
			return
		}
		if sleep(ctx, shownEvery) != nil {
			c.log.Info("the service is registered, but still shown with its earlier life's check", zap.String("service", s.ID))
			return
		}
	}
}

func criticalIn(instances []Instance, id string) bool {
	critical := false
	for _, in := range instances {
		if in.ID == id {
			if in.Passing {
				return false
			}
			critical = true
		}
	}
	return critical
}

func checkID(service string) string { return "service:" + service }

func (c *consul) register(ctx context.Context, s Service) error {
	id := RegisteredID(c.cfg.Cluster, s.ID)
	err := c.beats.Agent().ServiceRegisterOpts(&capi.AgentServiceRegistration{
		ID: id, Name: s.Name, Address: s.Address, Port: s.Port,
		// The tag is for people and for DNS; the meta is what is read.
		Tags: []string{c.cfg.Cluster}, Meta: withCluster(s.Meta, c.cfg.Cluster),
		Check: &capi.AgentServiceCheck{
			CheckID: checkID(id), Name: s.Name + " is alive", TTL: c.cfg.CheckTTL.String(),
			Status:                         capi.HealthPassing, // Consul starts a TTL check as critical
			DeregisterCriticalServiceAfter: c.cfg.DeregisterAfter.String(),
		},
	}, capi.ServiceRegisterOpts{}.WithContext(ctx))
	if err != nil {
		return readError(ctx, err)
	}
	// To a service that the agent knows already, as from before a crash, it gives
	// back the status that the check had: only a beat makes that passing.
	return c.beat(ctx, id)
}

// beat passes the check. The same output each time costs Consul no write.
func (c *consul) beat(ctx context.Context, service string) error {
	err := c.beats.Agent().UpdateTTLOpts(checkID(service), "", capi.HealthPassing, (&capi.QueryOptions{}).WithContext(ctx))
	if isNotFound(err) {
		return errForgotten
	}
	return readError(ctx, err)
}

func (c *consul) deregister(ctx context.Context, service string) error {
	ctx, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	err := c.beats.Agent().ServiceDeregisterOpts(service, (&capi.QueryOptions{}).WithContext(ctx))
	if isNotFound(err) {
		return nil
	}
	return readError(ctx, err)
}

func isNotFound(err error) bool {
	var status capi.StatusError
	return errors.As(err, &status) && status.Code == http.StatusNotFound
}

// passes says whether no check is critical, nor its node in maintenance.
func passes(checks capi.HealthChecks) bool {
	status := checks.AggregatedStatus()
	return status == capi.HealthPassing || status == capi.HealthWarning
}

// WatchServices implements Store.
func (c *consul) WatchServices(ctx context.Context, name string, index uint64) ([]Instance, uint64, error) {
	ctx, cancel := c.bound(ctx, pollTimeout)
	defer cancel()
	found, meta, err := c.polls.Health().Service(name, "", false, poll(ctx, index))
	if err != nil {
		return nil, 0, readError(ctx, err)
	}
	return ofCluster(instancesIn(found), c.cfg.Cluster), nextIndex(index, meta.LastIndex), nil
}

// instancesIn reads a service's instances, of all clusters, sorted.
func instancesIn(found []*capi.ServiceEntry) []Instance {
	instances := make([]Instance, 0, len(found))
	for _, e := range found {
		id, cluster, meta := registrant(e.Service.ID, e.Service.Meta)
		in := Instance{
			Service: Service{ID: id, Name: e.Service.Service, Address: e.Service.Address, Port: e.Service.Port, Meta: meta},
			Node:    e.Node.Node,
			Cluster: cluster,
			Passing: passes(e.Checks),
			Beating: passes(slices.DeleteFunc(slices.Clone(e.Checks), func(c *capi.HealthCheck) bool { return c.ServiceID == "" })),
		}
		if in.Address == "" {
			in.Address = e.Node.Address
		}
		instances = append(instances, in)
	}
	slices.SortFunc(instances, func(a, b Instance) int {
		return cmp.Or(strings.Compare(a.ID, b.ID), strings.Compare(a.Cluster, b.Cluster), strings.Compare(a.Node, b.Node))
	})
	return instances
}

// Neighbours implements Store.
func (c *consul) Neighbours(ctx context.Context, service string) (Neighbours, error) {
	ctx, cancel := c.bound(ctx, callTimeout)
	defer cancel()
	found, _, err := c.calls.Health().Service(service, "", false, consistent(ctx))
	if err != nil {
		return Neighbours{}, readError(ctx, err)
	}
	n := Neighbours{IDs: map[string]string{}, Instances: ofOthers(instancesIn(found), c.cfg.Cluster)}
	roots, _, err := c.calls.KV().Keys(rootOfAll, "/", consistent(ctx))
	if err != nil && !isForbidden(err) {
		return Neighbours{}, readError(ctx, err)
	}
	for _, root := range roots {
		name, folder := strings.CutSuffix(strings.TrimPrefix(root, rootOfAll), "/")
		if !folder || name == c.cfg.Cluster {
			continue
		}
		pair, _, err := c.calls.KV().Get(root+KeyClusterID, consistent(ctx))
		if err != nil && !isForbidden(err) {
			return Neighbours{}, readError(ctx, err)
		}
		if err != nil || pair == nil {
			continue
		}
		if id, err := Decode[ClusterID](c.entry(pair)); err == nil && id.ID != "" {
			n.IDs[name] = id.ID
		}
	}
	return n, nil
}

// isForbidden: the ACL token may not read that. Tokens of one cluster need not
// be good for another's keys.
func isForbidden(err error) bool {
	var status *statusError
	return errors.As(err, &status) && status.Code == http.StatusForbidden
}
