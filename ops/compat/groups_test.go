package compat

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/IBM/sarama"
	"github.com/segmentio/kafka-go"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"
)

// subscriber is a client that tries to join a group; it returns its own words
// of why it cannot.
type subscriber struct {
	name      string
	subscribe func(ctx context.Context, broker, topic string) (string, error)
}

func (s subscriber) Name() string { return s.name }

var errServed = errors.New("the group was served, or kept waiting")

func subscribers(t *testing.T) []subscriber {
	all := []subscriber{
		{"franz-go", franzSubscribe}, {"sarama", saramaSubscribe}, {"kafka-go", segmentioSubscribe}, {"kcat", kcatSubscribe},
	}
	for _, w := range present(t, workers) {
		all = append(all, subscriber{w.name, func(ctx context.Context, broker, topic string) (string, error) {
			return w.ask(ctx, "subscribe", broker, topic)
		}})
	}
	return all
}

// reason is what the clients make of the broker's refusal: some pass on its
// text, some only have words of their own for the error or for the request
// that is not offered.
var reason = regexp.MustCompile(`(?i)sidecar|INVALID.?REQUEST|JOIN.?GROUP|UNSUPPORTED|not support|broker is too old|malformed by the client library or the message was sent to an incompatible broker`)

// Groups belong to the sidecar: a client that subscribes must be told at once,
// and not be left to hang.
func TestSubscribeIsRefusedWithAReason(t *testing.T) {
	broker := startBroker(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitEach)
	defer cancel()
	createTopic(ctx, t, broker, "t", 1)
	if err := (franz{}).Produce(ctx, broker, "t", "none", Records("x", "none", 3)); err != nil {
		t.Fatal(err)
	}
	for _, s := range subscribers(t) {
		t.Run(s.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limitEach)
			defer cancel()
			began := time.Now()
			words, err := s.subscribe(ctx, broker, "t")
			if err != nil {
				t.Fatal(err)
			}
			if !reason.MatchString(words) {
				t.Errorf("the reason is %q, which does not tell that groups are not served", words)
			}
			t.Logf("after %.1f s: %s", time.Since(began).Seconds(), words)
		})
	}
}

func franzSubscribe(ctx context.Context, broker, topic string) (string, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(broker), kgo.ConsumerGroup("compat-subscribed"), kgo.ConsumeTopics(topic))
	if err != nil {
		return "", err
	}
	defer client.Close()
	if err := client.PollFetches(ctx).Err(); err != nil && ctx.Err() == nil {
		return err.Error(), nil
	}
	return "", errServed
}

type nobody struct{}

func (nobody) Setup(sarama.ConsumerGroupSession) error   { return nil }
func (nobody) Cleanup(sarama.ConsumerGroupSession) error { return nil }
func (nobody) ConsumeClaim(sarama.ConsumerGroupSession, sarama.ConsumerGroupClaim) error {
	return nil
}

func saramaSubscribe(ctx context.Context, broker, topic string) (string, error) {
	group, err := sarama.NewConsumerGroup([]string{broker}, "compat-subscribed", sarama.NewConfig())
	if err != nil {
		return err.Error(), nil
	}
	defer func() { _ = group.Close() }()
	if err := group.Consume(ctx, []string{topic}, nobody{}); err != nil && ctx.Err() == nil {
		return err.Error(), nil
	}
	return "", errServed
}

func segmentioSubscribe(ctx context.Context, broker, topic string) (string, error) {
	words := make(chan string, 1)
	r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{broker}, Topic: topic, GroupID: "compat-subscribed", MaxAttempts: 1,
		ErrorLogger: kafka.LoggerFunc(func(format string, args ...any) {
			select {
			case words <- fmt.Sprintf(format, args...):
			default:
			}
		})})
	defer func() { _ = r.Close() }()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	read := make(chan error, 1)
	go func() {
		_, err := r.ReadMessage(ctx)
		read <- err
	}()
	select {
	case text := <-words: // it tries for ever, and tells the log alone
		cancel()
		<-read
		return text, nil
	case err := <-read:
		if err != nil && ctx.Err() == nil {
			return err.Error(), nil
		}
		return "", errServed
	}
}

func kcatSubscribe(ctx context.Context, broker, topic string) (string, error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(ctx, "kcat", "-b", broker, "-G", "compat-subscribed", topic)
	out, _ := cmd.CombinedOutput() // what it prints tells whether it was refused
	for line := range strings.Lines(string(out)) {
		if strings.Contains(line, "ERROR") {
			return strings.TrimSpace(line), nil
		}
	}
	return "", fmt.Errorf("%w: %s", errServed, out)
}

// A client that assigns itself partitions may keep its offsets with the
// cluster: what it commits, the metadata to the letter, is what another finds.
func TestCommittedOffsetsOfSimpleConsumers(t *testing.T) {
	broker := startBroker(t)
	ctx, cancel := context.WithTimeout(t.Context(), limitEach)
	defer cancel()
	if keys := offered(ctx, t, broker); !keys[kmsg.OffsetCommit] || !keys[kmsg.OffsetFetch] {
		t.Skip("this broker does not offer OffsetCommit and OffsetFetch")
	}
	createTopic(ctx, t, broker, "t", 1)
	if err := (franz{}).Produce(ctx, broker, "t", "none", Records("x", "none", 10)); err != nil {
		t.Fatal(err)
	}
	for _, w := range present(t, workers) {
		t.Run(w.name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limitEach)
			defer cancel()
			text, err := w.ask(ctx, "commit", broker, "t")
			if err != nil {
				t.Fatal(err)
			}
			t.Log(text)
		})
	}
}
