package main

import (
	"context"
	"errors"
	"fmt"
	"math"
	"os"
	"path/filepath"
	"strconv"
	"sync/atomic"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"golang.org/x/sys/unix"

	"sidestream/ops/bench/measure"
)

// topics counts the names that were given out.
var topics atomic.Int64

// admin runs f with an admin client.
func admin(ctx context.Context, s *measure.Process, f func(context.Context, *kadm.Client) error) error {
	cl, err := kgo.NewClient(kgo.SeedBrokers(s.Addr))
	if err != nil {
		return err
	}
	defer cl.Close()
	ctx, cancel := context.WithTimeout(ctx, 2*time.Minute)
	defer cancel()
	return f(ctx, kadm.NewClient(cl))
}

// createTopic makes a topic with a new name. The bare produce loop makes its
// own.
func createTopic(ctx context.Context, s *measure.Process, partitions int, synced bool) (string, error) {
	name := fmt.Sprintf("bench-%d-%dp", topics.Add(1), partitions)
	if s.Name == bareProduce {
		return name, nil
	}
	every := strconv.FormatInt(math.MaxInt64, 10) // Kafka's default: never by count
	if synced {
		every = "1"
	}
	return name, admin(ctx, s, func(ctx context.Context, adm *kadm.Client) error {
		_, err := adm.CreateTopic(ctx, int32(partitions), 1, map[string]*string{"flush.messages": &every}, name)
		if err != nil {
			return fmt.Errorf("creating a topic of %d partitions in %s: %w", partitions, s.Name, err)
		}
		return waitReadable(ctx, adm, name, partitions)
	})
}

// waitReadable waits until every partition has a leader that answers.
func waitReadable(ctx context.Context, adm *kadm.Client, topic string, partitions int) error {
	for {
		ends, err := adm.ListEndOffsets(ctx, topic)
		if err == nil && ends.Error() == nil && len(ends[topic]) == partitions {
			return nil
		}
		select {
		case <-ctx.Done():
			return fmt.Errorf("%s is not served: %w", topic, measure.FirstOf(err, ends.Error(), ctx.Err()))
		case <-time.After(5 * time.Millisecond):
		}
	}
}

// deleteTopic deletes a topic and waits until its files are gone, so that their
// removal is nobody else's load.
func deleteTopic(ctx context.Context, s *measure.Process, topic string) error {
	err := admin(ctx, s, func(ctx context.Context, adm *kadm.Client) error {
		resp, err := adm.DeleteTopics(ctx, topic)
		return errors.Join(err, resp.Error())
	})
	if err != nil {
		return fmt.Errorf("deleting %s in %s: %w", topic, s.Name, err)
	}
	for range 1000 {
		left, err := filepath.Glob(filepath.Join(s.Dir, topic+"-*"))
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
		time.Sleep(10 * time.Millisecond)
	}
	measure.Progress("%s still has files of %s after 10 s", s.Name, topic)
	return nil
}

// segments are the log files of a topic, by partition; one each.
func segments(s *measure.Process, topic string, partitions int) ([]string, error) {
	var out []string
	for p := range partitions {
		files, err := filepath.Glob(filepath.Join(s.Dir, fmt.Sprintf("%s-%d", topic, p), "*.log"))
		if err != nil || len(files) == 0 {
			return nil, fmt.Errorf("partition %d of %s has no files in %s: %w", p, topic, s.Dir, measure.FirstOf(err, os.ErrNotExist))
		}
		out = append(out, files...)
	}
	return out, nil
}

// cool has the system forget what it holds of the files in memory. What the
// disk's own host keeps cannot be known.
func cool(files []string) error {
	for _, name := range files {
		f, err := os.Open(name)
		if err != nil {
			return err
		}
		err = measure.FirstOf(f.Sync(), unix.Fadvise(int(f.Fd()), 0, 0, unix.FADV_DONTNEED))
		if err = errors.Join(err, f.Close()); err != nil {
			return err
		}
	}
	return nil
}
