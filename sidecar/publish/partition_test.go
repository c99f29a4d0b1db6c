package publish

import (
	"encoding/hex"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// The vectors come from Kafka's own Java client: testdata/murmur2.txt says how.
func TestMurmur2IsKafkas(t *testing.T) {
	text, err := os.ReadFile("testdata/murmur2.txt")
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for line := range strings.Lines(string(text)) {
		words := strings.Fields(line)
		if words[0] == "#" {
			continue
		}
		n++
		key, err := hex.DecodeString(strings.TrimPrefix(words[0], "-"))
		if err != nil {
			t.Fatal(err)
		}
		if got := strconv.Itoa(int(int32(murmur2(key)))); got != words[1] {
			t.Errorf("murmur2(%x) = %s, Kafka has %s", key, got, words[1])
		}
		for i, count := range []int32{1, 4, 64, 1000} {
			if got := strconv.Itoa(int(PartitionOf(key, count))); got != words[2+i] {
				t.Errorf("key %x of %d partitions: %s, Kafka has %s", key, count, got, words[2+i])
			}
		}
	}
	if n < 30 {
		t.Errorf("only %d vectors", n)
	}
}

// Any key goes where the Kafka client's own default partitioner sends it.
func TestPartitionOfAgreesWithTheClient(t *testing.T) {
	theirs := kgo.StickyKeyPartitioner(nil).ForTopic("t")
	rng := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		key := make([]byte, rng.IntN(40))
		for i := range key {
			key[i] = byte(rng.Uint32())
		}
		n := 1 + rng.IntN(100)
		if got, want := PartitionOf(key, int32(n)), theirs.Partition(&kgo.Record{Key: key}, n); int(got) != want {
			t.Fatalf("key %x of %d partitions: %d, the client says %d", key, n, got, want)
		}
	}
}

func topicOf(leaders ...int32) upstream.Topic {
	t := upstream.Topic{Name: "t"}
	for i, l := range leaders {
		t.Partitions = append(t.Partitions, upstream.Partition{ID: int32(i), Leader: l})
	}
	return t
}

func TestChoose(t *testing.T) {
	partition := func(n int32) *int32 { return &n }
	key := []byte("foobar") // toPositive(-790332482) % 3 = 0x50E4FBBE % 3
	keyed := PartitionOf(key, 3)
	other := (keyed + 1) % 3
	awayFrom := func(p int32) upstream.Topic {
		top := topicOf(1, 1, 1)
		top.Partitions[p].Leader = -1
		return top
	}
	for name, c := range map[string]struct {
		topic upstream.Topic
		m     Message
		want  int32
		code  api.Code
	}{
		"explicit":                        {topicOf(1, 1, 1), Message{Partition: partition(2), Key: key}, 2, ""},
		"explicit, beyond the last":       {topicOf(1, 1, 1), Message{Partition: partition(3)}, 0, api.CodePartitionNotFound},
		"explicit, leader away":           {awayFrom(2), Message{Partition: partition(2)}, 0, api.CodeBrokersUnavailable},
		"keyed":                           {topicOf(1, 1, 1), Message{Key: key}, keyed, ""},
		"keyed, another's leader is away": {awayFrom(other), Message{Key: key}, keyed, ""},
		"keyed, its leader is away":       {awayFrom(keyed), Message{Key: key}, 0, api.CodeBrokersUnavailable},
		"an empty key is a key":           {topicOf(1, 1, 1), Message{Key: []byte{}}, PartitionOf(nil, 3), ""},
		"keyless passes over":             {topicOf(-1, -1, 7), Message{}, 2, ""},
		"keyless, none has a leader":      {topicOf(-1, -1), Message{}, 0, api.CodeBrokersUnavailable},
		"no partitions yet":               {topicOf(), Message{}, 0, api.CodeBrokersUnavailable},
	} {
		got, err := choose(&c.topic, c.topic.Partitions, &c.m, &run{}, time.Now())
		if c.code != "" {
			if err == nil || err.Code != c.code {
				t.Errorf("%s: error %v, want %s", name, err, c.code)
			}
			continue
		}
		if err != nil || got != c.want {
			t.Errorf("%s: partition %d, %v, want %d", name, got, err, c.want)
		}
	}
}

// Messages without a key reach all partitions evenly, in runs, at any rate, and
// however many come at a time: with batches of 1,000, a few milliseconds apart,
// every fourth partition got next to nothing as long as only turns counted.
func TestKeylessBalance(t *testing.T) {
	const partitions, messages = 64, 1_000_000
	leaders := make([]int32, partitions)
	topic := topicOf(leaders...)
	for name, c := range map[string]struct {
		gap     time.Duration // between requests
		request int           // messages of one
	}{
		"busy":          {time.Microsecond, 1},
		"idle":          {time.Second, 1},
		"busy batches":  {time.Millisecond, 1000},
		"idle batches":  {time.Second, 1000},
		"small batches": {6 * time.Millisecond, 7},
	} {
		counts := make([]int, partitions)
		var r run
		runs, last := 0, int32(-1)
		now := time.Unix(0, 0)
		for i := range messages {
			if i%c.request == 0 {
				now = now.Add(c.gap)
			}
			p, err := choose(&topic, topic.Partitions, &Message{Value: make([]byte, 200)}, &r, now)
			if err != nil {
				t.Fatal(err)
			}
			if p != last {
				runs++
			}
			last = p
			counts[p]++
		}
		for p, n := range counts {
			if mean := messages / partitions; n < mean*95/100 || n > mean*105/100 {
				t.Errorf("%s: partition %d has %d messages, the mean is %d", name, p, n, mean)
			}
		}
		if strings.HasPrefix(name, "busy") && messages/runs < 100 {
			t.Errorf("%s: %d runs of %d messages on average: batches stay small", name, runs, messages/runs)
		}
		if name == "idle" && runs != messages {
			t.Errorf("idle: %d runs: each message should go to the next partition", runs)
		}
	}
}

func TestRunStaysOffALostLeader(t *testing.T) {
	now := time.Unix(0, 0)
	var r run
	first, ok := r.next(topicOf(1, 1, 1).Partitions, 10, now)
	if !ok {
		t.Fatal("no partition")
	}
	gone := topicOf(1, 1, 1)
	gone.Partitions[first].Leader = -1
	for range 3000 {
		if again, ok := r.next(gone.Partitions, 10, now); !ok || again == first {
			t.Fatalf("went on at partition %d, whose leader is away", again)
		}
	}
	// When it is back, and when one is added, it is not flooded with what it
	// has missed.
	back := topicOf(1, 1, 1, 1)
	counts := make([]int, 4)
	for range 8 * runRecords {
		p, _ := r.next(back.Partitions, 10, now)
		counts[p]++
	}
	for p, n := range counts {
		if n < runRecords || n > 3*runRecords {
			t.Errorf("partition %d got %d of %d messages after it came: %v", p, n, 8*runRecords, counts)
		}
	}
}
