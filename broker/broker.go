// Package broker keeps partitions as append-only logs on disk and serves them over the Kafka protocol. It knows nothing
// of how the cluster agrees: the agent tells it what to lead (Lead, Resign, Remove) and answers its questions (Cluster).
package broker

import (
	"context"
	"errors"

	"github.com/prometheus/client_golang/prometheus"
	"go.uber.org/zap"
)

// Options are what a broker is given besides its configuration.
type Options struct {
	Logger     *zap.Logger           // nil: no log
	Registerer prometheus.Registerer // nil: metrics are kept but not registered
}

// Lead tells the broker to serve a partition.
type Lead struct {
	Topic     string
	ID        UUID
	Partition int32
	Count     int32 // partitions of the topic, kept in the folder so that the cluster's metadata can be rebuilt from it
	Epoch     int32 // leader epoch, stamped into every batch appended under it
	Replicas  []int32
	ISR       []int32
	Configs   map[string]string
}

// Held is a partition that the data folder holds, whether it is served or not.
type Held struct {
	Topic       string
	ID          UUID
	Partition   int32
	Count       int32
	Configs     map[string]string
	LeaderEpoch int32
	Start, End  int64 // log start and end offset
	Bytes       int64
}

// Broker is one storage node. Its methods may be called from several goroutines.
type Broker struct{}

var errTodo = errors.New("broker: not built yet")

// Open opens the data folder and loads what partitions it holds; nothing is served yet.
func Open(cfg Config, cluster Cluster, opts Options) (*Broker, error) { return nil, errTodo }

// Serve binds the listener and serves in the background until Close.
func (b *Broker) Serve() error { return errTodo }

// Addr is the address that Serve bound, host:port; empty before it.
func (b *Broker) Addr() string { return "" }

// Advertised is the host and port that clients should be told: Config.Advertise, else what Serve bound.
func (b *Broker) Advertised() (host string, port int32) { return "", 0 }

// Held lists what the data folder holds, from each partition's metadata file.
func (b *Broker) Held() []Held { return nil }

// Lead creates or opens the partition and serves it at that epoch. It is idempotent: the same Lead again changes
// nothing, a higher epoch or other configs are taken over, a lower epoch is an error.
func (b *Broker) Lead(l Lead) error { return errTodo }

// Resign stops serving the partition; its files stay.
func (b *Broker) Resign(id UUID, partition int32) {}

// Remove deletes the partition's files. It is for topics whose phase is deleting, and for nothing else.
func (b *Broker) Remove(id UUID, partition int32) error { return errTodo }

// Alarms lists what an operator must look at: offline logs, damage, folders that could not be opened.
func (b *Broker) Alarms() []string { return nil }

// Close stops serving, flushes everything and leaves the clean-shutdown marker. When ctx is over first, connections are
// cut and the logs are closed all the same.
func (b *Broker) Close(ctx context.Context) error { return nil }
