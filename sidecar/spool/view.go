package spool

import (
	"errors"
	"slices"

	"github.com/twmb/franz-go/pkg/kerr"
)

// view is what a sender's client believes of a topic. The client keeps a topic's
// id and its number of partitions by itself: it never takes another id, and sees
// new partitions only now and then.
type view struct {
	// turn guards what follows. It is no mutex because the client may be asking
	// brokers while it is told to forget.
	turn turn
	belief
}

// belief is the topic as it was when the client was last told of it.
type belief struct {
	known      bool
	uuid       string
	partitions int
	left       []string // earlier topics of the name
	doubted    bool     // brokers did not know the id, and nothing was written under it
	wrote      bool     // something was written since the client last forgot the topic
}

// change is what the client must be told before it sends.
type change int

const (
	changeNone  change = iota
	changeCount        // it has other partitions
	changeTopic        // it is another topic
	changeBack         // whoever told us is behind: the topic is an earlier one
)

// learn takes what the brokers say. Nothing is forgotten that was written to:
// its sequence numbers would begin anew, and the brokers would take messages for
// repeats of others.
func (b *belief) learn(uuid string, partitions int) change {
	switch {
	case !b.known:
		*b = belief{known: true, uuid: uuid, partitions: partitions}
		return changeNone
	case slices.Contains(b.left, uuid):
		return changeBack
	case b.uuid != uuid || b.doubted && !b.wrote:
		left := b.left
		if b.uuid != uuid {
			left = append(left, b.uuid)
		}
		*b = belief{known: true, uuid: uuid, partitions: partitions, left: left}
		return changeTopic
	case b.partitions != partitions:
		b.partitions = partitions
		return changeCount
	}
	return changeNone
}

// note takes what became of records.
func (b *belief) note(errs []error) {
	for _, err := range errs {
		b.wrote = b.wrote || err == nil
		b.doubted = b.doubted || errors.Is(err, kerr.UnknownTopicID)
	}
}

func (c *clientSender) viewOf(topic string) *view {
	v, ok := c.views.Load(topic)
	if !ok {
		v, _ = c.views.LoadOrStore(topic, &view{turn: make(turn, 1)})
	}
	return v.(*view)
}

func (v *view) note(errs []error) {
	v.turn.take()
	defer v.turn.leave()
	v.belief.note(errs)
}

// renew has the client forget a topic that was made anew, and look again at one
// that has other partitions. false says that the records are for a topic that is
// no more.
func (c *clientSender) renew(topic string, v *view) bool {
	t, err := c.up.Topic(c.closed, topic)
	if err != nil {
		return true // what the client believes stays
	}
	v.turn.take()
	defer v.turn.leave()
	switch v.learn(t.UUID, len(t.Partitions)) {
	case changeBack:
		return false
	case changeTopic:
		c.cl.PurgeTopicsFromProducing(topic)
		c.limits.Delete(topic)
	case changeCount:
		c.cl.ForceMetadataRefresh() // until it has looked, the lane tries again
	}
	return true
}
