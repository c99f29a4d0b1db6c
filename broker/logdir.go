package broker

import (
	"golang.org/x/sys/unix"

	"sidestream/broker/disk"
	"sidestream/broker/kafka"
)

// LogDirs lists the directories that logs are kept in, with what each holds.
func (b *Broker) LogDirs() []kafka.LogDir {
	d := kafka.LogDir{Path: b.cfg.DataDir}
	d.TotalBytes, d.UsableBytes = b.space(b.cfg.DataDir)
	for _, h := range b.holdings() {
		if p := h.current(); p != nil {
			d.Partitions = append(d.Partitions, kafka.LogDirPartition{Topic: p.topic, Partition: p.index, Bytes: p.log.Size()})
		}
	}
	return []kafka.LogDir{d}
}

// space is the size of the file system that a directory lies in and what is free for us there, -1 when unknown.
func (b *Broker) space(dir string) (total, usable int64) {
	var s unix.Statfs_t
	if b.fs != disk.OS || unix.Statfs(dir, &s) != nil {
		return -1, -1
	}
	return int64(s.Blocks) * s.Bsize, int64(s.Bavail) * s.Bsize
}
