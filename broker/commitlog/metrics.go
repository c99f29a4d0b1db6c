package commitlog

import "github.com/prometheus/client_golang/prometheus"

// Metrics count what all the logs of a process do. Make one and pass it to every
// Open.
type Metrics struct {
	appendedBytes   prometheus.Counter
	appendedBatches prometheus.Counter
	flushSeconds    prometheus.Histogram
	rolls           prometheus.Counter
	noSpace         prometheus.Counter
	offline         prometheus.Counter
	scannedBytes    prometheus.Counter
	cutBytes        prometheus.Counter
	damage          prometheus.Counter
	indexRebuilds   prometheus.Counter
	removedSegments prometheus.Counter
	verifiedBytes   prometheus.Counter
	compactions     prometheus.Counter
	compactRemoved  prometheus.Counter
	compactSaved    prometheus.Counter
}

// NewMetrics makes the metrics and registers them on reg, unless that is nil.
func NewMetrics(reg prometheus.Registerer) *Metrics {
	counter := func(name, help string) prometheus.Counter {
		return prometheus.NewCounter(prometheus.CounterOpts{Name: "sidestream_log_" + name, Help: help})
	}
	m := &Metrics{
		appendedBytes:   counter("appended_bytes_total", "Bytes of record batches appended."),
		appendedBatches: counter("appended_batches_total", "Record batches appended."),
		flushSeconds: prometheus.NewHistogram(prometheus.HistogramOpts{
			Name: "sidestream_log_flush_seconds", Help: "Time of one flush of a partition, checkpoint included.",
			Buckets: prometheus.ExponentialBuckets(0.0001, 2, 16),
		}),
		rolls:           counter("rolled_segments_total", "Segments begun because the one before was full or old."),
		noSpace:         counter("no_space_appends_total", "Appends refused because the disk was full."),
		offline:         counter("offline_logs_total", "Logs that went offline for writes after a failed sync."),
		scannedBytes:    counter("recovery_scanned_bytes_total", "Bytes read and checked by recovery."),
		cutBytes:        counter("recovery_cut_bytes_total", "Bytes of torn tails that recovery cut off."),
		damage:          counter("damaged_stretches_total", "Damaged stretches found in stored segments."),
		indexRebuilds:   counter("index_rebuilds_total", "Segments whose indexes were rebuilt."),
		removedSegments: counter("removed_segments_total", "Segments removed by retention or record deletion."),
		verifiedBytes:   counter("verified_bytes_total", "Bytes of stored segments whose checksums were verified in the background."),
		compactions:     counter("compaction_passes_total", "Passes of compaction over a log."),
		compactRemoved:  counter("compaction_removed_records_total", "Records removed because a later one had their key, and tombstones that were due."),
		compactSaved:    counter("compaction_reclaimed_bytes_total", "Bytes by which compaction made segments smaller."),
	}
	if reg != nil {
		reg.MustRegister(m.appendedBytes, m.appendedBatches, m.flushSeconds, m.rolls, m.noSpace, m.offline,
			m.scannedBytes, m.cutBytes, m.damage, m.indexRebuilds, m.removedSegments,
			m.verifiedBytes, m.compactions, m.compactRemoved, m.compactSaved)
	}
	return m
}
