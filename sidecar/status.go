package sidecar

import (
	"context"
	"errors"
	"sync"
	"time"

	"sidestream/sdk/api"
	"sidestream/sidecar/idempotency"
	"sidestream/sidecar/limit"
	"sidestream/sidecar/publish"
	"sidestream/sidecar/upstream"
)

// Status is the answer to GET /status, for people and the command line.
type Status struct {
	ID       string          `json:"id"`
	Version  string          `json:"version"`
	Address  string          `json:"address"`
	Uptime   string          `json:"uptime"`
	Ready    bool            `json:"ready"`  // as GET /readyz answers
	Causes   []string        `json:"causes"` // what is amiss; there may be some while it is ready
	Store    StoreStatus     `json:"store"`
	Brokers  BrokersStatus   `json:"brokers"`
	Publish  PublishStatus   `json:"publish"`
	Spool    api.SpoolStatus `json:"spool"`
	Consume  any             `json:"consume"`
	Outage   *OutageStatus   `json:"outage"`                        // what of the topics used here is away; null: nothing
	Config   ReloadStatus    `json:"config"`                        // how what is in force came about
	SetAside string          `json:"positions_set_aside,omitempty"` // an unreadable file of positions
	DataDir  string          `json:"data_dir"`

	Idempotency idempotency.Status `json:"idempotency"`
	Unix        string             `json:"unix,omitempty"`
	Timestamp   time.Time          `json:"now"`
}

// StoreStatus is how this sidecar stands with the coordination store.
type StoreStatus struct {
	Cluster   string `json:"cluster"`              // consul.cluster
	ClusterID string `json:"cluster_id,omitempty"` // whose brokers are expected; absent while it is not known, and with brokers that are not Sidestream's
	Session   string `json:"session,omitempty"`
	Ownership string `json:"ownership"` // proven, unproven, lost, or none
	Sidecars  int    `json:"sidecars"`  // live ones, as last counted
}

// BrokersStatus is where the brokers are looked for.
type BrokersStatus struct {
	Seeds []string `json:"seeds"`
}

// PublishStatus is what is on its way.
type PublishStatus struct {
	Buffered int64 `json:"buffered"`
	// Away are the first 20 of the partitions to which messages do not get through,
	// with what a broker said last.
	Away           []publish.Away `json:"away"`
	AwayPartitions int            `json:"away_partitions"`

	Limits *LimitsStatus `json:"limits,omitempty"` // those in force
}

// LimitsStatus is what may be published per second; 0 and absent: no limit.
type LimitsStatus struct {
	Messages int64             `json:"messages_per_second,omitempty"`
	Bytes    int64             `json:"bytes_per_second,omitempty"`
	MaxWait  string            `json:"max_wait"`
	Topics   map[string]string `json:"topics,omitempty"`
	Callers  map[string]string `json:"callers,omitempty"`
}

func limitsStatus(c limit.Config) *LimitsStatus {
	if c.MessagesPerSecond == 0 && c.BytesPerSecond == 0 && len(c.Topics) == 0 && len(c.Callers) == 0 {
		return nil
	}
	return &LimitsStatus{c.MessagesPerSecond, c.BytesPerSecond, c.MaxWait.String(), c.Topics, c.Callers}
}

func (s *Sidecar) status() any {
	causes, ready := s.causes()
	st := Status{
		ID: s.id.ID, Version: Version, Address: s.Addr(), Uptime: time.Since(s.begun).Round(time.Second).String(),
		Ready: ready, Causes: causes, Store: StoreStatus{Cluster: s.store.Cluster(), ClusterID: s.up.ClusterID(), Ownership: "none", Sidecars: s.presence.liveSidecars()},
		Brokers: BrokersStatus{Seeds: s.up.Seeds()}, Publish: PublishStatus{Buffered: s.publisher.Buffered(), Limits: limitsStatus(s.limited.Limits())},
		Spool:       s.spool.Status(),
		Idempotency: s.keys.Status(), Consume: s.consumer.Status(), Config: s.reloads.get(), Outage: s.outages.status(), SetAside: s.local.SetAside(), DataDir: s.cfg.DataDir, Unix: s.cfg.ListenUnix,
		Timestamp: time.Now(),
	}
	st.Publish.Away, st.Publish.AwayPartitions = s.publisher.Away()
	if st.Brokers.Seeds == nil {
		st.Brokers.Seeds = []string{}
	}
	if session := s.presence.Session(); session != nil {
		st.Store.Session, st.Store.Ownership = session.ID(), session.Ownership().String()
	}
	return st
}

// causes is what is amiss, and whether publishing and pulling work all the same.
// An orchestrator stops what is not ready: it must not do so to every sidecar
// because the store is away, when all of them go on with what they own.
func (s *Sidecar) causes() (causes []string, ready bool) {
	causes, ready = []string{}, true
	if err := s.brokers.check(s.up); err != nil {
		causes, ready = append(causes, "brokers: "+err.Message), false
	}
	if st := s.outages.status(); st != nil {
		causes = append(causes, st.text())
	}
	if c, serves := s.presence.cause(s.cfg.Consume.UnprovenMax); c != "" {
		causes, ready = append(causes, c), ready && serves
	}
	if err := s.folder.Err(); err != nil {
		causes, ready = append(causes, "data_dir: "+err.Error()+"; what the spool has taken is sent while this process lives: put the folder back, and start the sidecar again"), false
	}
	if err := errors.Join(s.disk.check(s.cfg.DataDir), s.local.Err()); err != nil {
		causes, ready = append(causes, "data_dir: acknowledgements cannot be kept: "+err.Error()), false
	}
	if err := errors.Join(s.spool.Err(), s.spool.Lost()); err != nil {
		causes = append(causes, "spool: "+err.Error())
	}
	if alarm := s.clock.Alarm(); alarm != "" {
		causes = append(causes, "clock: "+alarm)
	}
	if err := s.keys.Err(); err != nil {
		causes = append(causes, "data_dir: requests with an Idempotency-Key are refused until a restart: "+err.Error())
	}
	return causes, ready
}

// brokerCheck remembers for a second whether a broker answered, so that a
// health check that asks often does not ask the brokers often.
type brokerCheck struct {
	// mu guards what follows, and lets one caller ask for all.
	mu sync.Mutex
	at time.Time
	e  *api.Error
	// asking is closed when the question under way is answered; nil: none is.
	asking chan struct{}
}

const (
	brokerCheckAge  = time.Second
	brokerCheckTime = 2 * time.Second
)

func (b *brokerCheck) check(up *upstream.Upstream) *api.Error {
	b.mu.Lock()
	if time.Since(b.at) < brokerCheckAge {
		defer b.mu.Unlock()
		return b.e
	}
	if asking := b.asking; asking != nil {
		b.mu.Unlock()
		<-asking
		b.mu.Lock()
		defer b.mu.Unlock()
		return b.e
	}
	asking := make(chan struct{})
	b.asking = asking
	b.mu.Unlock()

	ctx, cancel := context.WithTimeout(context.Background(), brokerCheckTime)
	defer cancel()
	e := up.Ping(ctx)

	b.mu.Lock()
	defer b.mu.Unlock()
	b.at, b.e, b.asking = time.Now(), e, nil
	close(asking)
	return e
}
