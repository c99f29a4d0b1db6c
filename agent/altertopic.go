package agent

import (
	"context"
	"errors"
	"fmt"
	"maps"

	"go.uber.org/zap"

	"sidestream/broker"
	"sidestream/broker/commitlog"
	"sidestream/discovery"
)

// AlterTopic replaces a topic's configs. Every broker learns of it as of any
// change of a topic and applies it to the open logs.
func (a *Agent) AlterTopic(ctx context.Context, name string, change func(map[string]string) (map[string]string, error)) (err error) {
	if err := a.mayChange(); err != nil {
		return err
	}
	var unsure bool // a commit of unknown outcome may have changed them
	defer func() { err = outcome(err, unsure) }()
	for {
		e, t, err := a.topic(ctx, name)
		if err != nil {
			return err
		}
		if t.Phase == discovery.PhaseDeleting {
			return fmt.Errorf("%w: topic %q is being deleted", broker.ErrUnknownTopic, name)
		}
		old := maps.Clone(t.Configs)
		if old == nil {
			old = map[string]string{}
		}
		next, err := change(old)
		if err != nil {
			return err
		}
		if _, _, err := commitlog.ConfigFromTopic(next); err != nil {
			return fmt.Errorf("%w: %w", broker.ErrInvalidConfig, err)
		}
		if maps.Equal(next, t.Configs) {
			return nil
		}
		t.Configs, t.Writer = next, discovery.NewNonce()
		err = a.writer.Commit(ctx, discovery.CAS(discovery.KeyTopic(name), discovery.Encode(t), e.Version))
		if err == nil {
			a.log.Info("topic configs changed", zap.String("topic", name), zap.Any("configs", next))
			return a.awaitConfigs(ctx, t, e.Version)
		}
		unsure = unsure || errors.Is(err, discovery.ErrUnknownOutcome)
		if err := a.again(ctx, err); err != nil {
			return err
		}
	}
}

// awaitConfigs waits until this broker has a topic's new configs, or newer ones.
// Version is that of the key before the change.
func (a *Agent) awaitConfigs(ctx context.Context, t discovery.Topic, version uint64) error {
	for {
		view, newer := a.viewAndNext()
		f, _ := a.mirror.Latest()
		now, there := f.Topics[t.Name]
		overtaken := !there || now.UUID != t.UUID || now.Writer != t.Writer && now.Version > version
		if v := view.Topics[t.Name]; overtaken || v != nil && maps.Equal(v.Configs, t.Configs) && a.applied(t) {
			return nil
		}
		select {
		case <-newer:
		case <-a.life.Done():
			return fmt.Errorf("%w: topic %q: the configs are written, but this broker is stopping", broker.ErrUnknownOutcome, t.Name)
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("topic %q: the configs are written, but not seen here yet", t.Name), ctx.Err())
		}
	}
}

// applied says whether what this broker leads of the topic has the configs.
func (a *Agent) applied(t discovery.Topic) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	for part, s := range a.led {
		if part.UUID == t.UUID && !s.failed && !maps.Equal(s.lead.Configs, t.Configs) {
			return false
		}
	}
	return true
}
