package compat

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kgo"
)

// TestUpstreamKafka lets sidecars work against Apache Kafka's broker instead of
// ours.
func TestUpstreamKafka(t *testing.T) {
	k := startKafka(t)
	consul := startConsul(t)
	bootstrap := "SIDESTREAM_KAFKA_BOOTSTRAP=" + k.plain
	s := startSidecar(t, "one", consul, bootstrap)

	t.Run("no topic", func(t *testing.T) { noTopic(t, s.in(t)) })
	t.Run("publish and pull", func(t *testing.T) { publishAndPull(t, s.in(t), "orders") })
	t.Run("seek", func(t *testing.T) { seek(t, s.in(t), "orders") })
	t.Run("nack", func(t *testing.T) { nack(t, s.in(t)) })
	t.Run("order of keys", func(t *testing.T) { orderOfKeys(t, s.in(t)) })
	t.Run("dead letter", func(t *testing.T) { deadLetter(t, s.in(t)) })
	t.Run("transactions", func(t *testing.T) { transactions(t, s.in(t), k) })
	t.Run("compacted", func(t *testing.T) { compacted(t, s.in(t), k) })
	t.Run("takeover", func(t *testing.T) {
		takeover(t, startSidecar(t, "two", consul, bootstrap), startSidecar(t, "three", consul, bootstrap))
	})
	t.Run("found as a service", func(t *testing.T) {
		register(t, consul, "kafka-of-sales", k.plain)
		publishAndPull(t, startSidecar(t, "finder", consul, "SIDESTREAM_KAFKA_SERVICE=kafka-of-sales"), "found")
	})
	t.Run("tls", func(t *testing.T) { overTLS(t, k, consul) })
	t.Run("scram", func(t *testing.T) { overSCRAM(t, k, consul) })
}

// refused checks that a call fails with a code and says why, at once.
func refused(t *testing.T, err error, status int, code, says string, took time.Duration) {
	t.Helper()
	var r *httpRefusal
	if !errors.As(err, &r) || r.status != status || r.Code != code || !strings.Contains(r.Message, says) {
		t.Errorf("got %v, want %d %s that says %q", err, status, code, says)
	}
	if took > 10*time.Second { // a wait would be longer than that
		t.Errorf("the refusal took %s, want it at once", took)
	}
}

// noTopic: neither side makes a topic by being asked for it.
func noTopic(t *testing.T, s sidecar) {
	start := time.Now()
	err := call(t.Context(), "POST", s.url+"/topics/nowhere", []byte("x"), nil)
	refused(t, err, 404, "topic_not_found", "does not exist", time.Since(start))
	start = time.Now()
	err = call(t.Context(), "POST", s.url+"/groups/g/topics/nowhere/pull?wait=20s", nil, nil)
	refused(t, err, 404, "topic_not_found", "does not exist", time.Since(start))
}

// publishAndPull makes a topic, fills it in each way and takes all of it.
func publishAndPull(t *testing.T, s sidecar, topic string) {
	s.do("PUT", "/topics/"+topic, map[string]any{"partitions": 4}, nil)
	s.publish(topic, "", "single")
	s.publish(topic, "42", "keyed")
	var batch string
	for i := range 100 {
		batch += fmt.Sprintf("{\"value\":\"b%d\",\"key\":\"k%d\"}\n", i, i%10)
	}
	var written struct{ Written, Failed int }
	s.do("POST", "/topics/"+topic+"/batch", []byte(batch), &written)
	if written.Written != 100 || written.Failed != 0 {
		t.Fatalf("of a batch of 100 messages %d are written, %d failed", written.Written, written.Failed)
	}
	wholeTopic(t, s.gather("g", topic, 102))
	s.settled("g", topic, 4)
}

// wholeTopic checks what publishAndPull wrote.
func wholeTopic(t *testing.T, messages []message) {
	t.Helper()
	seen, last := map[string]bool{}, map[string]int{}
	for _, m := range messages {
		if seen[m.text()] {
			t.Errorf("%s comes twice", m.text())
		}
		seen[m.text()] = true
		var n int
		if _, err := fmt.Sscanf(m.text(), "b%d", &n); err == nil {
			if before, ok := last[m.Key]; ok && n < before {
				t.Errorf("of key %s b%d comes after b%d", m.Key, n, before)
			}
			last[m.Key] = n
		}
	}
	if len(seen) != 102 || !seen["single"] || !seen["keyed"] {
		t.Errorf("%d messages of 102 came", len(seen))
	}
}

// seek takes the topic of publishAndPull again, then the end of a partition.
func seek(t *testing.T, s sidecar, topic string) {
	s.do("PUT", "/groups/g/topics/"+topic+"/offsets", map[string]any{"to": "earliest"}, nil)
	all := s.gather("g", topic, 102)
	wholeTopic(t, all)
	at := all[len(all)-1]
	s.do("PUT", "/groups/g/topics/"+topic+"/offsets", map[string]any{"offsets": map[string]int64{fmt.Sprint(at.Partition): at.Offset}}, nil)
	if got := texts(s.gather("g", topic, 1)); !slices.Equal(got, []string{at.text()}) {
		t.Errorf("after a seek to the last offset of a partition %q came, want %q", got, at.text())
	}
	s.settled("g", topic, 4)
}

// nack: what failed comes again before what follows it, by a nack as by the
// end of a lease.
func nack(t *testing.T, s sidecar) {
	const topic = "nacks"
	s.do("PUT", "/topics/"+topic, map[string]any{"partitions": 1}, nil)
	for _, value := range []string{"a", "b", "c"} {
		s.publish(topic, "", value)
	}
	first := s.next("g", topic, "max=3")
	s.ack("g", topic, first[0])
	s.nack("g", topic, first[1])
	second := s.next("g", topic, "max=3&lease=300ms")
	if got := texts(second); !slices.Equal(got, []string{"b", "c"}) || second[0].Attempt != 2 {
		t.Errorf("after a nack of b came %q, b at attempt %d, want b at its second and c", got, second[0].Attempt)
	}
	third := s.next("g", topic, "max=1") // not before the lease's end
	if third[0].text() != "b" || third[0].Attempt != 3 {
		t.Errorf("after the lease came %q at attempt %d, want b at its third", third[0].text(), third[0].Attempt)
	}
	s.ack("g", topic, third...)
	if got := texts(s.gather("g", topic, 1)); !slices.Equal(got, []string{"c"}) {
		t.Errorf("behind b %q came, want c", got)
	}
	s.settled("g", topic, 1)
}

// orderOfKeys: a message that is out holds up its own key and no other.
func orderOfKeys(t *testing.T, s sidecar) {
	const topic, group = "keys", "by-key"
	s.do("PUT", "/topics/"+topic, map[string]any{"partitions": 1}, nil)
	s.do("PUT", "/groups/"+group, map[string]any{"order": "key"}, nil)
	s.publish(topic, "a", "a1")
	s.publish(topic, "a", "a2")
	s.publish(topic, "b", "b1")
	slow := s.next(group, topic, "max=1")
	if got := texts(slow); !slices.Equal(got, []string{"a1"}) {
		t.Fatalf("%q came first, want a1", got)
	}
	other := s.next(group, topic, "max=10")
	if got := texts(other); !slices.Equal(got, []string{"b1"}) {
		t.Errorf("while a1 is out %q came, want b1", got)
	}
	s.ack(group, topic, other...)
	s.nack(group, topic, slow...)
	if got := texts(s.gather(group, topic, 2)); !slices.Equal(got, []string{"a1", "a2"}) {
		t.Errorf("after a nack of a1 %q came, want a1 and a2", got)
	}
	s.settled(group, topic, 1)
}

// deadLetter gives a message up and brings it back. The sidecar makes the topic
// of dead letters itself.
func deadLetter(t *testing.T, s sidecar) {
	const topic, group = "payments", "payers"
	s.do("PUT", "/topics/"+topic, map[string]any{"partitions": 1}, nil)
	s.do("PUT", "/groups/"+group, map[string]any{"max_attempts": 2}, nil)
	s.publish(topic, "k", "bad")
	s.publish(topic, "k", "good")
	for range 2 {
		got := s.next(group, topic, "max=1")
		if got[0].text() != "bad" {
			t.Fatalf("%q came, want bad until it is given up", got[0].text())
		}
		s.nack(group, topic, got...)
	}
	if got := texts(s.gather(group, topic, 1)); !slices.Equal(got, []string{"good"}) {
		t.Errorf("behind the message that was given up %q came, want good", got)
	}
	s.settled(group, topic, 1)
	var dead struct {
		Topic   string
		Letters []struct {
			Reason, Error string
			Offset        int64
		}
	}
	s.do("GET", "/groups/"+group+"/topics/"+topic+"/dead", nil, &dead)
	if len(dead.Letters) != 1 || dead.Topic != "dead.payers" || dead.Letters[0].Reason != "max_attempts" || dead.Letters[0].Error != "no stock" {
		t.Errorf("the dead letters are %+v, want one of max_attempts", dead)
	}
	var back struct{ Redriven int }
	s.do("POST", "/groups/"+group+"/topics/"+topic+"/dead/redrive", nil, &back)
	if got := texts(s.gather(group, topic, 1)); back.Redriven != 1 || !slices.Equal(got, []string{"bad"}) {
		t.Errorf("the redrive of %d letters brought %q, want bad", back.Redriven, got)
	}
}

// transactions: what was aborted is never delivered, what is open holds up what
// follows it, and neither leaves a lag behind.
func transactions(t *testing.T, s sidecar, k *apache) {
	const topic = "transactions"
	k.create(t, topic, 1, nil)
	client, err := kgo.NewClient(kgo.SeedBrokers(k.plain), kgo.TransactionalID("compat"), kgo.DefaultProduceTopic(topic))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	begin := func(values ...string) {
		t.Helper()
		if err := client.BeginTransaction(); err != nil {
			t.Fatal(err)
		}
		for _, value := range values {
			if err := client.ProduceSync(t.Context(), kgo.StringRecord(value)).FirstErr(); err != nil {
				t.Fatal(err)
			}
		}
	}
	end := func(how kgo.TransactionEndTry) {
		t.Helper()
		ctx, cancel := context.WithTimeout(t.Context(), limitStart)
		defer cancel()
		if err := client.EndTransaction(ctx, how); err != nil {
			t.Fatal(err)
		}
	}
	begin("aborted first")
	end(kgo.TryAbort)
	begin("committed 1", "committed 2")
	end(kgo.TryCommit)
	begin("aborted 1", "aborted 2")
	end(kgo.TryAbort)
	s.publish(topic, "", "plain")
	begin("aborted last")
	if got := texts(s.gather("g", topic, 3)); !slices.Equal(got, []string{"committed 1", "committed 2", "plain"}) {
		t.Errorf("%q came, want what was committed and what is of no transaction", got)
	}
	s.publish(topic, "", "behind an open transaction")
	if got := s.pull("g", topic, ""); len(got.Messages) > 0 || got.Reason != "at_end" {
		t.Errorf("%q came (%s) while a transaction before it is open", texts(got.Messages), got.Reason)
	}
	s.settled("g", topic, 1) // what is hidden is no lag
	end(kgo.TryAbort)
	if got := texts(s.gather("g", topic, 1)); !slices.Equal(got, []string{"behind an open transaction"}) {
		t.Errorf("after the abort %q came", got)
	}
	begin("aborted at the end")
	end(kgo.TryAbort)
	if got := texts(s.drain("g", topic)); len(got) > 0 {
		t.Errorf("%q came, which was aborted", got)
	}
	s.settled("g", topic, 1)
}

// compacted: offsets that compaction took away count as done.
func compacted(t *testing.T, s sidecar, k *apache) {
	const topic, keys, rounds = "compacted", 5, 20
	config := func(v string) *string { return &v }
	k.create(t, topic, 1, map[string]*string{"cleanup.policy": config("compact"), "segment.ms": config("100"),
		"min.cleanable.dirty.ratio": config("0.01"), "delete.retention.ms": config("3600000")})
	latest := map[string]string{}
	for round := range rounds {
		for key := range keys {
			name, value := fmt.Sprint("k", key), fmt.Sprintf("k%d at round %d", key, round)
			s.publish(topic, name, value)
			latest[name] = value
		}
	}
	k.compacted(t, s, topic, keys*rounds/2)
	latest["roll"] = "roll"
	got := s.drain("g", topic)
	if len(got) > keys*rounds/2 {
		t.Errorf("%d messages came, want fewer after compaction", len(got))
	}
	for i, m := range got {
		if i > 0 && m.Offset <= got[i-1].Offset {
			t.Errorf("offset %d comes after %d", m.Offset, got[i-1].Offset)
		}
		if m.text() == latest[m.Key] {
			delete(latest, m.Key)
		}
	}
	if len(latest) > 0 {
		t.Errorf("the last messages of some keys did not come: %v", latest)
	}
	s.settled("g", topic, 1)
}

// takeover: what a sidecar held that was killed is delivered by another, and
// what it had acknowledged is not.
func takeover(t *testing.T, a, b sidecar) {
	const topic, group, count = "handed-over", "two-sidecars", 200
	a.do("PUT", "/topics/"+topic, map[string]any{"partitions": 4}, nil)
	for i := range count / 2 {
		a.publish(topic, "", fmt.Sprint("m", i))
	}
	done := map[string]bool{}
	for len(done) < count/2 {
		got := a.next(group, topic, "max=30")
		a.ack(group, topic, got...)
		for _, m := range got {
			done[m.text()] = true
		}
	}
	waitFor(t, "both sidecars to own two partitions", func() bool {
		a.pull(group, topic, "max=1") // both must go on asking to be members
		b.pull(group, topic, "max=1")
		owned := map[string]int{}
		var g struct{ Partitions []struct{ Owner string } }
		b.do("GET", "/groups/"+group, nil, &g)
		for _, p := range g.Partitions {
			owned[p.Owner]++
		}
		return owned["two"] == 2 && owned["three"] == 2
	})
	for i := count / 2; i < count; i++ {
		b.publish(topic, fmt.Sprint("key", i), fmt.Sprint("m", i))
	}
	lost := a.next(group, topic, "max=10&lease=1h") // its answer will never come
	a.kill()
	for _, m := range lost {
		if done[m.text()] {
			t.Errorf("%s comes again, which was acknowledged", m.text())
		}
	}
	got := b.gather(group, topic, count/2)
	for _, m := range got {
		if done[m.text()] {
			t.Errorf("%s comes again after the takeover, which was acknowledged", m.text())
		}
		done[m.text()] = true
	}
	if len(done) != count {
		t.Errorf("%d messages of %d came", len(done), count)
	}
	b.settled(group, topic, 4)
}

func texts(messages []message) []string {
	var all []string
	for _, m := range messages {
		all = append(all, m.text())
	}
	return all
}

// waitFor asks until it is so: nothing announces it.
func waitFor(t *testing.T, what string, so func() bool) {
	t.Helper()
	for end := time.Now().Add(limitStart); !so(); time.Sleep(100 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("waited %s for %s", limitStart, what)
		}
	}
}
