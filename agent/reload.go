package agent

import (
	"errors"
	"fmt"
)

// Reload puts what can change of a configuration in force: the keys with the tag
// live. The others must be as they are. On an error nothing changes. It may be
// called once Ready is closed.
func (a *Agent) Reload(cfg Config) error {
	if err := cfg.Validate(); err != nil {
		return err
	}
	b := a.theBroker()
	if b == nil {
		return errors.New("the broker is not open yet: send the signal again when the agent is ready")
	}
	if err := b.SetQuota(cfg.Broker.Quota); err != nil {
		return fmt.Errorf("broker.%w", err)
	}
	return nil
}
