package broker

import (
	"errors"
	"fmt"
	"io/fs"

	"sidestream/broker/disk"
)

// HeldIn lists what partitions a data folder and log directories hold by their descriptions, and opens nothing: of each
// Held only Topic, ID, Partition, Count, Configs and LeaderEpoch are filled in. A folder that is not there holds nothing.
// A description that cannot be read is an error.
func HeldIn(fsys disk.FS, dirs ...string) ([]Held, error) {
	var list []Held
	for _, dir := range dirs {
		held, err := heldIn(fsys, dir)
		if err != nil {
			return nil, err
		}
		list = append(list, held...)
	}
	return list, nil
}

func heldIn(fsys disk.FS, dir string) ([]Held, error) {
	entries, err := fsys.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("cannot read %s: %w", dir, err)
	}
	var list []Held
	for _, e := range entries {
		if !e.IsDir() || isDeleting(e.Name()) {
			continue
		}
		d, err := readDescription(fsys, dir+"/"+e.Name())
		if errors.Is(err, fs.ErrNotExist) {
			continue
		}
		if err != nil {
			return nil, err
		}
		list = append(list, Held{Topic: d.Topic, ID: d.ID, Partition: d.Partition, Count: d.Count, Configs: d.Configs, LeaderEpoch: d.Epoch})
	}
	return list, nil
}
