package spool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"sync"
	"time"

	"sidestream/broker/disk"
	"sidestream/sdk/api"
	"sidestream/sidecar/upstream"
)

// memory is what is remembered of topics on disk, so that events are accepted
// for them while no broker answers.
type memory struct {
	fsys disk.FS
	dir  string
	save turn // one writer of the file

	// mu guards what follows.
	mu     sync.Mutex
	topics map[string]*known
	names  []string // by number
	failed time.Time
	used   map[string]struct{} // topics that the brokers took messages for, to be looked at
	looks  bool                // a goroutine looks at them
}

// known is a topic as it was last seen.
type known struct {
	Number     uint32 `json:"number"` // for ever this name's
	Name       string `json:"name"`
	UUID       string `json:"uuid,omitempty"`
	Partitions int32  `json:"partitions"`

	looked time.Time // when it was last seen so
}

const topicsName = "topics.json"

// errMemoryLost says that the file cannot be read, so that nothing is remembered.
var errMemoryLost = errors.New("the topics are forgotten")

func openMemory(fsys disk.FS, dir string) (*memory, error) {
	m := &memory{fsys: fsys, dir: dir, save: make(turn, 1), topics: map[string]*known{}, used: map[string]struct{}{}}
	b, err := disk.ReadFile(fsys, dir+"/"+topicsName)
	if errors.Is(err, fs.ErrNotExist) {
		return m, nil
	}
	if err != nil {
		return nil, err
	}
	var list []known
	if err := json.Unmarshal(b, &list); err != nil {
		return m, fmt.Errorf("%w: %s: %w", errMemoryLost, topicsName, err)
	}
	for i := range list {
		if int(list[i].Number) != i {
			clear(m.topics)
			m.names = nil
			return m, fmt.Errorf("%w: %s: topic %s has number %d, want %d", errMemoryLost, topicsName, list[i].Name, list[i].Number, i)
		}
		m.topics[list[i].Name] = &list[i]
		m.names = append(m.names, list[i].Name)
	}
	return m, nil
}

// get is what is remembered.
func (m *memory) get(name string) (known, bool) {
	m.mu.Lock()
	defer m.mu.Unlock()
	k, ok := m.topics[name]
	if !ok {
		return known{}, false
	}
	return *k, true
}

// name is that of a number.
func (m *memory) name(number uint32) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	if int(number) < len(m.names) {
		return m.names[number]
	}
	return ""
}

// see remembers a topic, durably when anything of it is new.
func (m *memory) see(t upstream.Topic) (known, error) {
	err := m.seeAll([]upstream.Topic{t})
	k, _ := m.get(t.Name)
	k.Name, k.UUID, k.Partitions = t.Name, t.UUID, int32(len(t.Partitions)) // even if the disk did not take it
	return k, err
}

// seeAll is see for several, which are written down together.
func (m *memory) seeAll(topics []upstream.Topic) error {
	now := time.Now()
	if !m.anyNew(topics, now) {
		return nil
	}
	m.save.take()
	defer m.save.leave()
	m.mu.Lock()
	list := make([]known, len(m.names), len(m.names)+len(topics))
	where := make(map[string]int, cap(list))
	for i, name := range m.names {
		list[i] = *m.topics[name]
		where[name] = i
	}
	m.mu.Unlock()
	for _, t := range topics {
		i, ok := where[t.Name]
		if !ok {
			i = len(list)
			where[t.Name] = i
			list = append(list, known{Number: uint32(i), Name: t.Name})
		}
		list[i].UUID, list[i].Partitions = t.UUID, int32(len(t.Partitions))
	}
	b, err := json.Marshal(list)
	if err == nil {
		err = disk.WriteFileAtomic(m.fsys, m.dir, m.dir+"/"+topicsName, b)
	}
	if err != nil {
		return fmt.Errorf("remembering topic %s: %w", topics[0].Name, err)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range topics {
		k := list[where[t.Name]]
		k.looked = now
		if int(k.Number) == len(m.names) {
			m.names = append(m.names, k.Name)
		}
		m.topics[k.Name] = &k
	}
	return nil
}

// any says that something is remembered.
func (m *memory) any() bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(m.names) > 0
}

// again writes down what is remembered, whose file is gone.
func (m *memory) again() error {
	m.save.take()
	defer m.save.leave()
	m.mu.Lock()
	list := make([]known, len(m.names))
	for i, name := range m.names {
		list[i] = *m.topics[name]
	}
	m.mu.Unlock()
	b, err := json.Marshal(list)
	if err != nil {
		return err
	}
	return disk.WriteFileAtomic(m.fsys, m.dir, m.dir+"/"+topicsName, b)
}

// anyNew says that something of these topics is not remembered.
func (m *memory) anyNew(topics []upstream.Topic, now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, t := range topics {
		k, ok := m.topics[t.Name]
		if !ok || k.UUID != t.UUID || k.Partitions != int32(len(t.Partitions)) {
			return true
		}
		k.looked = now
	}
	return false
}

// away says that the brokers did not answer a moment ago, and so would not now.
func (m *memory) away(now time.Time) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return now.Sub(m.failed) < time.Second
}

func (m *memory) setAway(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.failed = now
}

// accepting is a topic to accept events for.
type accepting struct {
	known
	leaders []upstream.Partition // nil when only what is remembered is known
}

// topic is what is known of a topic: from the brokers, or, when they do not
// answer in a moment, from memory.
func (s *Spool) topic(ctx context.Context, name string) (accepting, error) {
	k, remembered := s.memory.get(name)
	if remembered && s.memory.away(time.Now()) {
		return accepting{known: k}, nil
	}
	short := ctx
	if remembered {
		var cancel context.CancelFunc
		short, cancel = context.WithTimeout(ctx, s.cfg.MetadataWait)
		defer cancel()
	}
	t, err := s.brokers.Topic(short, name)
	if s.cfg.AutoCreate && upstream.MayAutoCreate(name) && errors.Is(err, api.NewError(api.CodeTopicNotFound, "")) {
		t, err = s.brokers.CreateTopic(ctx, name, api.TopicSpec{})
		if errors.Is(err, api.NewError(api.CodeTopicExists, "")) {
			t, err = s.brokers.Refresh(ctx, name)
		}
	}
	switch {
	case err == nil && len(t.Partitions) > 0:
		k, err := s.memory.see(t)
		if err != nil && !remembered {
			return accepting{}, refused(fmt.Sprintf("the spool's disk does not take what is to be remembered of topic %s: %v", name, err))
		}
		return accepting{known: k, leaders: t.Partitions}, nil
	case err == nil:
		err = unavailable(fmt.Sprintf("topic %s has no partitions yet", name))
	}
	if !errors.Is(err, api.NewError(api.CodeBrokersUnavailable, "")) {
		return accepting{}, err // it is not there, or not ours
	}
	s.memory.setAway(time.Now())
	if remembered {
		return accepting{known: k}, nil
	}
	return accepting{}, unavailable(fmt.Sprintf("no broker answers and topic %s was never used here before, so its partitions are not known; nothing was taken", name))
}

func unavailable(message string) *api.Error {
	e := api.NewError(api.CodeBrokersUnavailable, message)
	e.RetryAfterMillis = 1000
	return e
}

// refused is spool_full.
func refused(message string) *api.Error {
	e := api.NewError(api.CodeSpoolFull, message)
	e.RetryAfterMillis = 1000
	return e
}
