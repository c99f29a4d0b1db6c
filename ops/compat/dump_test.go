package compat

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"sort"
	"strconv"
	"strings"
	"testing"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
)

// Kafka's dump tool reads our files: every batch of every codec in several
// segments, the indexes, and the snapshots of idempotent producers. What it
// finds wrong it only prints, so its words are looked at.
func TestDumpLogSegments(t *testing.T) {
	needJava(t, "kafka4")
	server := startServer(t)
	ctx, cancel := context.WithTimeout(t.Context(), 2*limitEach)
	defer cancel()
	const topic, records = "dumped", 3000
	produceSegments(ctx, t, server.broker, topic, records)
	server.stop()

	folder := findFolder(t, server.dir, topic+"-0")
	logs := glob(t, folder, "*.log")
	if len(logs) < 3 {
		t.Fatalf("%d segments, want several: %v", len(logs), logs)
	}

	t.Run("log", func(t *testing.T) {
		out := dump(ctx, t, logs, "--deep-iteration", "--print-data-log")
		clean(t, beforeFirst.ReplaceAllString(out, ""))
		next := 0
		for _, m := range regexp.MustCompile(`(?m)^\| offset: (\d+) `).FindAllStringSubmatch(out, -1) {
			if offset, _ := strconv.Atoi(m[1]); offset != next {
				t.Fatalf("record at offset %d, want %d", offset, next)
			}
			next++
		}
		if next != records {
			t.Errorf("%d records, want %d", next, records)
		}
		for _, codec := range Codecs {
			if !strings.Contains(out, "compresscodec: "+codec) {
				t.Errorf("no batch with compresscodec: %s", codec)
			}
		}
		batches, valid := strings.Count(out, "baseOffset: "), strings.Count(out, "isvalid: true")
		if batches == 0 || batches != valid {
			t.Errorf("%d of %d batches are valid", valid, batches)
		}
		t.Logf("%d segments, %d batches, %d records", len(logs), batches, next)
	})
	for _, kind := range []string{"index", "timeindex"} {
		files := glob(t, folder, "*."+kind)
		if len(files) < 3 {
			t.Errorf("%d files of kind %s, want one a closed segment", len(files), kind)
			continue
		}
		t.Run(kind, func(t *testing.T) {
			out := dump(ctx, t, files, "--index-sanity-check")
			if got := strings.Count(out, "passed sanity check."); got != len(files) {
				t.Errorf("%d of %d passed the sanity check:\n%s", got, len(files), out)
			}
			clean(t, dump(ctx, t, files, "--verify-index-only"))
			clean(t, dump(ctx, t, files))
		})
	}
	t.Run("snapshot", func(t *testing.T) {
		files := glob(t, folder, "*.snapshot")
		if len(files) == 0 {
			t.Fatal("no snapshot of producers after a clean stop")
		}
		out := dump(ctx, t, files)
		clean(t, out)
		if !strings.Contains(out, "producerId: ") || !strings.Contains(out, "lastOffset: "+strconv.Itoa(records-1)) {
			t.Errorf("no producer with the last offset %d:\n%s", records-1, out)
		}
	})
}

// produceSegments fills a topic of one partition with batches of every codec
// by idempotent producers, one record after another's batch so that there are
// enough for the indexes.
func produceSegments(ctx context.Context, t *testing.T, broker, topic string, records int) {
	t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(broker))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	size, interval := "65536", "2048"
	_, err = kadm.NewClient(client).CreateTopic(ctx, 1, 1, map[string]*string{"segment.bytes": &size, "index.interval.bytes": &interval}, topic)
	if err != nil {
		t.Fatal(err)
	}
	left := Records("dump", "", records)
	for len(left) > 0 {
		for _, codec := range Codecs {
			n := min(50, len(left))
			if err := (franz{}).Produce(ctx, broker, topic, codec, left[:n]); err != nil {
				t.Fatal(err)
			}
			left = left[n:]
			if n == 0 {
				return
			}
		}
	}
}

func dump(ctx context.Context, t *testing.T, files []string, args ...string) string {
	t.Helper()
	out, err := tool(ctx, "", "DumpLogSegments", append(args, "--files", strings.Join(files, ","))...)
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	return out
}

// complaint is what the tool prints of a file that it finds wrong.
var complaint = regexp.MustCompile(`(?i)mismatch|non-consecutive|non-secutive|out of order|isvalid: false|invalid|exception|bytes of garbage|found`)

// beforeFirst is what the tool (4.4.0) prints of every segment but that at
// offset 0: it takes -1 for the offset before the first record.
var beforeFirst = regexp.MustCompile(`(?m)^Non-consecutive offsets in .*/0*(\d+)\.log\n +-1 is followed by (\d+)\n`)

// clean fails where the tool has found something.
func clean(t *testing.T, out string) {
	t.Helper()
	if at := complaint.FindStringIndex(out); at != nil {
		t.Errorf("the tool complains: %s", out[max(0, at[0]-200):min(len(out), at[0]+500)])
	}
}

func glob(t *testing.T, folder, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(folder, pattern))
	if err != nil {
		t.Fatal(err)
	}
	sort.Strings(files)
	return files
}

var errFound = errors.New("found")

func findFolder(t *testing.T, root, name string) string {
	t.Helper()
	folder := ""
	err := filepath.WalkDir(root, func(path string, entry os.DirEntry, err error) error {
		if err == nil && entry.IsDir() && entry.Name() == name {
			folder = path
			return errFound
		}
		return err
	})
	if !errors.Is(err, errFound) {
		t.Fatalf("no folder %s below %s: %v", name, root, err)
	}
	return folder
}
