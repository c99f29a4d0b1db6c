package broker

import (
	"bufio"
	"bytes"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"

	"sidestream/broker/cluster"
	"sidestream/broker/disk"
)

// metadataFile describes the partition in its own folder, so that a cluster's metadata can be written again from what
// the brokers hold. Name and first two lines are Kafka's (PartitionMetadataFile, KIP-516); Kafka's tools ignore the rest.
const metadataFile = "partition.metadata"

// description is the contents of a metadata file.
type description struct {
	ID        UUID
	Topic     string
	Partition int32
	Count     int32 // partitions of the topic when this was written
	Epoch     int32 // leader epoch last led under
	Configs   map[string]string
}

func (d description) equal(o description) bool {
	return d.ID == o.ID && d.Topic == o.Topic && d.Partition == o.Partition && d.Count == o.Count && d.Epoch == o.Epoch &&
		maps.Equal(d.Configs, o.Configs)
}

// ledBefore tells whether the partition was led before, somewhere: the first time is at epoch 1 at most.
func (d description) ledBefore() bool { return d.Epoch > 1 }

func (d description) encode() []byte {
	var b bytes.Buffer
	fmt.Fprintf(&b, "version: 0\ntopic_id: %s\n", d.ID.Base64())
	fmt.Fprintf(&b, "uuid: %s\ntopic: %s\npartition: %d\ncount: %d\nleader_epoch: %d\n", d.ID, d.Topic, d.Partition, d.Count, d.Epoch)
	for _, k := range slices.Sorted(maps.Keys(d.Configs)) {
		fmt.Fprintf(&b, "config.%s: %s\n", k, strconv.Quote(d.Configs[k]))
	}
	return b.Bytes()
}

// parseDescription reads what encode wrote. Unknown lines are an error: a newer format must not be half understood.
func parseDescription(contents []byte) (description, error) {
	d := description{Configs: map[string]string{}}
	seen := map[string]bool{}
	lines := bufio.NewScanner(bytes.NewReader(contents))
	for n := 1; lines.Scan(); n++ {
		key, value, ok := strings.Cut(lines.Text(), ": ")
		if !ok {
			return d, fmt.Errorf("line %d: got %q: use \"key: value\"", n, lines.Text())
		}
		if err := d.set(key, value); err != nil {
			return d, fmt.Errorf("line %d: %s: %w", n, key, err)
		}
		seen[key] = true
	}
	if err := lines.Err(); err != nil {
		return d, err
	}
	for _, key := range []string{"version", "topic_id", "topic", "partition", "count", "leader_epoch"} {
		if !seen[key] {
			return d, fmt.Errorf("the line %q is missing", key)
		}
	}
	return d, nil
}

func (d *description) set(key, value string) (err error) {
	number := func(to *int32) error {
		n, err := strconv.ParseInt(value, 10, 32)
		*to = int32(n)
		return err
	}
	switch {
	case key == "version":
		if value != "0" {
			return fmt.Errorf("got %q: only 0 is known", value)
		}
	case key == "topic_id":
		d.ID, err = cluster.ParseBase64(value)
	case key == "uuid": // for people; topic_id says the same
	case key == "topic":
		d.Topic, err = value, checkTopicName(value)
	case key == "partition":
		err = number(&d.Partition)
	case key == "count":
		err = number(&d.Count)
	case key == "leader_epoch":
		err = number(&d.Epoch)
	case strings.HasPrefix(key, "config."):
		d.Configs[strings.TrimPrefix(key, "config.")], err = strconv.Unquote(value)
	default:
		err = fmt.Errorf("unknown key")
	}
	return err
}

// writeDescription replaces the metadata file of a partition's folder, durably and as a whole.
func writeDescription(fs disk.FS, dir string, d description) error {
	return disk.WriteFileAtomic(fs, dir, dir+"/"+metadataFile, d.encode())
}

// readDescription reads it.
func readDescription(fs disk.FS, dir string) (description, error) {
	contents, err := disk.ReadFile(fs, dir+"/"+metadataFile)
	if err != nil {
		return description{}, err
	}
	d, err := parseDescription(contents)
	if err != nil {
		return d, fmt.Errorf("%s/%s: %w", dir, metadataFile, err)
	}
	return d, nil
}
