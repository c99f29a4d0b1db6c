package discovery

import (
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
	beat := func(ctx context.Context) error { return c.beat(ctx, s.ID) }
	deregister := func(ctx context.Context) error { return c.deregister(ctx, s.ID) }
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
	err := c.beats.Agent().ServiceRegisterOpts(&capi.AgentServiceRegistration{
		ID: s.ID, Name: s.Name, Address: s.Address, Port: s.Port, Meta: s.Meta,
		Check: &capi.AgentServiceCheck{
			CheckID: checkID(s.ID), Name: s.Name + " is alive", TTL: c.cfg.CheckTTL.String(),
			Status:                         capi.HealthPassing, // Consul starts a TTL check as critical
			DeregisterCriticalServiceAfter: c.cfg.DeregisterAfter.String(),
		},
	}, capi.ServiceRegisterOpts{}.WithContext(ctx))
	if err != nil {
		return readError(ctx, err)
	}
	// To a service that the agent knows already, as from before a crash, it gives
	// back the status that the check had: only a beat makes that passing.
	return c.beat(ctx, s.ID)
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
	instances := make([]Instance, 0, len(found))
	for _, e := range found {
		in := Instance{
			Service: Service{ID: e.Service.ID, Name: e.Service.Service, Address: e.Service.Address, Port: e.Service.Port, Meta: e.Service.Meta},
			Node:    e.Node.Node,
			Passing: passes(e.Checks),
			Beating: passes(slices.DeleteFunc(slices.Clone(e.Checks), func(c *capi.HealthCheck) bool { return c.ServiceID == "" })),
		}
		if in.Address == "" {
			in.Address = e.Node.Address
		}
		instances = append(instances, in)
	}
	slices.SortFunc(instances, func(a, b Instance) int {
		if a.ID != b.ID {
			return strings.Compare(a.ID, b.ID)
		}
		return strings.Compare(a.Node, b.Node)
	})
	return instances, nextIndex(index, meta.LastIndex), nil
}
