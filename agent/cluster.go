package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"time"

	"go.uber.org/zap"

	"sidestream/agent/controller"
	"sidestream/agent/facts"
	"sidestream/broker"
	"sidestream/broker/commitlog"
	"sidestream/discovery"
)

// The agent is the broker's cluster.
var _ broker.Cluster = (*Agent)(nil)

const (
	deletionWait = 5 * time.Second
	// assignedMost is how many partitions can be created with an assignment:
	// they are written in the commit that creates the topic.
	assignedMost = (facts.MaxOps - 1) * discovery.ShardPartitions
)

// CreateTopic writes the topic, which the controller then places, and waits
// until every partition has a leader. When ctx ends before, the topic is made
// all the same, as far as it is; the error wraps ctx's and says so.
func (a *Agent) CreateTopic(ctx context.Context, spec broker.TopicSpec) (_ broker.TopicView, err error) {
	var unsure bool // a commit of unknown outcome may have made it
	defer func() { err = outcome(err, unsure) }()
	t, placed, err := a.newTopic(spec)
	if err != nil {
		return broker.TopicView{}, err
	}
	if err := a.mayChange(); err != nil {
		return broker.TopicView{}, err
	}
	id, err := broker.ParseUUID(t.UUID)
	if err != nil {
		return broker.TopicView{}, err
	}
	if err := a.refuseName(ctx, t.Name); err != nil {
		return broker.TopicView{}, err
	}
	if spec.ValidateOnly {
		return leaderless(t, id), nil
	}
	ops := []discovery.Op{discovery.Create(discovery.KeyTopic(t.Name), discovery.Encode(t))}
	for n := range facts.ShardsOf(int32(len(placed))) {
		s := discovery.Shard{Writer: discovery.NewNonce()}
		for slot := range facts.SlotsOf(int32(len(placed)), n) {
			s.Partitions = append(s.Partitions, placed[n*discovery.ShardPartitions+slot])
		}
		ops = append(ops, discovery.Create(discovery.KeyShard(t.UUID, n), discovery.Encode(s)))
	}
	for {
		err := a.writer.Commit(ctx, ops...)
		if err == nil {
			break
		}
		unsure = unsure || errors.Is(err, discovery.ErrUnknownOutcome)
		if err := a.again(ctx, err); err != nil {
			return broker.TopicView{}, err
		}
		_, now, err := a.topic(ctx, t.Name)
		if errors.Is(err, broker.ErrUnknownTopic) {
			continue
		}
		if err != nil {
			return broker.TopicView{}, err
		}
		if now.UUID == t.UUID {
			break
		}
		return broker.TopicView{}, refusal(now)
	}
	a.log.Info("topic created", zap.String("topic", t.Name), zap.String("uuid", t.UUID), zap.Int32("partitions", t.Partitions))
	return a.awaitLeaders(ctx, t.Name, id, t.Partitions)
}

// newTopic validates the wish and makes the topic of it, with the state of its
// partitions when the wish says where they are to be.
func (a *Agent) newTopic(spec broker.TopicSpec) (discovery.Topic, []discovery.PartitionState, error) {
	var none discovery.Topic
	if err := discovery.CheckName("topic", spec.Name); err != nil {
		return none, nil, fmt.Errorf("%w: %w", broker.ErrInvalidName, err)
	}
	count, replication := spec.Partitions, spec.Replication
	if count == -1 {
		count = a.cfg.DefaultPartitions
	}
	if replication == -1 {
		replication = a.cfg.DefaultReplication
	}
	var placed []discovery.PartitionState
	if len(spec.Assignment) > 0 {
		if spec.Partitions != -1 && int(spec.Partitions) != len(spec.Assignment) {
			return none, nil, fmt.Errorf("%w: %d partitions are asked for and %d are assigned: leave the number out", broker.ErrInvalidPartitions, spec.Partitions, len(spec.Assignment))
		}
		count = int32(min(len(spec.Assignment), MaxPartitions+1))
		var err error
		if placed, err = a.assigned(spec.Assignment); err != nil {
			return none, nil, err
		}
	}
	if count < 1 || count > MaxPartitions {
		return none, nil, fmt.Errorf("%w: got %d: use 1 to %d, or -1 for the default of %d", broker.ErrInvalidPartitions, count, MaxPartitions, a.cfg.DefaultPartitions)
	}
	if replication != 1 {
		return none, nil, fmt.Errorf("%w: got %d: use 1 (or -1 for the default): more replicas are not available yet", broker.ErrInvalidReplication, replication)
	}
	if _, _, err := commitlog.ConfigFromTopic(spec.Configs); err != nil {
		return none, nil, fmt.Errorf("%w: %w", broker.ErrInvalidConfig, err)
	}
	return discovery.Topic{
		Name: spec.Name, UUID: discovery.NewUUID(), Phase: discovery.PhaseCreating, Partitions: count, Replication: replication,
		Configs: maps.Clone(spec.Configs), Created: time.Now().UTC(), Writer: discovery.NewNonce(),
	}, placed, nil
}

// assigned reads an assignment: partitions from 0 without a gap, each on one
// registered broker.
func (a *Agent) assigned(assignment map[int32][]int32) ([]discovery.PartitionState, error) {
	if len(assignment) > assignedMost {
		return nil, fmt.Errorf("%w: an assignment of %d partitions is too long: at most %d can be assigned, more are placed by the cluster", broker.ErrInvalidPartitions, len(assignment), assignedMost)
	}
	view := a.View()
	placed := make([]discovery.PartitionState, len(assignment))
	for p := range placed {
		replicas, ok := assignment[int32(p)]
		if !ok {
			return nil, fmt.Errorf("%w: the assignment has %d partitions but not number %d: number them from 0", broker.ErrInvalidPartitions, len(assignment), p)
		}
		var err error
		if placed[p], err = assignedTo(view, p, replicas); err != nil {
			return nil, err
		}
	}
	return placed, nil
}

// assignedTo is the state of a new partition on the brokers that a client names.
func assignedTo(view *broker.View, partition int, replicas []int32) (none discovery.PartitionState, err error) {
	if len(replicas) != 1 {
		return none, fmt.Errorf("%w: partition %d is assigned to %d brokers: name one: more replicas are not available yet", broker.ErrInvalidReplication, partition, len(replicas))
	}
	if _, ok := view.Node(replicas[0]); !ok {
		return none, fmt.Errorf("%w: partition %d is assigned to broker %d, which is not registered", broker.ErrInvalidPartitions, partition, replicas[0])
	}
	return controller.Fresh(replicas[0]), nil
}

// DeleteTopic marks the topic deleting; from then on nobody serves it. It
// waits a little for the files and keys to go, so that the name is free when
// it returns, unless a broker that has some of it is down.
func (a *Agent) DeleteTopic(ctx context.Context, name string) (err error) {
	if err := a.mayChange(); err != nil {
		return err
	}
	var unsure bool // a commit of unknown outcome may have marked it
	defer func() { err = outcome(err, unsure) }()
	uuid := ""
	for {
		e, t, err := a.topic(ctx, name)
		if err != nil {
			return err
		}
		if t.Phase == discovery.PhaseDeleting {
			if uuid == t.UUID {
				break // the commit of unknown outcome was applied
			}
			return fmt.Errorf("%w: topic %q is being deleted already", broker.ErrUnknownTopic, name)
		}
		uuid = t.UUID
		t.Phase, t.Writer = discovery.PhaseDeleting, discovery.NewNonce()
		err = a.writer.Commit(ctx, discovery.CAS(discovery.KeyTopic(name), discovery.Encode(t), e.Version))
		if err == nil {
			break
		}
		unsure = unsure || errors.Is(err, discovery.ErrUnknownOutcome)
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
	a.log.Info("topic is being deleted", zap.String("topic", name), zap.String("uuid", uuid))
	a.awaitDeletion(ctx, name, uuid)
	return nil
}

// CreatePartitions raises the count of a topic, and waits until the new
// partitions have leaders. Where an assignment says where they are to be they
// are written with the count, else the controller places them.
func (a *Agent) CreatePartitions(ctx context.Context, name string, count int32, assignment ...[]int32) (err error) {
	if err := a.mayChange(); err != nil {
		return err
	}
	unsure := false // a commit of unknown outcome may have set the count
	defer func() { err = outcome(err, unsure) }()
	for {
		e, t, err := a.topic(ctx, name)
		if err != nil {
			return err
		}
		id, err := broker.ParseUUID(t.UUID)
		if err != nil {
			return err
		}
		switch {
		case t.Phase == discovery.PhaseDeleting:
			return fmt.Errorf("%w: topic %q is being deleted", broker.ErrUnknownTopic, name)
		case unsure && t.Partitions == count:
			_, err := a.awaitLeaders(ctx, name, id, count)
			return err
		case count > MaxPartitions:
			return fmt.Errorf("%w: got %d: use at most %d", broker.ErrInvalidPartitions, count, MaxPartitions)
		case count <= t.Partitions:
			return fmt.Errorf("%w: topic %q has %d partitions already: got %d: partitions can only be added", broker.ErrInvalidPartitions, name, t.Partitions, count)
		}
		ops, err := a.placed(ctx, t, count, assignment)
		if err != nil {
			return err
		}
		t.Partitions, t.Writer = count, discovery.NewNonce()
		err = a.writer.Commit(ctx, append(ops, discovery.CAS(discovery.KeyTopic(name), discovery.Encode(t), e.Version))...)
		if err == nil {
			_, err := a.awaitLeaders(ctx, name, id, count)
			return err
		}
		unsure = unsure || errors.Is(err, discovery.ErrUnknownOutcome)
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// placed is what writes the state of a topic's new partitions as they are
// assigned; nothing without an assignment.
func (a *Agent) placed(ctx context.Context, t discovery.Topic, count int32, assignment [][]int32) ([]discovery.Op, error) {
	if len(assignment) == 0 {
		return nil, nil
	}
	if n := int(count - t.Partitions); n != len(assignment) {
		return nil, fmt.Errorf("%w: topic %q has %d partitions: with %d it gets %d more, and %d are assigned", broker.ErrInvalidPartitions, t.Name, t.Partitions, count, n, len(assignment))
	}
	first, end := int(t.Partitions)/discovery.ShardPartitions, facts.ShardsOf(count)
	if end-first > facts.MaxOps-1 {
		return nil, fmt.Errorf("%w: an assignment of %d partitions is too long: at most %d can be assigned at once", broker.ErrInvalidPartitions, len(assignment), assignedMost-discovery.ShardPartitions)
	}
	view := a.View()
	var ops []discovery.Op
	for n := first; n < end; n++ {
		key := discovery.KeyShard(t.UUID, n)
		e, err := a.get(ctx, key)
		if err != nil {
			return nil, err
		}
		var s discovery.Shard
		if e.Version != 0 {
			if s, err = discovery.Decode[discovery.Shard](e); err != nil {
				return nil, fmt.Errorf("%w: key %s is not readable: %w", broker.ErrUnavailable, key, err)
			}
		}
		if len(s.Partitions) != facts.SlotsOf(t.Partitions, n) {
			return nil, fmt.Errorf("%w: the partitions that topic %q has are not all placed yet", broker.ErrUnavailable, t.Name)
		}
		for slot := len(s.Partitions); slot < facts.SlotsOf(count, n); slot++ {
			p := n*discovery.ShardPartitions + slot
			state, err := assignedTo(view, p, assignment[p-int(t.Partitions)])
			if err != nil {
				return nil, err
			}
			s.Partitions = append(s.Partitions, state)
		}
		s.Writer = discovery.NewNonce()
		ops = append(ops, discovery.CAS(key, discovery.Encode(s), e.Version))
	}
	return ops, nil
}

// mayChange is nil when this agent may change topics.
func (a *Agent) mayChange() error {
	f, _ := a.mirror.Latest()
	switch {
	case f.Cluster == facts.Missing:
		return fmt.Errorf("%w: the store has no cluster-id: run metadata rebuild", broker.ErrUnavailable)
	case f.Cluster == facts.Foreign:
		return fmt.Errorf("%w: the store belongs to another cluster", broker.ErrUnavailable)
	case f.Cluster == facts.Unread:
		return fmt.Errorf("%w: the coordination store has not been reached yet", broker.ErrUnavailable)
	}
	return nil
}

// again is nil when a commit that failed so is worth another try at once.
func (a *Agent) again(ctx context.Context, err error) error {
	if errors.Is(err, discovery.ErrConflict) || errors.Is(err, discovery.ErrUnknownOutcome) {
		if ctx.Err() != nil {
			return fmt.Errorf("%w: not in time: other agents change it as well, or the coordination store is slow", broker.ErrUnavailable)
		}
		return nil
	}
	return a.unavailable(err)
}

// outcome is the error of a change that an earlier attempt, of which nobody
// knows, may have made: it must not claim that nothing was changed.
func outcome(err error, unsure bool) error {
	if unsure && errors.Is(err, broker.ErrUnavailable) {
		return fmt.Errorf("%w: the coordination store stopped answering meanwhile: look whether it was done", broker.ErrUnknownOutcome)
	}
	return err
}

// errStoreAway is what clients are told: where the store is and what became of
// the connection to it is for this host's log.
var errStoreAway = fmt.Errorf("%w: the coordination store does not answer: nothing was changed, try again when it is back", broker.ErrUnavailable)

func (a *Agent) unavailable(err error) error {
	switch {
	case errors.Is(err, discovery.ErrUnavailable):
		a.spare.Warn("a change or reading of metadata was refused: the coordination store does not answer", zap.Error(err))
		return errStoreAway
	case errors.Is(err, context.DeadlineExceeded), errors.Is(err, context.Canceled):
		return err
	}
	return fmt.Errorf("%w: %w", broker.ErrUnavailable, err)
}

// get reads a key; an absent one has version 0.
func (a *Agent) get(ctx context.Context, key string) (discovery.Entry, error) {
	ctx, cancel := context.WithTimeout(ctx, a.cfg.StoreTimeout)
	defer cancel()
	e, err := a.store.Get(ctx, key)
	if errors.Is(err, discovery.ErrNotFound) {
		return discovery.Entry{Key: key}, nil
	}
	if err != nil {
		return e, a.unavailable(err)
	}
	return e, nil
}

// topic reads a topic that must be there.
func (a *Agent) topic(ctx context.Context, name string) (discovery.Entry, discovery.Topic, error) {
	var t discovery.Topic
	e, err := a.get(ctx, discovery.KeyTopic(name))
	if err != nil {
		return e, t, err
	}
	if e.Version == 0 {
		return e, t, fmt.Errorf("%w: %q", broker.ErrUnknownTopic, name)
	}
	if t, err = discovery.Decode[discovery.Topic](e); err != nil {
		return e, t, fmt.Errorf("%w: key %s is not readable: %w", broker.ErrUnavailable, e.Key, err)
	}
	return e, t, nil
}

// refuseName is an error when the name belongs to a topic.
func (a *Agent) refuseName(ctx context.Context, name string) error {
	_, t, err := a.topic(ctx, name)
	switch {
	case errors.Is(err, broker.ErrUnknownTopic):
		return nil
	case err != nil:
		return err
	}
	return refusal(t)
}

// refusal says why a topic of that name cannot be created.
func refusal(t discovery.Topic) error {
	if t.Phase == discovery.PhaseDeleting {
		return fmt.Errorf("%w: topic %q is being deleted: create it again when its brokers have removed it", broker.ErrTopicExists, t.Name)
	}
	return fmt.Errorf("%w: %q", broker.ErrTopicExists, t.Name)
}

// awaitLeaders waits until the first count partitions are led.
func (a *Agent) awaitLeaders(ctx context.Context, name string, id broker.UUID, count int32) (broker.TopicView, error) {
	for {
		view, newer := a.viewAndNext()
		t := view.Topics[name]
		if t != nil && t.ID == id && led(t, count) {
			return *t, nil
		}
		if f, _ := a.mirror.Latest(); f.Topics[name].UUID == id.String() && f.Topics[name].Phase == discovery.PhaseDeleting {
			return broker.TopicView{}, fmt.Errorf("%w: %q was deleted meanwhile", broker.ErrUnknownTopic, name)
		}
		select {
		case <-newer:
		case <-a.life.Done():
			return broker.TopicView{}, fmt.Errorf("%w: topic %q is written, but this broker is stopping", broker.ErrUnknownOutcome, name)
		case <-ctx.Done():
			return broker.TopicView{}, fmt.Errorf("topic %q is written, but not all of its partitions have leaders yet: %w", name, ctx.Err())
		}
	}
}

func led(t *broker.TopicView, count int32) bool {
	if int32(len(t.Partitions)) < count {
		return false
	}
	for _, p := range t.Partitions[:count] {
		if p.Leader < 0 || p.Epoch < 1 {
			return false
		}
	}
	return true
}

// awaitDeletion waits until the topic's keys are gone, for as long as it can
// be soon.
func (a *Agent) awaitDeletion(ctx context.Context, name, uuid string) {
	ctx, cancel := context.WithTimeout(ctx, deletionWait)
	defer cancel()
	for {
		view, newer := a.viewAndNext()
		f, _ := a.mirror.Latest()
		t, there := f.Topics[name]
		seen := there && t.Phase == discovery.PhaseDeleting || !there
		hidden := view.Topics[name] == nil || view.Topics[name].ID.String() != uuid
		if seen && hidden && (!there || t.UUID != uuid || heldByAbsent(f, uuid)) {
			return
		}
		select {
		case <-newer:
		case <-a.life.Done():
			return
		case <-ctx.Done():
			return
		}
	}
}

// heldByAbsent says whether a broker that is not up has replicas of the topic.
func heldByAbsent(f *facts.Facts, uuid string) bool {
	for _, s := range f.Shards[uuid] {
		for _, p := range s.Partitions {
			for _, id := range p.Replicas {
				if !f.Serving(id) {
					return true
				}
			}
		}
	}
	return false
}

// leaderless is what is known of a topic before it is placed.
func leaderless(t discovery.Topic, id broker.UUID) broker.TopicView {
	v := broker.TopicView{Name: t.Name, ID: id, Configs: t.Configs, Partitions: make([]broker.PartitionView, t.Partitions)}
	for i := range v.Partitions {
		v.Partitions[i].Leader = -1
	}
	return v
}
