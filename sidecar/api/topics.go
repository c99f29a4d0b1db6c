package api

import (
	"context"
	"encoding/base64"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
	"unicode/utf8"

	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/valyala/fasthttp"

	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

func (s *Server) listTopics(c *call) error {
	ctx, cancel := s.callContext()
	defer cancel()
	topics, err := s.opt.Topics.Topics(ctx)
	if err != nil {
		return err
	}
	list := api.TopicList{Topics: make([]api.Topic, 0, len(topics))}
	for _, t := range topics {
		list.Topics = append(list.Topics, describe(t, nil, nil))
	}
	return c.answer(fasthttp.StatusOK, list)
}

func (s *Server) getTopic(c *call) error {
	ctx, cancel := s.callContext()
	defer cancel()
	t, err := s.opt.Topics.Refresh(ctx, c.args[0])
	if err != nil {
		return err
	}
	starts, ends, err := s.bounds(ctx, c.args[0])
	if err != nil {
		return err
	}
	out := describe(t, starts, ends)
	if configs, err := s.opt.Topics.TopicConfigs(ctx, c.args[0]); err == nil { // brokers may keep them to themselves
		out.Configs = configs.Set
	}
	return c.answer(fasthttp.StatusOK, out)
}

// bounds are the first offsets and the ends, without the partitions whose
// leader is away.
func (s *Server) bounds(ctx context.Context, topic string) (starts, ends map[int32]int64, err error) {
	var partial *upstream.PartialError
	starts, err = s.opt.Topics.StartOffsets(ctx, topic)
	if err != nil && !errors.As(err, &partial) {
		return nil, nil, err
	}
	ends, err = s.opt.Topics.EndOffsets(ctx, topic)
	if err != nil && !errors.As(err, &partial) {
		return nil, nil, err
	}
	return starts, ends, nil
}

// describe is a topic for people. Offsets that are not known are -1.
func describe(t upstream.Topic, starts, ends map[int32]int64) api.Topic {
	out := api.Topic{Topic: t.Name, UUID: t.UUID, Partitions: make([]api.TopicPartition, 0, len(t.Partitions))}
	for _, p := range t.Partitions {
		out.Replication = max(out.Replication, len(p.Replicas))
		out.Partitions = append(out.Partitions, api.TopicPartition{
			Partition: p.ID, Leader: p.Leader, Replicas: orEmpty(p.Replicas), ISR: orEmpty(p.ISR),
			Start: known(starts, p.ID), End: known(ends, p.ID),
		})
	}
	return out
}

func known(offsets map[int32]int64, partition int32) int64 {
	if o, ok := offsets[partition]; ok {
		return o
	}
	return -1
}

func orEmpty(ids []int32) []int32 {
	if ids == nil {
		return []int32{}
	}
	return ids
}

// putTopic creates a topic: 201. One that is there already with what was asked
// for is 200, with something else 409.
func (s *Server) putTopic(c *call) error {
	var spec api.TopicSpec
	if err := c.json(&spec, true); err != nil {
		return err
	}
	ctx, cancel := s.callContext()
	defer cancel()
	status := fasthttp.StatusCreated
	t, err := s.opt.Topics.CreateTopic(ctx, c.args[0], spec)
	if errors.Is(err, apiError(api.CodeTopicExists, "")) {
		status = fasthttp.StatusOK
		t, err = s.existing(ctx, c.args[0], spec)
	}
	if err != nil {
		return err
	}
	starts, ends := s.settledBounds(ctx, t)
	out := describe(t, starts, ends)
	if len(spec.Configs) > 0 {
		out.Configs = spec.Configs
	}
	return c.answer(status, out)
}

// existing is a topic that is there already; topic_exists says in what it
// differs from the one asked for.
func (s *Server) existing(ctx context.Context, name string, spec api.TopicSpec) (upstream.Topic, error) {
	t, err := s.opt.Topics.Refresh(ctx, name)
	if err != nil {
		return t, err
	}
	var configs upstream.Configs
	if len(spec.Configs) > 0 {
		if configs, err = s.opt.Topics.TopicConfigs(ctx, name); err != nil {
			return t, err
		}
	}
	if differs := differences(describe(t, nil, nil), configs.All, spec); len(differs) > 0 {
		return t, apiError(api.CodeTopicExists, fmt.Sprintf("topic %s exists already with %s", name, strings.Join(differs, ", ")))
	}
	return t, nil
}

// differences are where a topic is not what was asked for, each in words. What
// was not asked for does not matter. It is pure.
func differences(is api.Topic, configs map[string]string, spec api.TopicSpec) (differs []string) {
	if n := len(is.Partitions); spec.Partitions > 0 && int(spec.Partitions) != n {
		differs = append(differs, fmt.Sprintf("%d partitions (%d were asked for)", n, spec.Partitions))
	}
	if spec.Replication > 0 && int(spec.Replication) != is.Replication {
		differs = append(differs, fmt.Sprintf("%d replicas (%d were asked for)", is.Replication, spec.Replication))
	}
	for _, name := range slices.Sorted(maps.Keys(spec.Configs)) {
		switch have, told := configs[name]; {
		case !told:
			differs = append(differs, fmt.Sprintf("a %s that the brokers do not tell (%s was asked for)", name, spec.Configs[name]))
		case have != spec.Configs[name]:
			differs = append(differs, fmt.Sprintf("%s=%s (%s was asked for)", name, have, spec.Configs[name]))
		}
	}
	return differs
}

// boundsWait is how long an answer to PUT waits for the offsets of a topic that
// has just been made: leaders are announced a little before they serve.
const boundsWait = 2 * time.Second

// settledBounds are the topic's bounds, waited for a little.
func (s *Server) settledBounds(ctx context.Context, t upstream.Topic) (starts, ends map[int32]int64) {
	ctx, cancel := context.WithTimeout(ctx, boundsWait)
	defer cancel()
	for {
		now, then, err := s.bounds(ctx, t.Name)
		if err == nil {
			starts, ends = now, then
		}
		if len(starts) >= len(t.Partitions) && len(ends) >= len(t.Partitions) {
			return starts, ends
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return starts, ends
		}
	}
}

// Bounds of a peek.
const (
	defaultPeek  = 10
	maxPeek      = 1000
	maxPeekBytes = 8 << 20
)

// peek reads messages without a group: nothing is leased and nothing moves.
func (s *Server) peek(c *call) error {
	partition, err := strconv.ParseInt(c.args[1], 10, 32)
	if err != nil || partition < 0 || strconv.FormatInt(partition, 10) != c.args[1] {
		return bad("partition", c.args[1], "a number from 0, such as 12")
	}
	offset, err := c.integer("offset", -1, 0, 1<<62)
	if err != nil {
		return err
	}
	count, err := c.integer("max", defaultPeek, 1, maxPeek)
	if err != nil {
		return err
	}
	ctx, cancel := s.callContext()
	defer cancel()
	if ts, ok := c.option("ts"); ok {
		if offset >= 0 {
			return apiError(api.CodeBadRequest, "offset and ts are both given: use one")
		}
		at, err := timeOf(ts)
		if err != nil {
			return err
		}
		offsets, err := s.opt.Topics.OffsetsAt(ctx, c.args[0], at)
		var partial *upstream.PartialError
		if err != nil && !errors.As(err, &partial) {
			return err
		}
		o, ok := offsets[int32(partition)]
		switch {
		case ok:
			offset = o
		case partial != nil && partial.Partitions[int32(partition)] != nil:
			e := apiError(api.CodeBrokersUnavailable, partial.Error())
			e.RetryAfterMillis = 1000
			return e
		}
	}
	recs, next, end, err := s.opt.Topics.Peek(ctx, c.args[0], int32(partition), max(offset, 0), int(count), maxPeekBytes)
	out := api.Peeked{Messages: make([]api.Message, 0, len(recs)), Next: next, End: end}
	if err != nil {
		if len(recs) == 0 || !errors.Is(err, apiError(api.CodeCorruptRecord, "")) {
			return err
		}
		out.Stopped = asError(err)
	}
	for _, r := range recs {
		out.Messages = append(out.Messages, messageFrom(r))
	}
	return c.answer(fasthttp.StatusOK, out)
}

// timeOf reads Unix milliseconds or RFC 3339.
func timeOf(s string) (time.Time, error) {
	if ms, err := strconv.ParseInt(s, 10, 64); err == nil && ms >= 0 {
		return time.UnixMilli(ms), nil
	}
	t, err := time.Parse(time.RFC3339, s)
	if err != nil {
		return t, bad("ts", s, "milliseconds since 1970, or a time such as 2026-01-31T12:00:00Z")
	}
	return t, nil
}

// messageFrom shows a record: strings where it is UTF-8, base64 where not.
func messageFrom(r *kgo.Record) api.Message {
	m := api.Message{
		ID:    fmt.Sprintf("%s/%d/%d", r.Topic, r.Partition, r.Offset),
		Topic: r.Topic, Partition: r.Partition, Offset: r.Offset, Timestamp: r.Timestamp.UnixMilli(),
	}
	m.Key, m.Key64 = shown(r.Key)
	m.Value, m.Value64 = shown(r.Value)
	for _, h := range r.Headers {
		m.Headers = append(m.Headers, api.PairOf(h.Key, h.Value))
	}
	return m
}

func shown(b []byte) (text, coded *string) {
	if b == nil {
		return nil, nil
	}
	if utf8.Valid(b) {
		s := string(b)
		return &s, nil
	}
	s := base64.StdEncoding.EncodeToString(b)
	return nil, &s
}
