package kafka

import "time"

// Config bounds what clients may take of the server. The broker fills it from its own configuration, which documents
// and checks each value.
type Config struct {
	Listen               string // host:port
	Loops                int
	MaxRequestBytes      int64
	MaxRequestMemory     int64
	MaxUnpackedBytes     int64
	MaxConnections       int
	MaxConnectionsPerIP  int
	MaxInFlightRequests  int
	MaxInFlightBytes     int64
	MaxFetchBytes        int64
	MaxFetchWait         time.Duration
	IdleTimeout          time.Duration
	ReceiveTimeout       time.Duration
	RequestTimeout       time.Duration
	AutoCreateTopics     bool
	AutoCreatePartitions int32
	Produce              Quota
	Fetch                Quota
}

// maxSmallRequest bounds every request but Produce. Decoding turns each byte of a hostile array into a structure of a
// hundred, so what needs no room gets none; ten thousand topic names fit.
const maxSmallRequest = 1 << 20
