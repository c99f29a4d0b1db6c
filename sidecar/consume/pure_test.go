package consume

import (
	"encoding/base64"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
	"pgregory.net/rapid"

	"sidestream/discovery"
	"sidestream/sdk/api"
)

func (r receipt) encode(group, topic string) string {
	return string(r.appendTo(nil, group, topic, false))
}

func TestReceiptRoundTrip(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := receipt{
			generation: rapid.Uint64().Draw(t, "generation"),
			seekEpoch:  rapid.Uint64().Draw(t, "epoch"),
			lease:      rapid.Uint64().Draw(t, "lease"),
			partition:  rapid.Int32Min(0).Draw(t, "partition"),
			offset:     rapid.Int64Min(0).Draw(t, "offset"),
		}
		text := r.encode("g", "t")
		got, err := decodeReceipt(text, "g", "t")
		if err != nil || got != r {
			t.Fatalf("%+v became %+v, %v", r, got, err)
		}
		if _, err := decodeReceipt(text, "gt", ""); err == nil {
			t.Fatal("read as another group's")
		}
		// One changed bit anywhere is noticed.
		b, err := base64.RawURLEncoding.DecodeString(text)
		if err != nil {
			t.Fatal(err)
		}
		bit := rapid.IntRange(0, 8*len(b)-1).Draw(t, "bit")
		b[bit/8] ^= 1 << (bit % 8)
		if got, err := decodeReceipt(base64.RawURLEncoding.EncodeToString(b), "g", "t"); err == nil {
			t.Fatalf("a changed receipt was read as %+v", got)
		}
	})
}

func FuzzReceipt(f *testing.F) {
	f.Add(receipt{generation: 1, lease: 1}.encode("g", "t"))
	f.Add("")
	f.Add("AQ")
	f.Fuzz(func(t *testing.T, text string) {
		r, err := decodeReceipt(text, "g", "t")
		if err == nil && (r.partition < 0 || r.offset < 0) {
			t.Fatalf("%q became %+v", text, r)
		}
	})
}

func TestMessageOf(t *testing.T) {
	at := time.UnixMilli(1234)
	m := MessageOf(&kgo.Record{
		Topic: "t", Partition: 3, Offset: 9, Timestamp: at, Key: []byte{0xff}, Value: []byte("a\x00ü"),
		Headers: []kgo.RecordHeader{{Key: "X-Foo", Value: []byte("1")}, {Key: "X-Foo", Value: []byte{0xfe}}, {Key: "n"}},
	})
	if m.ID != "t/3/9" || m.Timestamp != 1234 || m.Key != nil || *m.Key64 != "/w==" || *m.Value != "a\x00ü" || m.Value64 != nil {
		t.Fatalf("%+v", m)
	}
	if len(m.Headers) != 3 || *m.Headers[0].Value != "1" || *m.Headers[1].Value64 != "/g==" || m.Headers[2].Value != nil {
		t.Fatalf("%+v", m.Headers)
	}
	m = MessageOf(&kgo.Record{Topic: "t", Key: []byte{}, Value: nil})
	if m.Value != nil || m.Value64 != nil || m.Key == nil || *m.Key != "" {
		t.Fatalf("tombstone with an empty key: %+v", m)
	}
}

func TestConfigValidate(t *testing.T) {
	if err := DefaultConfig().Validate(); err != nil {
		t.Fatal(err)
	}
	for path, change := range map[string]func(*Config){
		"lease":         func(c *Config) { c.Lease = -time.Second },
		"fetch_wait":    func(c *Config) { c.FetchWait = time.Minute },
		"pull_max":      func(c *Config) { c.PullMax = 0 },
		"parallel":      func(c *Config) { c.Parallel = 0 },
		"process_bytes": func(c *Config) { c.ProcessBytes = 1 },
	} {
		c := DefaultConfig()
		change(&c)
		if err := c.Validate(); err == nil || !strings.HasPrefix(err.Error(), path+": got ") || !strings.Contains(err.Error(), ": use ") {
			t.Errorf("%s: %v", path, err)
		}
	}
}

func TestTopicID(t *testing.T) {
	id := topicID("00112233-4455-6677-8899-aAbBcCdDeEfF")
	if id[0] != 0 || id[1] != 0x11 || id[10] != 0xaa || id[15] != 0xff {
		t.Fatalf("%x", id)
	}
	for _, bad := range []string{"", "xyz", "00112233", strings.Repeat("0", 33)} {
		if topicID(bad) != [16]byte{} {
			t.Errorf("%q has an id", bad)
		}
	}
}

func TestMergeConfigKeepsWhatIsNotAsked(t *testing.T) {
	have := discovery.GroupConfig{Order: "partition", LeaseMillis: 5000, Exclusive: "strict", From: "latest", Created: "c", Writer: "w"}
	got, err := mergeConfig(have, api.GroupConfig{})
	if err != nil || got != have {
		t.Fatalf("%+v %v", got, err)
	}
	got, err = mergeConfig(have, api.GroupConfig{From: "2026-01-31T09:00:00+01:00"})
	if err != nil || got.From != "2026-01-31T08:00:00Z" {
		t.Fatalf("%+v %v", got, err)
	}
	if contradicts(got, "2026-01-31T08:00:00Z") || !contradicts(got, "earliest") || contradicts(got, "") {
		t.Fatal("contradicts")
	}
}

func TestBackOff(t *testing.T) {
	for failures := 0; failures < 100; failures++ {
		d := backOff(failures, 50*time.Millisecond, 2*time.Second)
		if d < 25*time.Millisecond || d > 2*time.Second {
			t.Fatalf("%d failures: %s", failures, d)
		}
	}
}

func TestAskFor(t *testing.T) {
	for _, c := range []struct {
		room, limit int
		growth      float64
		want        int
	}{
		{4 << 20, 1 << 20, 0, firstFetch}, // not known yet
		{1 << 10, 1 << 20, 0, 1 << 10},
		{4 << 20, 1 << 20, 1.1, 1 << 20},
		{4 << 20, 1 << 20, 40, 104857},
		{4 << 20, 1 << 20, 0.5, 1 << 20},
		{4 << 10, 1 << 20, 100, 1 << 10},
	} {
		if got := askFor(c.room, c.limit, c.growth); got != c.want {
			t.Errorf("%d room, limit %d, growth %g: %d, want %d", c.room, c.limit, c.growth, got, c.want)
		}
	}
}
